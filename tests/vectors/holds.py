#!/usr/bin/env python3
"""The model of reservations: a rule that knows all events, and a store that keeps only counters.

    # Random worlds: the store answers as the rule does, and no window has more than the limit.
    tests/vectors/holds.py --check 400
    # Each broken store is noticed in some world.
    tests/vectors/holds.py --mutants
    # Steps with their results, for src/core/algorithm/reservations/tests.rs.
    tests/vectors/holds.py --vectors 60 > tests/vectors/holds.txt

The rule: a hold counts as its estimate from the instant of its reservation; once settled, as its cost
at that instant (what exceeds the hold, at the settlement); once expired, as nothing (`release`) or as
the estimate (`keep`). It is held only if its request was admitted as a whole. It does not matter when
or whether a check looks. A limit of 0 refuses all but settlements, which are never refused.

Usage counts each hit once, when it is used for good: a cost at its settlement, the estimate of a hold that stays
charged at its expiry, and what its id reserves later at once. A request that another limit refuses uses nothing.
Thresholds compare what would count without the open holds. A refused check that is repeated after the named holds have
expired is admitted if nothing else happens.

Settlements are late, lost and repeated, requests are refused by other limits, and no check looks at a
key for long. Times are whole microseconds. The same seed gives the same world.
"""

import argparse
import copy
import random

ALGORITHMS = ("fixed_window", "sliding_window_counter", "sliding_window_buckets", "sliding_window_log", "token_bucket")
SETTLED, SECOND = 60_000_000, 1_000_000
MUTANTS = {
    "newest": "a refund takes the newest hits of a log or of buckets",
    "bucket": "a bucket gets back hits that have been refilled since",
    "previous": "the previous window of a counter is not refunded",
    "window": "the window of a settlement is refunded, not that of its hold",
    "grown": "what a hold grew by is refunded at the instant of its first hits",
    "forgotten": "a hold is forgotten after twice its ttl, with its refund",
    "few": "a step ends at most two expired holds",
    "noticed": "the further ttl of a kept hold begins when a step notices it",
    "refused": "a request that another limit refuses keeps its holds",
    "zero": "the share of one reservation may be 0 hits",
    "late": "a settlement after the ttl is refunded",
    "earlier": "usage has no hits of a kept hold that an earlier window counted",
    "unused": "what a kept hold reserves after its expiry is not used",
    "twice": "a refused request leaves the usage of what a kept hold has reserved",
    "left": "hits that have left the window count as those of open holds",
    "soon": "the expiry of hits that have left the window makes room",
}


def most_held(limit, share):
    return max(1, limit * share // 100)


def start_of(kind, window, now):
    """The first microsecond whose hits count at `now`."""
    if kind == "fixed_window":
        return now // window * window
    if kind == "sliding_window_log":
        return now - window + 1
    interval = -(-window // 60)
    return (now + 1 - window) // interval * interval


class Rule:
    """Knows every event of a key, and looks at all of them for each answer."""

    def __init__(self, kind, limit, window, ttl, share, keeps):
        self.kind, self.limit, self.window = kind, limit, window
        self.ttl, self.most, self.keeps = ttl, most_held(limit, share), keeps
        self.hits = []  # [instant, hits, hold or None]
        self.holds = {}  # id -> {since, settled, forgotten}
        self.direct = 0  # hits that were used without a hold

    def counted(self, now, is_open=True):
        """The instants of hits, and how many of each count; without open holds if not `is_open`."""
        rest = {id(hold): hold["cost"] for _, _, hold in self.hits if hold and hold["settled"] is not None}
        for instant, hits, hold in self.hits:
            if hold is None:
                yield instant, hits
            elif hold["settled"] is not None:
                own = min(hits, rest[id(hold)])
                rest[id(hold)] -= own
                yield instant, hits if hold["kept"] else own
            elif is_open if now < hold["until"] else self.keeps:
                yield instant, hits

    def level(self, now, is_open=True):
        full, level, last = self.limit * self.window, self.limit * self.window, 0
        for instant, hits in self.counted(now, is_open):
            level = min(full, level + (instant - last) * self.limit) - hits * self.window
            last = instant
        return min(full, level + (now - last) * self.limit)

    def used(self, now, is_open=True):
        if self.kind == "token_bucket":
            return -(-(self.limit * self.window - self.level(now, is_open)) // self.window)
        counted = list(self.counted(now, is_open))
        if self.kind == "sliding_window_counter":
            number, elapsed = divmod(now, self.window)
            current = sum(hits for at, hits in counted if at // self.window == number)
            before = sum(hits for at, hits in counted if at // self.window == number - 1)
            return current - (-before * (self.window - elapsed) // self.window)
        first = start_of(self.kind, self.window, now)
        return sum(hits for at, hits in counted if at >= first)

    def usage(self, now):
        """All hits that were used for good."""
        own = {}
        for _, hits, hold in self.hits:
            if hold:
                own[id(hold)] = (hold, own.get(id(hold), (hold, 0))[1] + hits)
        total = self.direct
        for hold, hits in own.values():
            if hold["settled"] is not None:
                total += max(hits, hold["cost"]) if hold["kept"] else hold["cost"]
            elif self.keeps and now >= hold["until"]:
                total += hits
        return total

    def fits(self, now, hits):
        if self.kind == "token_bucket":
            return self.limit > 0 and self.level(now) - hits * self.window >= 0
        return self.limit > 0 and self.used(now) + hits <= self.limit

    def charge(self, now, hits):
        """Hits without a hold; refused ones become debt, of at most one limit."""
        allowed = self.fits(now, hits)
        if self.kind == "token_bucket":
            room = self.level(now) + self.limit * self.window
            assert allowed or room >= hits * self.window, "worlds stay within the debt"
        elif not allowed and self.kind != "fixed_window":
            hits = max(0, min(hits, 2 * self.limit - self.used(now)))
        if hits:
            self.hits.append([now, hits, None])
        return allowed

    def find(self, now, name):
        hold = self.holds.get(name)
        if hold and hold["settled"] is not None:
            return hold if now < hold["settled"] + SETTLED else None
        return hold if hold and now < hold["until"] + (self.ttl if self.keeps else 0) else None

    def reserve(self, now, name, asked, is_refused):
        hold, wanted = self.find(now, name), min(asked, self.most)
        if hold and hold["settled"] is not None:
            return self.fits(now, 0)
        own = sum(hits for _, hits, of in self.hits if of is hold) if hold else 0
        missing = max(0, wanted - own)
        if hold and missing == 0:
            return True
        if missing == 0 or not self.fits(now, missing):
            return missing == 0 and self.fits(now, 0)
        if not is_refused:
            if not hold:
                hold = {"since": now, "until": now + self.ttl, "settled": None, "kept": False}
                self.holds[name] = hold
            self.hits.append([now, missing, hold])
        return True

    def settle(self, now, name, cost):
        hold = self.find(now, name)
        if hold and hold["settled"] is not None:
            return True
        own = sum(hits for _, hits, of in self.hits if of is hold) if hold else 0
        if cost > own:
            self.charge(now, cost - own)
        if not hold:
            self.direct += cost
            hold = {}
            self.holds[name] = hold
        hold.update(settled=now, cost=cost, kept=own > 0 and now >= hold["until"])
        return True

    def hit(self, now, hits):
        self.direct += hits
        return self.charge(now, hits)

    def peek(self, now):
        return self.fits(now, 0)


class Store:
    """Keeps the counter, and of each open hold the places at which its hits were counted."""

    def __init__(self, kind, limit, window, ttl, share, keeps, mutant=None):
        self.kind, self.limit, self.window = kind, limit, window
        self.ttl, self.keeps, self.mutant = ttl, keeps, mutant
        self.most = limit * share // 100 if mutant == "zero" else most_held(limit, share)
        self.cells = {}  # place -> hits
        self.last, self.level = 0, limit * window
        self.peaks = []  # [since, the highest level from then on], oldest first
        self.holds = {}  # id -> [kind, until, [[place, since, hits]]]
        self.usage = 0

    def place(self, now):
        """Where hits of this instant are counted."""
        length = {"sliding_window_log": 1, "sliding_window_buckets": -(-self.window // 60)}
        return now // length.get(self.kind, self.window)

    def refill(self, now):
        if self.kind == "token_bucket":
            self.level = min(self.limit * self.window, self.level + (now - self.last) * self.limit)
            self.last = now
            self.raise_peaks(self.level)

    def raise_peaks(self, level):
        since = None
        while self.peaks and self.peaks[-1][1] <= level:
            since = self.peaks.pop()[0]
        if since is not None:
            self.peaks.append([since, level])

    def used(self, now):
        if self.kind == "token_bucket":
            return -(-(self.limit * self.window - self.level) // self.window)
        if self.kind == "sliding_window_counter":
            number, elapsed = divmod(now, self.window)
            before = self.cells.get(number - 1, 0)
            return self.cells.get(number, 0) - (-before * (self.window - elapsed) // self.window)
        first = self.place(max(0, start_of(self.kind, self.window, now)))
        return sum(hits for place, hits in self.cells.items() if place >= first)

    def fits(self, now, hits):
        if self.kind == "token_bucket":
            return self.limit > 0 and self.level - hits * self.window >= 0
        return self.limit > 0 and self.used(now) + hits <= self.limit

    def add(self, now, hits):
        if self.kind == "token_bucket":
            self.level -= hits * self.window
        else:
            place = self.place(now)
            self.cells[place] = self.cells.get(place, 0) + hits

    def refund_at(self, now, part, hits):
        place, since, _ = part
        if self.mutant == "window":
            place = self.place(now)
        if self.kind == "token_bucket":
            self.give_back_level(since, hits)
        elif self.mutant == "newest" and self.kind.endswith(("log", "buckets")):
            for newest in sorted(self.cells, reverse=True):
                less = min(hits, self.cells[newest])
                self.cells[newest] -= less
                hits -= less
        elif not (self.mutant == "previous" and place != self.place(now)):
            self.cells[place] = max(0, self.cells.get(place, 0) - hits)

    def give_back_level(self, since, hits):
        """At most what the bucket would have without the hold: the highest level since then is full."""
        full = self.limit * self.window
        index = max((at for at, peak in enumerate(self.peaks) if peak[0] <= since), default=None)
        peak = self.level if index is None else self.peaks[index][1]
        units = min(hits * self.window, full - (self.level if self.mutant == "bucket" else peak))
        self.level += units
        for at, entry in enumerate(self.peaks):
            if index is not None and at >= index:
                entry[1] += units
            else:
                entry[1] = max(entry[1], peak + units)

    def end(self, now):
        """What every step does first."""
        self.refill(now)
        ended = 0
        for name, hold in sorted(self.holds.items(), key=lambda item: item[1][1]):
            kind, until, parts = hold
            if kind != "held" and until <= now:
                del self.holds[name]
            elif kind == "held" and until <= now:
                ended += 1
                if self.mutant == "few" and ended > 2:
                    continue
                if self.mutant == "forgotten" and now >= until + self.ttl:
                    del self.holds[name]
                elif self.keeps:
                    has_left = self.mutant == "earlier" and self.kind == "fixed_window"
                    is_used = [part for part in parts if not has_left or part[0] == self.place(now)]
                    self.usage += sum(part[2] for part in is_used)
                    begin = now if self.mutant == "noticed" else until
                    hold[:2] = ["kept", begin + self.ttl]
                    if begin + self.ttl <= now:
                        del self.holds[name]
                else:
                    if self.mutant != "late":
                        del self.holds[name]
                        for part in parts:
                            self.refund_at(now, part, part[2])

    def charge(self, now, hits):
        allowed = self.fits(now, hits)
        if not allowed and self.kind not in ("fixed_window", "token_bucket"):
            hits = max(0, min(hits, 2 * self.limit - self.used(now)))
        self.add(now, hits)
        return allowed

    def reserve(self, now, name, asked, is_refused):
        self.end(now)
        hold, wanted = self.holds.get(name), min(asked, self.most)
        if hold and hold[0] == "settled":
            return self.fits(now, 0)
        own = sum(part[2] for part in hold[2]) if hold else 0
        missing = max(0, wanted - own)
        if hold and missing == 0:
            return True
        if missing == 0 or not self.fits(now, missing):
            return missing == 0 and self.fits(now, 0)
        self.add(now, missing)
        if self.kind == "token_bucket":
            if self.peaks and self.peaks[-1][0] == now:
                self.peaks.pop()
            self.peaks.append([now, self.level])
        part = [self.place(now), now, missing]
        if hold and hold[0] == "kept" and self.mutant != "unused":
            self.usage += missing
        if is_refused and self.mutant != "refused":
            self.refund_at(now, part, missing)
            if hold and hold[0] == "kept" and self.mutant not in ("unused", "twice"):
                self.usage -= missing
        elif hold:
            if self.mutant == "grown":
                hold[2][0][2] += missing
            else:
                hold[2].append(part)
        else:
            self.holds[name] = ["held", now + self.ttl, [part]]
        return True

    def settle(self, now, name, cost):
        self.end(now)
        hold = self.holds.get(name)
        if hold and hold[0] == "settled":
            return True
        rest = cost
        for part in hold[2] if hold else ():
            own = min(part[2], rest)
            rest -= own
            if hold[0] == "held":
                self.refund_at(now, part, part[2] - own)
        if rest:
            self.charge(now, rest)
        self.usage += rest if hold and hold[0] == "kept" else cost
        self.holds[name] = ["settled", now + SETTLED, []]
        return True

    def hit(self, now, hits):
        self.end(now)
        self.usage += hits
        return self.charge(now, hits)

    def peek(self, now):
        self.end(now)
        return self.fits(now, 0)

    def open(self):
        """The open holds, the first to expire first."""
        return sorted((hold for hold in self.holds.values() if hold[0] == "held"), key=lambda hold: hold[1])

    def settled(self, now):
        """The hits that would count without the open holds."""
        if self.mutant == "left":
            return max(0, self.used(now) - sum(part[2] for hold in self.open() for part in hold[2]))
        twin = copy.deepcopy(self)
        for hold in twin.open():
            for part in hold[2]:
                twin.refund_at(now, part, part[2])
        return twin.used(now)

    def room(self, now, hits):
        """When enough holds have expired to admit refused hits; `None` if that admits none."""
        if self.keeps or hits > self.limit or self.fits(now, hits):
            return None
        twin, lacking = copy.deepcopy(self), self.used(now) + hits - self.limit
        for hold in twin.open():
            for part in hold[2]:
                twin.refund_at(now, part, part[2])
                lacking -= part[2]
            if lacking <= 0 if self.mutant == "soon" else twin.fits(now, hits):
                return hold[1]
        return None


class World:
    """Requests of one key, of which each settlement may be late, lost or repeated."""

    def __init__(self, seed, mutant=None):
        self.random = random.Random(seed)
        choose = self.random.choice
        self.kind = ALGORITHMS[seed % len(ALGORITHMS)]
        self.limit = choose([0, 1, 10, 100, 1000])
        window = choose([10, 60, 600]) * SECOND
        ttl = choose([1, 20, 300]) * SECOND
        share, keeps = choose([1, 50, 100]), choose([True, False])
        self.terms = (self.kind, self.limit, window, ttl, share, keeps)
        self.rule, self.store = Rule(*self.terms), Store(*self.terms, mutant=mutant)
        # As far into a window as any.
        self.now = 1_800_000_000 * SECOND + self.random.randrange(window)
        self.window = window

    def step(self):
        random_, ttl = self.random, self.terms[3]
        # A quiet time lets many holds expire before a check looks.
        pace = random_.choice([1, 1, 1, self.window // 40, self.window // 4, ttl, 3 * ttl])
        self.now += random_.randrange(1, max(2, pace))
        name = random_.randrange(12)
        hits = random_.choice([0, 1, self.limit // 10, self.limit // 3, self.limit])
        kind = random_.choice(["reserve"] * 4 + ["settle"] * 4 + ["hit", "peek"])
        if kind == "reserve":
            event = (kind, name, hits, random_.random() < 0.1)
        elif kind == "settle":
            event = (kind, name, hits // random_.choice([1, 2, 10]))
        elif kind == "hit":
            event = (kind, hits if self.rule.fits(self.now, hits) else 0)
        else:
            event = (kind,)
        if event[0] == "settle" and self.kind == "token_bucket":
            # Within the debt, of which the rule knows no bound.
            event = (*event[:2], min(event[2], max(0, self.rule.level(self.now) // self.window)))
        return event

    def answers(self, event):
        kind, values = event[0], event[1:]
        return tuple(getattr(side, kind)(self.now, *values) for side in (self.rule, self.store))

    def run(self, steps):
        """`None`, or the difference between rule and store."""
        for _ in range(steps):
            event, now = self.step(), self.now
            expected, answer = self.answers(event)
            expected = (expected, self.rule.used(now), self.rule.used(now, False), self.rule.usage(now))
            answer = (answer, self.store.used(now), self.store.settled(now), self.store.usage)
            if expected != answer:
                return f"{self.terms} {event} at {now}: rule {expected}, store {answer}"
            hits = self.limit // 2
            room = self.store.room(now, hits)
            if room is not None and not self.rule.fits(room, hits):
                return f"{self.terms} {event} at {now}: no room for {hits} at {room}"
        return None


def check(worlds):
    for seed in range(worlds):
        found = World(seed).run(120)
        assert found is None, f"world {seed}: {found}"
    print(f"{worlds} worlds: the store answers as the rule does")


def mutants():
    for mutant, what in MUTANTS.items():
        seeds = (seed for seed in range(4000) if World(seed, mutant).run(120))
        found = next(seeds, None)
        assert found is not None, f"not noticed: {what}"
        print(f"{mutant}: noticed in world {found}: {what}")


def vectors(worlds):
    print("# Written by holds.py: steps of keys with reservations, with what the rule answers.")
    print("# world: algorithm, limit, window, ttl, max_share, keeps.")
    print("# step: time, event, allowed, used, used without open holds, usage.")
    for seed in range(worlds):
        world = World(seed)
        print("world", *world.terms[:5], int(world.terms[5]))
        for _ in range(60):
            event = world.step()
            (allowed, _), (rule, now) = world.answers(event), (world.rule, world.now)
            values = [int(value) for value in event[1:]]
            print(now, event[0], *values, int(allowed), rule.used(now), rule.used(now, False), rule.usage(now))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=int, metavar="WORLDS")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--vectors", type=int, metavar="WORLDS")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check)
    if arguments.mutants:
        mutants()
    if arguments.vectors:
        vectors(arguments.vectors)

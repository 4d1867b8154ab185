#!/usr/bin/env python3
"""The model of leases: rules for a fixed window, random worlds that try to exceed a limit.

    # Random worlds: no window admits more than its limit, or loses hits.
    tests/vectors/leases.py --check 200
    # Each of eight broken rules is noticed in some world.
    tests/vectors/leases.py --mutants
    # Steps with their results, for src/limiter/leases/lease/tests.rs.
    tests/vectors/leases.py --vectors 1500 > tests/vectors/leases.txt

A world has several processes whose clocks differ by up to 200 parts per million, and one counter.
Messages are late or lost, the store is down, processes crash, the counter is reset, hits are refunded, some that were
never used. Times are whole microseconds. The same seed gives the same world.
"""

import argparse
import heapq
import random
from collections import Counter, deque

BUSY, MEASURED, FRESH, RETRY, CLOCKS = 8, 100_000, 1_000_000, 100_000, 4_096
LARGEST = 2**53
MUTANTS = {
    "clamp": "a grant is not clamped to the limit",
    "arrival": "the end of a lease counts from the arrival of the reply",
    "window": "what is held is kept into the next window",
    "take": "a request is answered without taking hits",
    "fall": "a count that falls voids what is held",
    "refused": "refused hits size a draw",
    "stale": "held hits are answered by an old count",
    "lost": "a key stays busy after a draw that was lost",
}


class Limit:
    def __init__(self, limit, window, replicas, count_denied):
        self.limit, self.window, self.replicas, self.count_denied = (
            limit,
            window,
            replicas,
            count_denied,
        )

    def before(self, allowed, used, hits):
        """The count before these hits, if they were counted."""
        most = LARGEST if self.count_denied else self.limit + 1
        return used - hits if (allowed or self.count_denied) and hits <= used < most else None


class Lease:
    """State of a key in a process: the fields and rules of src/limiter/leases/lease.rs."""

    FIELDS = (
        "rest",
        "block",
        "until",
        "fresh_until",
        "reset",
        "known",
        "known_at",
        "slot",
        "requests_before",
        "requests_now",
        "hits_before",
        "hits_now",
        "is_drawing",
    )

    def __init__(self, mutant=None):
        self.mutant = mutant
        for field in self.FIELDS:
            setattr(self, field, 0)

    def measure(self, now, limit):
        measured, passed = min(MEASURED, limit.window // 20), max(0, now - self.slot)
        if passed >= measured:
            is_next, self.slot = passed < 2 * measured, now
            self.requests_before, self.requests_now = is_next * self.requests_now, 0
            self.hits_before, self.hits_now = is_next * self.hits_now, 0

    def count(self, now, hits, limit):
        """An admitted request."""
        self.measure(now, limit)
        self.requests_now += 1
        self.hits_now += hits

    def answers(self, now):
        """Whether a request is answered here if there are enough hits.

        No draw is due, and the count is fresh.
        """
        is_due = not self.is_drawing and (self.rest <= self.block // 4 or now >= self.fresh_until)
        return not is_due and (now < self.fresh_until or self.mutant == "stale")

    def used(self):
        return max(0, self.known - self.rest)

    def wanted(self, now, hits, limit):
        if max(self.requests_before, self.requests_now) < BUSY or now >= self.until:
            return 0
        part = max(0, limit.limit - self.known) // (2 * limit.replicas)
        block = min(max(self.hits_before, self.hits_now), part, limit.limit - hits) - self.rest
        return block if block >= BUSY else 0

    def take(self, now, hits, limit):
        """The answer as (remaining, used, time to the reset), or None."""
        if now >= self.until or self.rest < hits:
            return None
        if self.mutant != "take":
            self.rest -= hits
        self.count(now, hits, limit)
        return max(0, limit.limit - self.used()), self.used(), max(0, self.reset - now)

    def take_at_once(self, now, hits, limit):
        return self.take(now, hits, limit) if self.answers(now) else None

    def turn(self, now, hits, limit):
        """("held", answer) or ("ask", hits ahead, whether it draws)."""
        self.measure(now, limit)
        if self.mutant == "refused":
            self.count(now, hits, limit)
        if self.answers(now):
            answer = self.take(now, hits, limit)
            if answer:
                return ("held", answer)
        if self.is_drawing:
            return ("ask", 0, False)
        ahead, is_fresh = self.wanted(now, hits, limit), now < self.fresh_until
        if ahead == 0 and is_fresh:
            answer = self.take(now, hits, limit)
            if answer:
                return ("held", answer)
        self.is_drawing = ahead > 0 or not is_fresh
        return ("ask", ahead, self.is_drawing)

    def drawn(self, began, now, hits, ahead, verdict, limit):
        """`verdict`: (allowed, used, time to the reset) of the store.

        Returns (None to ask again, or (allowed, used); granted; void; ended).
        """
        allowed, count, left = verdict
        granted = void = ended = 0
        known = count
        sure = left - 1  # the store rounds its time down to a tick: here 1 us
        until = (now if self.mutant == "arrival" else began) + sure - -(-sure // CLOCKS)
        position, used = limit.before(allowed, count, hits + ahead), count
        if now < until:
            if now >= self.until:
                if self.mutant != "window":
                    ended, self.rest = self.rest, 0
            elif began >= self.known_at:
                # Held hits are a part of the count, unless the counter was reset.
                before = count if position is None else position
                void = (
                    self.rest
                    if self.mutant == "fall" and before < self.known
                    else max(0, self.rest - before)
                )
                self.rest -= void
            else:
                # The store may have sent the other answer after this one.
                known = max(count, self.known)
            if position is not None:
                granted = (
                    ahead
                    if self.mutant == "clamp"
                    else max(0, min(ahead, limit.limit - position - hits))
                )
            self.rest += granted
            self.block, self.known, self.known_at = self.rest, known, now
            self.until, self.fresh_until, self.reset = until, began + FRESH, now + left
            used = self.used()
        if position is not None and position + hits <= limit.limit:
            self.count(now, hits, limit)
            return (True, used), granted, void, ended
        return None if position is None and ahead > 0 else (allowed, count), granted, void, ended

    def failed(self, now):
        self.fresh_until = max(self.fresh_until, now + RETRY)

    def draw_lost(self):
        """The store may have counted a draw that it did not answer."""
        if self.mutant != "lost":
            self.requests_before = self.requests_now = self.hits_before = self.hits_now = 0

    def end_draw(self):
        self.is_drawing = False


class Counted:
    """The store: one counter of fixed windows."""

    def __init__(self, limit):
        self.limit, self.number, self.count = limit, 0, 0

    def before(self, now):
        number = now // self.limit.window
        if number != self.number:
            self.number, self.count = number, 0
        return self.count

    def hit(self, now, hits):
        self.before(now)
        allowed = hits < 0 or self.count + hits <= self.limit.limit
        if allowed or self.limit.count_denied:
            self.count = max(0, self.count + hits)
        return allowed, self.count, (self.number + 1) * self.limit.window - now


class World:
    START = 10_000_000

    def __init__(self, seed, mutant=None):
        rng = self.rng = random.Random(seed)
        self.mutant, self.now, self.queue, self.number = mutant, self.START, [], 0
        count = rng.randint(1, 5)
        self.limit = Limit(
            rng.choice([1, 20, 200, 700, 1_500]),
            rng.choice([300_000, 300_000, 1_000_000, 4_000_000]),
            rng.choice([1, 2, 4, 8]),
            rng.random() < 0.6,
        )
        self.store, self.length = (
            Counted(self.limit),
            rng.randint(800_000, 2_500_000) + self.limit.window,
        )
        self.largest = rng.choice([1, 1, 5, 50])
        self.loads = [
            rng.choice([0.5, 0.9, 3]) for _ in range(12)
        ]  # of the windows in turn, in limits
        # The time of a message, and how many are far later, and are lost.
        self.way, self.late = rng.choice([150, 12_000]), rng.choice([0, 0.02])
        self.leases, self.crashes = [Lease(mutant) for _ in range(count)], [0] * count
        self.clocks, self.weights = (
            [rng.randint(-200, 200) for _ in range(count)],
            [rng.randint(1, 20) for _ in range(count)],
        )
        self.pauses, self.refunds = rng.choice([0, 0, 0.01]), rng.choice([0, 0, 6, 300])
        self.refunds_unused = rng.random() < 0.3
        self.excused = [0] * count  # held hits of a counter that was reset
        self.resets = 0
        # Hits of windows: admitted, refunded, refused and counted, counted and neither used nor
        # held.
        self.admitted, self.refunded, self.denied, self.lost = (
            Counter(),
            Counter(),
            Counter(),
            Counter(),
        )
        self.most = Counter()  # the most hits that a process held after a draw, by window
        self.disturbed = set()  # windows with a reset, or a refund of more than was used
        self.uses = [deque() for _ in range(count)]  # what a process used: times and hits
        self.unlost = [0] * count  # what a process used since its last lost draw
        # Nothing reaches the store meanwhile.
        down = self.START + rng.randint(0, self.length)
        self.down = range(down, down + rng.choice([0, 0, 300_000]))
        self.counted = [0] * count  # when a process last sent what it knows the count by
        self.problem = None

    def clock(self, replica, now=None):
        now = self.now if now is None else now
        return now + (now - self.START) * self.clocks[replica] // 1_000_000

    def at(self, when, what, *args):
        self.number += 1
        heapq.heappush(self.queue, (when, self.number, what, args))

    def window(self):
        return self.now // self.limit.window

    def delay(self):
        return (
            self.rng.randint(self.way // 2, self.way)
            if self.rng.random() >= self.late
            else self.rng.randint(0, 60_000)
        )

    def run(self):
        rng, when, window = self.rng, float(self.now), self.limit.window
        while when < self.START + self.length:
            wanted = self.limit.limit * self.loads[int(when // window) % len(self.loads)]
            when += rng.expovariate(
                min(0.008, max(0.0003, 2 * wanted / (1 + self.largest) / window))
            )
            if rng.random() < self.pauses:
                when += rng.randint(900_000, 1_500_000)
            self.at(
                int(when),
                self.request,
                rng.choices(range(len(self.leases)), self.weights)[0],
                min(rng.randint(1, self.largest), self.limit.limit),
            )
        for rare, times in (
            (self.crash, 3 * (rng.random() < 0.3)),
            (self.reset, rng.random() < 0.3),
            (self.refund, self.refunds),
        ):
            for _ in range(times and rng.randint(1, times)):
                self.at(self.START + rng.randint(0, self.length), rare)
        while self.queue and not self.problem:
            self.now, _, what, args = heapq.heappop(self.queue)
            what(*args)
        return self.problem

    def request(self, replica, hits):
        lease, began = self.leases[replica], self.clock(replica)
        turn = (
            ("held",)
            if lease.take_at_once(began, hits, self.limit)
            else lease.turn(began, hits, self.limit)
        )
        if turn[0] != "held":
            return self.send([replica, self.crashes[replica], began, hits, turn[1], turn[2]])
        if began - self.counted[replica] >= FRESH:
            self.problem = (
                f"hits are answered by a count that is {began - self.counted[replica]} us old"
            )
        self.held(replica, hits)

    def send(self, message):
        replica, _, began, _, ahead, _ = message
        uses = self.uses[replica]
        while uses and uses[0][0] <= began - 3 * MEASURED:
            uses.popleft()
        if ahead and ahead > (used := sum(hits for _, hits in uses)):
            self.problem = f"a draw is of {ahead} hits, and {used} were used"
        state = {"done": False}
        if self.rng.random() >= self.late / 2 and self.now not in self.down:
            self.at(self.now + self.delay(), self.execute, message, state)
        self.at(self.now + 30_000, self.time_out, message, state)

    def execute(self, message, state):
        _, _, _, hits, ahead, _ = message
        before, verdict, window = (
            self.store.before(self.now),
            self.store.hit(self.now, hits + ahead),
            self.window(),
        )
        counted = verdict[1] - before
        self.lost[window] += counted  # until a reply says otherwise
        if self.rng.random() >= self.late / 2:
            self.at(
                self.now + self.delay(),
                self.reply,
                message,
                state,
                verdict,
                (window, counted, self.refunded[window], self.resets),
            )

    def reply(self, message, state, verdict, executed):
        (replica, crashes, began, hits, ahead, draws), (window, counted, refunded, resets) = (
            message,
            executed,
        )
        if state["done"] or crashes != self.crashes[replica]:
            return
        state["done"], lease, now = True, self.leases[replica], self.clock(replica)
        answer, granted, void, ended = lease.drawn(began, now, hits, ahead, verdict, self.limit)
        if void and not self.resets and window not in self.disturbed:
            self.problem = (
                f"{void} hits of window {window} are void, although all refunded hits had been used"
            )
        is_admitted = bool(answer and answer[0])
        self.lost[window] -= granted + (hits if counted else 0)
        self.most[window, replica] = max(self.most[window, replica], lease.rest)
        self.excused[replica] = 0 if ended else max(0, self.excused[replica] - void)
        if lease.known_at == now:
            self.counted[replica] = began
        if resets != self.resets:
            self.excused[replica] += granted
        taken = not is_admitted and lease.take(now, hits, self.limit)
        if draws:
            lease.end_draw()
        if is_admitted:
            self.used(replica, window, hits * (resets == self.resets), hits)
        elif counted:
            self.denied[window] += hits
        if taken:
            self.held(replica, hits)
        elif answer is None:
            self.send([replica, crashes, began, hits, 0, False])
        elif not is_admitted:
            self.is_refused(window, refunded)

    def time_out(self, message, state):
        replica, crashes, _, hits, ahead, draws = message
        if state["done"] or crashes != self.crashes[replica]:
            return
        state["done"], lease, now = True, self.leases[replica], self.clock(replica)
        is_cancelled = self.rng.random() < 0.3
        if not is_cancelled:
            lease.failed(now)
            self.counted[replica] = max(self.counted[replica], now + RETRY - FRESH)
        if ahead:
            if ahead > self.unlost[replica]:
                self.problem = (
                    f"a draw of {ahead} hits is lost, and {self.unlost[replica]} were used since"
                    " the last one"
                )
            self.unlost[replica] = 0
            lease.draw_lost()
        if not is_cancelled and lease.take(now, hits, self.limit):
            self.held(replica, hits)
        if draws:
            lease.end_draw()

    def held(self, replica, hits):
        less = min(hits, self.excused[replica])
        self.excused[replica] -= less
        self.used(replica, self.window(), hits - less, hits)

    def used(self, replica, window, counted, hits):
        self.uses[replica].append((self.clock(replica), hits))
        self.unlost[replica] += hits
        self.admitted[window] += counted
        if self.admitted[window] - self.refunded[window] > self.limit.limit:
            self.problem = (
                f"window {window} admitted {self.admitted[window] - self.refunded[window]}"
                f" of {self.limit.limit}"
            )

    def is_refused(self, window, refunded):
        """When the store refused hits, at most these were missing in the window: the held hits, the
        lost hits, the refused and counted hits, and a request.
        """
        held = sum(hits for (of, _), hits in self.most.items() if of == window)
        lacks = self.limit.limit - self.admitted[window] + refunded
        bound = held + self.lost[window] + self.denied[window] + self.largest - 1
        if window not in self.disturbed and lacks > bound:
            self.problem = (
                f"window {window} refused hits and lacks {lacks}, of {self.limit.limit};"
                f" at most {bound} are held, lost or refused"
            )

    def crash(self):
        replica = self.rng.randrange(len(self.leases))
        self.lost[self.window()] += self.leases[replica].rest
        self.leases[replica], self.excused[replica] = Lease(self.mutant), 0
        self.crashes[replica] += 1

    def reset(self):
        self.resets += 1
        self.store.count, self.admitted[self.window()], self.refunded[self.window()] = 0, 0, 0
        self.excused = [lease.rest for lease in self.leases]
        self.disturbed.add(self.window())

    def refund(self):
        window, before, hits = self.window(), self.store.before(self.now), self.rng.randint(1, 50)
        used = self.admitted[window] - self.refunded[window]
        if self.refunds_unused and hits > used:
            self.disturbed.add(window)
        else:
            hits = min(hits, used)
        if hits > 0:
            self.refunded[window] += before - self.store.hit(self.now, -hits)[1]


def check(worlds, mutant=None):
    """The first world in which something is wrong."""
    return next(
        ((seed, wrong) for seed in range(worlds) if (wrong := World(seed, mutant).run())), None
    )


def vectors(steps, seed=40):
    """Random steps of one process; a line `limit` begins with new terms and an empty lease."""
    rng = random.Random(seed)
    print("# Written by leases.py: steps of a lease of a fixed window. Times are microseconds.")
    print("# limit LIMIT WINDOW REPLICAS COUNT_DENIED")
    print(
        "# STEP ARGUMENTS = RESULT | FIELDS; an answer is its remaining and used hits and its time"
        " to the reset."
    )
    print(
        "# drawn BEGAN NOW HITS AHEAD ALLOWED USED RESET = again, or ALLOWED USED; then the hits"
        " that are granted, void, and ended"
    )
    print("# fields: " + " ".join(Lease.FIELDS))
    written = 0
    while written < steps:
        limit = Limit(
            rng.choice([20, 90, 150, 300, 2_000]),
            rng.choice([1_000_000, 1_000_000, 10_000_000]),
            rng.choice([1, 1, 3]),
            rng.random() < 0.5,
        )
        lease, store, now, sent = Lease(), Counted(limit), rng.randint(0, 10_000_000), deque()
        print(f"limit {limit.limit} {limit.window} {limit.replicas} {limit.count_denied:d}")

        def show(step, result):
            print(
                f"{step}{' = ' + result if result else ''} |"
                f" {' '.join(str(int(getattr(lease, field))) for field in Lease.FIELDS)}"
            )

        for _ in range(min(75, steps - written)):
            written += 1
            now += rng.choice(
                [1, 50, 300, 300, 1_000, 3_000, 10_000] + [250_000] * (rng.random() < 0.2)
            )
            hits = min(rng.choice([1, 1, 1, 1, 1, rng.randint(1, 50)]), limit.limit)
            if rng.random() < 0.05:
                store.count = 0
            if rng.random() < 0.04:
                store.hit(now, -rng.randint(1, 50))
            if rng.random() < 0.06:
                store.hit(now, rng.randint(1, 1 + limit.limit // rng.choice([2, 20, 20, 20])))
            chance = rng.random()
            if sent and chance < 0.4:
                began, hits, ahead, draws, verdict = (
                    sent.popleft() if rng.random() < 0.8 else sent.pop()
                )
                if rng.random() < 0.07:
                    lease.failed(now)
                    show(f"failed {now}", "")
                    if ahead:
                        lease.draw_lost()
                        show("draw_lost", "")
                else:
                    answer, granted, void, ended = lease.drawn(
                        began, now, hits, ahead, verdict, limit
                    )
                    result = "again" if answer is None else f"{answer[0]:d} {answer[1]}"
                    allowed, used, left = verdict
                    show(
                        f"drawn {began} {now} {hits} {ahead} {allowed:d} {used} {left}",
                        f"{result} {granted} {void} {ended}",
                    )
                if draws:
                    lease.end_draw()
                    show("end_draw", "")
            elif chance < 0.5:
                name = rng.choice(["take", "take_at_once"])
                answer = getattr(lease, name)(now, hits, limit)
                show(f"{name} {now} {hits}", " ".join(map(str, answer)) if answer else "none")
            else:
                turn = lease.turn(now, hits, limit)
                if turn[0] == "held":
                    show(f"turn {now} {hits}", "held " + " ".join(map(str, turn[1])))
                else:
                    show(f"turn {now} {hits}", f"ask {turn[1]} {turn[2]:d}")
                    if turn[1] and rng.random() < 0.4:
                        store.hit(
                            now,
                            min(
                                rng.randint(1, limit.limit),
                                limit.limit - store.count - rng.randint(-2, turn[1]),
                            ),
                        )
                    sent.append(
                        (
                            now,
                            hits,
                            turn[1],
                            turn[2],
                            store.hit(now + rng.choice([0, 90, 20_000]), hits + turn[1]),
                        )
                    )


def main():
    parser = argparse.ArgumentParser(description="The model of leases; see the top of the file.")
    parser.add_argument("--check", type=int, metavar="WORLDS")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--vectors", type=int, metavar="STEPS")
    args = parser.parse_args()
    if args.vectors:
        return vectors(args.vectors)
    if args.check:
        found = check(args.check)
        if found:
            raise SystemExit(f"world {found[0]}: {found[1]}")
        print(
            f"{args.check} worlds: no window admitted more than its limit or lost more than draws"
            " without an answer, and no draw or count broke its bound"
        )
    for mutant, what in MUTANTS.items() if args.mutants else ():
        found = check(200, mutant)
        if not found:
            raise SystemExit(f"{what}: no world notices")
        print(f"{what}: world {found[0]}: {found[1]}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Records the series of real Weirs in Prometheus, in good times and while something fails.

The tests of the alert rules use the recordings.

    tests/monitoring/record.py WEIR PROMETHEUS FOLDER PORT [SCENARIO...]

It takes 25 minutes, in which all scenarios run at once, or only the given ones. Each is a namespace
with one or two replicas of Weir. Its failure lasts from minute 4 to minute 18. At the end the
script writes tests/vectors/alerts/SCENARIO.txt, with the series that the rules query. Prometheus,
on PORT, goes on after that for tests/monitoring/picture.py.

It needs redis-server, and for the scenario `throttled` also root and cgroup v1. Ports from PORT on
must be free.
"""

import json
import math
import os
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

from load import SETTINGS, Load, frame, message

BEGIN, END, TOTAL = 4 * 60, 18 * 60, 25 * 60
INTERVAL = 15

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "deploy/monitoring/alerts.yaml"
VECTORS = REPOSITORY / "tests/vectors/alerts"

LIMITS = """
domain: shop
descriptors:
  - key: user
    rate_limit: { name: users, unit: minute, requests_per_unit: 60, on_store_failure: local }
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: { name: logins, unit: minute, requests_per_unit: 5, on_store_failure: deny }
  - key: api_key
    rate_limit:
      { name: api, unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 20 }
  - key: search
    rate_limit: { name: searches, unit: minute, requests_per_unit: 300, on_store_failure: allow }
  - key: report
    shadow_mode: true
    rate_limit:
      name: reports
      unit: hour
      requests_per_unit: 20
      algorithm: sliding_window_counter
      on_store_failure: local
  - key: session
    rate_limit: { name: sessions, unit: day, requests_per_unit: 100, on_store_failure: local }
  - key: generic_key
    value: budget
    descriptors:
      - key: tenant
        rate_limit:
          { name: budgets, unit: month, requests_per_unit: 2500, notify: [80%, 100%] }
  - key: job
    rate_limit:
      { name: jobs, unit: second, requests_per_unit: 20, algorithm: leaky_bucket, max_delay: 30s }
"""

MISTAKE = LIMITS.replace(
    "unit: minute, requests_per_unit: 60", "unit: minuet, requests_per_unit: 60"
)


def usual():
    """A request of a shop: some users far above their limit, most far below."""
    user = int(random.expovariate(0.25))
    return message(
        "shop",
        random.choices(
            [
                [("user", f"u{user}")],
                [("path", "/login"), ("remote_address", f"10.0.0.{user}")],
                [("api_key", f"k{user % 3}")],
                [("search", "all")],
                [("report", f"r{user}")],
                [("page", "/")],
            ],
            [40, 4, 20, 12, 6, 8],
        )[0],
    )


def sessions():
    """A new key with each request."""
    return message("shop", [("session", str(random.getrandbits(60)))])


def jobs():
    """A call that waits for its turn, and counts as many because its message is long."""
    return message("shop", [("job", "nightly")], [("note", "x" * 60_000)])


def budgets():
    """A tenant has used 80 % of its budget after seven minutes, and all of it after nine."""
    return message("shop", [("generic_key", "budget"), ("tenant", "acme")])


def unknown_domain():
    return message("shopp", [("user", "u1")])


class Redis:
    def __init__(self, folder, port, *arguments):
        self.command = [
            "redis-server",
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(folder),
            *arguments,
        ]
        self.port = port
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def command_line(self, *words, last=None):
        """`last` is a word that is too long for a command line."""
        more = ["-x"] if last else []
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), *more, *words],
            input=last,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


class Crowd:
    """More connections than Weir accepts.

    Weir closes connections that do not answer its pings, and they are opened again.
    """

    def __init__(self, port):
        self.port, self.is_stopped, self.open = port, False, []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while not self.is_stopped:
            for connection in self.open:
                # A reset leaves no port in TIME_WAIT.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            self.open = []
            for number in range(10_300):
                try:
                    connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
                    connection.sendall(
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
                    )
                    self.open.append(connection)
                except OSError:
                    pass
                if number % 20 == 0:
                    time.sleep(0.02)
            time.sleep(10)
        for connection in self.open:
            connection.close()


class Scenario:
    """Replicas of Weir in a namespace of their own, their Redis, their load, and what fails."""

    base = 21000

    def __init__(
        self,
        folder,
        weir,
        namespace,
        replicas=1,
        redis=None,
        settings=(),
        rate=30,
        request=usual,
        begin=None,
        end=None,
    ):
        self.namespace, self.begin, self.end = namespace, begin, end
        self.folder = folder / namespace
        (self.folder / "limits").mkdir(parents=True)
        self.write(LIMITS)
        base, Scenario.base = Scenario.base, Scenario.base + 10
        self.redis = Redis(self.folder, base, *redis) if redis is not None else None
        self.targets, self.weirs, self.loads = [], [], []
        wave = random.uniform(0, 7)
        for replica in range(replicas):
            http, grpc = base + 1 + 2 * replica, base + 2 + 2 * replica
            environment = {
                "HOST": "127.0.0.1",
                "GRPC_HOST": "127.0.0.1",
                "PORT": str(http),
                "GRPC_PORT": str(grpc),
                "DEBUG_PORT": "0",
                "WORKERS": "1",
            }
            if self.redis:
                environment |= {"REDIS_URL": f"127.0.0.1:{base}", "REPLICAS": str(replicas)}
            log = (
                subprocess.PIPE
                if "LOG_DECISIONS" in dict(settings)
                else open(self.folder / f"{replica}.log", "w")
            )
            command = [weir, "serve", "--config", str(self.folder / "limits")]
            self.weirs.append(
                subprocess.Popen(
                    command, env=environment | dict(settings), stderr=log, cwd=self.folder
                )
            )
            self.targets.append(
                {
                    "targets": [f"127.0.0.1:{http}"],
                    "labels": {"namespace": namespace, "pod": f"ratelimit-{replica}"},
                }
            )
            self.loads.append(
                Load(grpc, lambda: rate * (1 + 0.3 * math.sin(wave + time.time() / 150)), request)
            )
        self.grpc = grpc
        self.group = pathlib.Path(f"/sys/fs/cgroup/cpu/weir-record-{self.weirs[0].pid}")

    def write(self, limits):
        """As a ConfigMap does: the new file replaces the old one at once."""
        part = self.folder / ".part"
        part.write_text(limits)
        part.rename(self.folder / "limits" / "shop.yaml")

    def write_overrides(self, overrides):
        """As an editor does: one without a domain cannot be read."""
        (self.folder / "overrides.json").write_text(json.dumps({"overrides": overrides}))

    def add_load(self, rate, request, connections=2, timeout="1S"):
        self.loads.append(Load(self.grpc, lambda: rate, request, connections, timeout))

    def end_last_load(self):
        self.loads.pop().is_stopped = True

    def throttle(self, quota_us):
        """Bounds the CPU time in each 200 ms; -1 for no bound."""
        self.group.mkdir(exist_ok=True)
        (self.group / "cpu.cfs_period_us").write_text("200000")
        (self.group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (self.group / "cgroup.procs").write_text(str(self.weirs[0].pid))

    def fill_redis(self):
        """Fills 95 % of the memory with keys of another program.

        Each takes half a MiB, with the overhead of the allocator.
        """
        free = self.redis_memory("maxmemory") * 0.95 - self.redis_memory("used_memory")
        for number in range(int(free / (1 << 19))):
            self.redis.command_line("SET", f"other:{number}", last="x" * 520_000)

    def redis_memory(self, name):
        lines = self.redis.command_line("INFO", "memory").splitlines()
        return int(next(line.split(":")[1] for line in lines if line.startswith(name + ":")))

    def stop(self):
        for load in self.loads:
            load.is_stopped = True
        for weir in self.weirs:
            weir.kill()
            weir.wait()
        if self.group.exists():
            self.group.rmdir()
        if self.redis:
            self.redis.kill()


def slow_down(scenario):
    """Redis sleeps for 15 ms of each 40 ms: DEBUG SLEEP, from a script of its own."""
    program = (
        "while redis-cli -p %d DEBUG SLEEP 0.015 >/dev/null; do sleep 0.025; done"
        % scenario.redis.port
    )
    scenario.slow = subprocess.Popen(["sh", "-c", program])


# Differences between the scenarios.
SCENARIOS = {
    "memory": dict(),
    "redis": dict(replicas=2, redis=[]),
    "outage": dict(
        replicas=2,
        redis=[],
        rate=60,
        begin=lambda it: it.redis.kill(),
        end=lambda it: it.redis.start(),
    ),
    "mistake": dict(begin=lambda it: it.write(MISTAKE), end=lambda it: it.write(LIMITS)),
    "unknown": dict(
        begin=lambda it: it.add_load(5, unknown_domain), end=lambda it: it.end_last_load()
    ),
    "full": dict(
        settings=[("MEMORY_MAX_KEYS", "1000")],
        begin=lambda it: it.add_load(40, sessions),
        end=lambda it: it.end_last_load(),
    ),
    "redis-full": dict(
        redis=["--maxmemory", "20mb", "--maxmemory-policy", "noeviction"],
        begin=lambda it: it.fill_redis(),
        end=lambda it: it.redis.command_line("FLUSHALL"),
    ),
    "redis-evicts": dict(
        redis=["--maxmemory", "3mb", "--maxmemory-policy", "volatile-ttl"],
        begin=lambda it: it.add_load(60, sessions),
        end=lambda it: (it.end_last_load(), it.redis.command_line("FLUSHALL")),
    ),
    "slow": dict(
        redis=["--enable-debug-command", "yes"],
        begin=lambda it: slow_down(it),
        end=lambda it: it.slow.kill(),
    ),
    "waiting": dict(
        begin=lambda it: it.add_load(24, jobs, 6, "60S"), end=lambda it: it.end_last_load()
    ),
    "throttled": dict(
        begin=lambda it: (it.throttle(1000), it.add_load(900, usual, 6, "20m")),
        end=lambda it: (it.end_last_load(), it.throttle(-1)),
    ),
    "crowded": dict(
        begin=lambda it: it.loads.append(Crowd(it.grpc)), end=lambda it: it.end_last_load()
    ),
    "desk": dict(
        settings=[("OVERRIDES_FILE", "overrides.json")],
        begin=lambda it: (it.write_overrides([{"kind": "block"}]), it.add_load(5, budgets)),
        end=lambda it: (it.write_overrides([]), it.end_last_load()),
    ),
    "log": dict(settings=[("LOG_LEVEL", "debug"), ("LOG_DECISIONS", "*")], rate=30),
}


def record(weir, prometheus, folder, port, *names):
    folder = pathlib.Path(folder)
    Scenario.base = int(port) + 10
    scenarios = [Scenario(folder, weir, name, **SCENARIOS[name]) for name in names or SCENARIOS]
    targets = [target for scenario in scenarios for target in scenario.targets]
    configuration = {
        "global": {
            "scrape_interval": f"{INTERVAL}s",
            "scrape_timeout": "10s",
            "evaluation_interval": f"{INTERVAL}s",
        },
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "ratelimit", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    watcher = subprocess.Popen(
        [
            prometheus,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=open(folder / "prometheus.log", "w"),
    )
    start = time.time()
    print(
        f"Prometheus: http://127.0.0.1:{port}, process {watcher.pid}; from {start:.0f}", flush=True
    )
    for at, event in [(BEGIN, "begin"), (END, "end"), (TOTAL, "stop")]:
        time.sleep(max(0, start + at - time.time()))
        for scenario in scenarios:
            action = getattr(scenario, event)
            try:
                action(scenario) if event != "stop" and action else event == "stop" and action()
            except Exception as error:
                print(f"{scenario.namespace}: {event}: {error!r}", flush=True)
        print(f"{time.time() - start:.0f} s: {event}", flush=True)
    for scenario in scenarios:
        export(f"http://127.0.0.1:{port}", start, scenario.namespace)
    print("Prometheus goes on, so that it can be asked; end it with: kill", watcher.pid)


def in_promtools_notation(values):
    """Values of a series, one for each interval and None for none, as `1 _ 3+0x2 4+1x5`.

    Runs of equal steps are written as one.
    """
    parts, at = [], 0
    while at < len(values):
        if values[at] is None:
            parts.append("_")
            at += 1
            continue
        end = at + 1
        while (
            end < len(values)
            and None not in (values[end], values[end - 1])
            and values[end] - values[end - 1] == values[at + 1] - values[at]
        ):
            end += 1
        text = f"{values[at]:.10g}"
        if end - at > 2:
            step = values[at + 1] - values[at]
            parts.append(f"{text}{'-' if step < 0 else '+'}{abs(step):.10g}x{end - at - 1}")
            at = end
        else:
            parts.append(text)
            at += 1
    return " ".join(parts)


def export(address, start, namespace):
    """Writes the series of one scenario whose metrics are in the rules."""
    metrics = sorted(
        set(
            re.findall(
                r"\b(?:weir|ratelimit)_\w+",
                "\n".join(
                    line for line in RULES.read_text().splitlines() if "expr" in line or "(" in line
                ),
            )
        )
    )
    times = [start + at for at in range(INTERVAL, TOTAL - 5, INTERVAL)]
    lines = [f"# Written by tests/monitoring/record.py: {namespace}, every {INTERVAL} seconds."]
    for metric in metrics:
        query = urllib.parse.urlencode(
            {
                "query": f'{metric}{{namespace="{namespace}"}}',
                "start": times[0],
                "end": times[-1],
                "step": INTERVAL,
            }
        )
        with urllib.request.urlopen(f"{address}/api/v1/query_range?{query}", timeout=60) as answer:
            found = json.load(answer)["data"]["result"]
        for series in found:
            labels = ",".join(
                f'{name}="{value}"'
                for name, value in series["metric"].items()
                if name not in ("__name__", "instance", "commit")
            )
            known = {round(at - start): float(value) for at, value in series["values"]}
            values = [known.get(round(at - start)) for at in times]
            if metric.endswith("_bucket") and not any(values):
                continue
            lines.append(f"{metric}{{{labels}}}\t{in_promtools_notation(values)}")
    VECTORS.mkdir(exist_ok=True)
    (VECTORS / f"{namespace}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])

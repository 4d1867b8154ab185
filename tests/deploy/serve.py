#!/usr/bin/env python3
"""Runs the rendered chart without a cluster.

That is Weir with the variables and files of its pod, the Redis that they name, and `helm test`.

    tests/deploy/serve.py [CASE...]

Only addresses are replaced: of Services and of Redis by loopback, and of mounted folders by a
temporary one. WEIR_TEST_WEIR is the binary.
"""

import os
import re
import subprocess
import sys
import urllib.request

# No folder of compiled files next to the scripts.
sys.dont_write_bytecode = True

from cases import CASES
from helm import RELEASE, REPOSITORY, rendered
from servers import Servers, cli, eventually, free_port

WEIR = os.environ.get("WEIR_TEST_WEIR") or str(REPOSITORY / "target/debug/weir")


class Pod:
    """Weir as the pod of a rendered chart runs it."""

    def __init__(self, servers, made, addresses, secrets):
        self.made, self.servers = made, servers
        self.root = servers.folder / "root"
        self.ports = {
            "grpc": free_port(),
            "http": free_port(),
            "debug": free_port(),
            "metrics": free_port(),
        }
        self.mount(made.pod, made.pod["containers"][0], secrets, self.root)
        self.environment = {
            name: self.here(value, addresses)
            for name, value in made.environment.items()
            if value is not None
        }
        # A name that can be resolved without a cluster.
        if self.environment.get("REPLICAS", "").startswith("dns:"):
            self.environment["REPLICAS"] = "dns:localhost"
        own = {
            "HOST": "127.0.0.1",
            "GRPC_HOST": "127.0.0.1",
            "PORT": self.ports["http"],
            "GRPC_PORT": self.ports["grpc"],
            "DEBUG_PORT": self.ports["debug"],
        }
        if "PROMETHEUS_ADDR" in self.environment:
            own["PROMETHEUS_ADDR"] = f"127.0.0.1:{self.ports['metrics']}"
        clash = set(own) & set(self.environment) - {"PROMETHEUS_ADDR"}
        assert not clash, f"{clash} would have to agree with ports and probes"
        self.environment |= {name: str(value) for name, value in own.items()}
        self.process, self.log = servers.spawn(WEIR, "serve", environment=self.environment)
        eventually(
            "Weir listens",
            lambda: (
                self.alive()
                and self.weir("health")[0] in (0, 1)
                and "no service" not in self.weir("health")[1]
            ),
        )

    def alive(self):
        assert self.process.poll() is None, f"weir ended:\n{self.log.read_text()}"
        return True

    def mount(self, pod, container, secrets, root):
        """Writes the files of the volumes where the container has them."""
        maps = {one["metadata"]["name"]: one.get("data", {}) for one in self.made.all("ConfigMap")}
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            folder = root / mount["mountPath"].lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                files = maps[volume["configMap"]["name"]]
            elif "secret" in volume:
                secret = secrets[volume["secret"]["secretName"]]
                items = volume["secret"].get("items") or [
                    {"key": key, "path": key} for key in secret
                ]
                files = {item["path"]: secret[item["key"]] for item in items}
            else:
                files = {}
            for name, text in files.items():
                (folder / name).write_text(text)

    def here(self, value, addresses):
        """A value with the folders and addresses of this machine."""
        for address, port in addresses.items():
            value = value.replace(address, f"127.0.0.1:{port}")
        path = self.root / value.lstrip("/")
        return (
            str(path)
            if value.startswith("/")
            and (path.exists() or path.parent.exists() and path.parent != self.root)
            else value
        )

    def weir(self, *arguments):
        """A command of Weir in the pod. Returns its exit code and output."""
        ended = subprocess.run(
            [WEIR, *arguments], env=self.environment, capture_output=True, text=True, timeout=60
        )
        return ended.returncode, ended.stdout + ended.stderr

    def healthy(self):
        eventually(
            f"Weir is healthy\n{self.log.read_text()}",
            lambda: self.alive() and self.weir("health")[0] == 0,
        )

    def ready(self):
        """Asks as the readiness probe does."""
        probe = self.made.pod["containers"][0]["readinessProbe"]
        code, output = self.weir("health", *(["--grpc"] if "grpc" in probe else []))
        assert code == 0, output
        if "grpc" in probe:
            assert probe["grpc"]["port"] == 8081

    def hit(self, *arguments):
        """`weir hit` in the domain shop. Returns the exit code and the output."""
        return self.weir(
            "hit",
            f"--address=127.0.0.1:{self.ports['grpc']}",
            "--domain=shop",
            "--timeout-ms=10000",
            *arguments,
        )

    def helm_test(self, secrets):
        """The commands of the pods of `helm test`."""
        for number, pod in enumerate(self.made.tests):
            container = pod["containers"][0]
            root = self.servers.folder / f"test-{number}"
            self.mount(pod, container, secrets, root)
            name = self.made.one("Deployment", "service")["metadata"]["name"]
            arguments = []
            for argument in container["args"]:
                key, sign, path = argument.partition("=")
                if sign and path.startswith("/secrets/"):
                    argument = f"{key}={root}{path}"
                elif argument.startswith("/"):
                    argument = f"{root}{argument}"
                argument = {
                    f"--host={name}": "--host=127.0.0.1",
                    "--port=8080": f"--port={self.ports['http']}",
                    f"--address={name}:8081": f"--address=127.0.0.1:{self.ports['grpc']}",
                }.get(argument, argument)
                arguments.append(argument)
            if "--tls" in arguments and not any(
                argument.startswith("--server-name") for argument in arguments
            ):
                # The certificate is for the Service.
                arguments.insert(1, f"--server-name={name}")
            ended = subprocess.run(
                [WEIR, *arguments], env={}, capture_output=True, text=True, timeout=60
            )
            assert ended.returncode == 0, (
                f"helm test: {container['name']}: {arguments}: {ended.stdout}{ended.stderr}"
            )


def serve(name, servers, addresses=None, secrets=None):
    """Runs a case until it is healthy, ready, and passes `helm test`."""
    made = rendered(CASES[name])
    pod = Pod(servers, made, addresses or {}, secrets or {})
    pod.healthy()
    pod.ready()
    pod.helm_test(secrets or {})
    if pod.environment.get("REPLICAS") == "dns:localhost":
        eventually(
            "Weir counts its replicas",
            lambda: re.search(
                r'^weir_replicas_lookups_total\{result="answered"\} [1-9]', scrape(pod), re.M
            ),
        )
    useless = [line for line in pod.log.read_text().splitlines() if "no effect" in line]
    assert not useless, f"the chart sets what has no effect: {useless}"
    return pod


def enforces(pod, *arguments):
    """The limit of cases.SHOP: three hits of a user an hour."""
    code, output = pod.hit(*arguments, "user=a", "--count=3")
    assert code == 0, output
    code, output = pod.hit(*arguments, "user=a")
    assert code == 3, f"the fourth hit: {output}"


def memory(servers):
    enforces(serve("memory", servers))


def bundled(servers):
    """With the bundled Redis's own arguments, and the example limits."""
    container = rendered({}).one("Deployment", "redis")["spec"]["template"]["spec"]["containers"][0]
    port = servers.redis(*container["args"])
    pod = serve("default", servers, {f"{RELEASE}-redis:6379": port})
    code, output = pod.weir(
        "hit",
        f"--address=127.0.0.1:{pod.ports['grpc']}",
        "--domain=ratelimit",
        "remote_address=10.0.0.1",
    )
    assert code == 0 and "99 of 100 per minute left (per-client)" in output, output
    # The counter, and the marker by which Weir notices lost counters.
    assert (
        len(cli(port, "keys", "*").split()) == 2
        and cli(port, "config", "get", "maxmemory").split()[1] == "209715200"
    )


def single(servers):
    """A user of an ACL, a password from a file, a database, and a prefix of keys."""
    port = servers.redis("--requirepass", "other")
    assert (
        cli(port, "-a", "other", "acl", "setuser", "weir", "on", ">hunter2", "~edge_*", "+@all")
        == "OK"
    )
    pod = serve(
        "single",
        servers,
        {"redis.example:6379": port},
        {"redis-login": {"pass": "hunter2", "unused": "x"}},
    )
    enforces(pod)
    keys = cli(port, "-a", "other", "-n", "3", "keys", "*").split()
    assert keys and all(key.startswith("edge_") for key in keys), keys


def single_tls(servers):
    authority = servers.authority("redis-authority")
    certificate = servers.certificate(authority, "127.0.0.1")
    files = {name: servers.folder / f"redis-{name}" for name in certificate}
    for name, text in certificate.items():
        files[name].write_text(text)
    port = servers.redis(
        "--port",
        "0",
        "--tls-port",
        str(free_port()),
        "--tls-cert-file",
        files["tls.crt"],
        "--tls-key-file",
        files["tls.key"],
        "--tls-ca-cert-file",
        files["ca.crt"],
        "--tls-auth-clients",
        "yes",
        "--requirepass",
        "hunter2",
    )
    secrets = {
        "redis-login": {"password": "hunter2"},
        "redis-ca": {"ca.crt": certificate["ca.crt"]},
        "redis-client": servers.certificate(authority, "weir.example"),
    }
    pod = serve("single-tls", servers, {"redis.example:6380": port}, secrets)
    enforces(pod)
    assert pod.environment["REDIS_TLS"] == "true" and "Redis outage" not in pod.log.read_text(), (
        pod.log.read_text()
    )


def sentinel(servers):
    primary = servers.redis("--requirepass", "hunter2")
    watches = [servers.sentinel(primary, "hunter2", "hunter3") for _ in range(2)]
    addresses = {f"sentinel-{number}.example:26379": port for number, port in enumerate(watches)}
    pod = serve(
        "sentinel",
        servers,
        addresses,
        {"redis-login": {"password": "hunter2"}, "sentinel-login": {"password": "hunter3"}},
    )
    eventually(
        "Weir uses the primary",
        lambda: (
            'weir_redis_up{redis="main"' in scrape(pod)
            and '} 1'
            in [line for line in scrape(pod).splitlines() if line.startswith("weir_redis_up")][0]
        ),
    )
    enforces(pod)
    assert cli(primary, "-a", "hunter2", "-n", "1", "keys", "*"), "nothing is counted in database 1"


def cluster(servers):
    """And a second Redis for limits per second."""
    main, second = servers.cluster(), servers.redis("--requirepass", "hunter2")
    addresses = {
        "cluster-0.example:6379": main,
        "cluster-1.example:6379": main,
        "second.example:6379": second,
    }
    pod = serve("cluster", servers, addresses, {"second-login": {"password": "hunter2"}})
    eventually("Weir knows the cluster", lambda: pod.hit("--hits=0", "user=b")[0] == 0)
    enforces(pod)
    code, output = pod.weir(
        "hit", f"--address=127.0.0.1:{pod.ports['grpc']}", "--domain=second", "user=a"
    )
    assert code == 0, output
    assert cli(main, "keys", "*") and cli(second, "-a", "hunter2", "keys", "*"), (
        "one of the two counts nothing"
    )


def tls(servers):
    """Weir verifies clients: `helm test` has a certificate; a client without one is rejected."""
    authority, clients = servers.authority("grpc-authority"), servers.authority("client-authority")
    secrets = {
        "grpc-certificate": servers.certificate(authority, RELEASE, f"{RELEASE}.edge.svc"),
        "client-ca": {"ca.crt": clients[0].read_text()},
        "client-certificate": servers.certificate(clients, "envoy.example"),
    }
    pod = serve("tls", servers, {}, secrets)
    code, output = pod.hit(
        "--tls", f"--cacert={authority[0]}", f"--server-name={RELEASE}", "user=b"
    )
    assert code == 1, f"a client without a certificate: {output}"


def settings(servers):
    """Numbers and booleans of values arrive as Weir reads them."""
    made = rendered(CASES["everything-of-pods"])
    expected = {
        "MEMORY_MAX_KEYS": "2000000",
        "NEAR_LIMIT_RATIO": "0.75",
        "SHADOW_MODE": "true",
        "WORKERS": "2",
        "DRAIN_DELAY": "1m",
    }
    assert expected.items() <= made.environment.items() and "LOG_FORMAT" not in made.environment, (
        made.environment
    )


def reference(servers):
    """The metrics under the names of envoyproxy/ratelimit, on their port."""
    redis = servers.redis()
    pod = serve("pod-monitor", servers, {f"{RELEASE}-redis:6379": redis})
    assert "ratelimit_service_total_requests" in scrape(pod, "metrics")


def scrape(pod, port="http"):
    with urllib.request.urlopen(
        f"http://127.0.0.1:{pod.ports[port]}/metrics", timeout=10
    ) as answer:
        return answer.read().decode()


RUNS = {
    run.__name__: run
    for run in (memory, bundled, single, single_tls, sentinel, cluster, tls, settings, reference)
}


def main(names):
    unknown = set(names) - set(RUNS)
    if unknown:
        sys.exit(f"{__doc__}\nno case {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    failed = []
    for name in names or RUNS:
        with Servers() as servers:
            try:
                RUNS[name](servers)
                print(f"{name}: ok", flush=True)
            except Exception as error:
                logs = "\n".join(log.read_text()[-2000:] for log in servers.folder.glob("log-*"))
                print(f"{name}: FAILED: {error!r}\n{logs}", flush=True)
                failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Servers and certificates for the rendered chart: Redis in its forms.

All listen on loopback only, and end with the test.
"""

import contextlib
import pathlib
import socket
import subprocess
import tempfile
import time

# The longest wait for a process that starts on a busy machine.
PATIENCE_SECS = 30


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(what, condition):
    """Waits for a condition, and returns what it returned."""
    end = time.monotonic() + PATIENCE_SECS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE_SECS} s: {what}")


class Servers(contextlib.ExitStack):
    """Everything that one case needs; a context that ends all of it."""

    def __init__(self):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def spawn(self, *arguments, environment=None):
        """Starts a process. Returns it and the file of its output."""
        log = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        output = self.enter_context(log.open("wb"))
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        self.callback(process.wait, timeout=PATIENCE_SECS)
        self.callback(process.kill)
        return process, log

    def redis(self, *arguments, port=None):
        """A Redis with these arguments, which has answered a connection. Returns its port."""
        port = port or free_port()
        home = self.folder / f"redis-{port}"
        home.mkdir()
        plain = [] if "--tls-port" in arguments else ["--port", port]
        process, log = self.spawn(
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--dir",
            home,
            *plain,
            "--save",
            "",
            "--appendonly",
            "no",
            *arguments,
        )
        listens = (
            int(arguments[arguments.index("--tls-port") + 1]) if "--tls-port" in arguments else port
        )
        self.opened(listens, process, log)
        return listens

    def sentinel(self, primary, password, own_password):
        """A Sentinel of the primary at this port, with passwords for both. Returns its port."""
        port = free_port()
        file = self.folder / f"sentinel-{port}.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\nrequirepass {own_password}\nsentinel monitor primary"
            f" 127.0.0.1 {primary} 1\nsentinel auth-pass primary {password}\n"
        )
        process, log = self.spawn("redis-server", file, "--sentinel")
        self.opened(port, process, log)
        return port

    def cluster(self):
        """A cluster of one server, which has all slots. Returns its port."""
        # By default its other port is this one and 10000, which may be none.
        port = self.redis("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        assert cli(port, "cluster", "addslotsrange", "0", "16383") == "OK"
        eventually(
            "the cluster is ready", lambda: "cluster_state:ok" in cli(port, "cluster", "info")
        )
        return port

    def opened(self, port, process, log):
        def answers():
            if process.poll() is not None:
                raise AssertionError(f"{process.args[0]} ended: {log.read_text()}")
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        eventually(f"{process.args[0]} listens", answers)

    def authority(self, name):
        """A certificate authority. Returns its certificate and its key."""
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.crt"
        openssl(
            "req",
            "-x509",
            *NEW_KEY,
            key,
            "-out",
            certificate,
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            "keyUsage=critical,keyCertSign",
        )
        return certificate, key

    def certificate(self, authority, *names):
        """A certificate for these names, as a Secret of the type kubernetes.io/tls."""
        stem = self.folder / f"certificate-{names[0]}"
        request, certificate, key, extensions = (
            stem.with_suffix(suffix) for suffix in (".req", ".crt", ".key", ".ext")
        )
        openssl(
            "req",
            *NEW_KEY,
            key,
            "-out",
            request,
            "-subj",
            f"/CN={names[0]}",
        )
        kinds = ", ".join(
            f"IP:{name}" if name.replace(".", "").isdigit() else f"DNS:{name}" for name in names
        )
        extensions.write_text(
            f"subjectAltName={kinds}\n"
            "extendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:false\n"
        )
        openssl(
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            authority[0],
            "-CAkey",
            authority[1],
            "-days",
            "2",
            "-out",
            certificate,
            "-extfile",
            extensions,
        )
        return {
            "tls.crt": certificate.read_text(),
            "tls.key": key.read_text(),
            "ca.crt": authority[0].read_text(),
        }


# Arguments of `openssl req` for a new key, whose file follows.
NEW_KEY = (
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
    "-keyout",
)


def openssl(*arguments):
    ended = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_SECS
    )
    assert ended.returncode == 0, ended.stderr


def cli(port, *arguments):
    """The output of redis-cli."""
    ended = subprocess.run(
        ["redis-cli", "-p", str(port), "--no-auth-warning", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECS,
    )
    return ended.stdout.strip()

"""A small load of calls to ShouldRateLimit, as HTTP/2 frames: for recordings, not for measurements.

It needs only Python's standard library. Answers are read and not judged: Weir's own metrics have
the results.
"""

import random
import socket
import struct
import threading
import time

PATH = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind, flags, stream, payload):
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def varint(number):
    """As protobuf writes numbers."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def literal(name, value):
    """A header field without indexing: calls do not depend on each other."""
    return b"".join([b"\0", bytes([len(name)]), name, bytes([len(value)]), value])


def field(number, payload):
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def message(domain, *descriptors):
    """A RateLimitRequest; a descriptor is a list of keys and values."""
    entries = lambda descriptor: b"".join(
        field(1, field(1, key.encode()) + field(2, value.encode())) for key, value in descriptor
    )
    return field(1, domain.encode()) + b"".join(
        field(2, entries(descriptor)) for descriptor in descriptors
    )


class Connection:
    """One connection that is opened again when it ends."""

    def __init__(self, port, timeout):
        self.port = port
        fields = [
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"grpc-timeout", timeout.encode()),
        ]
        self.headers = b"\x83\x86" + b"".join(
            literal(name, value)
            for name, value in [(b":path", PATH), (b":authority", b"weir"), *fields]
        )
        self.socket = None

    def open(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.stream = 1
        unbounded = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1)) + frame(
            WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)
        )
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + unbounded)
        threading.Thread(target=self.read, args=(self.socket,), daemon=True).start()

    def read(self, connection):
        """Takes all answers, and acknowledges what has to be."""
        buffer = b""
        try:
            connection.settimeout(None)
            while received := connection.recv(1 << 16):
                buffer += received
                while len(buffer) >= 9 and len(buffer) >= 9 + (
                    length := int.from_bytes(buffer[:3], "big")
                ):
                    kind, flags, payload, buffer = (
                        buffer[3],
                        buffer[4],
                        buffer[9 : 9 + length],
                        buffer[9 + length :],
                    )
                    if kind in (SETTINGS, PING) and not flags & ACK:
                        connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
                    elif kind == GOAWAY:
                        raise OSError("the server closes")
        except OSError:
            pass
        connection.close()
        if self.socket is connection:
            self.socket = None

    def send(self, requests):
        try:
            if self.socket is None:
                self.open()
            out = b""
            for request in requests:
                body = b"\0" + struct.pack(">I", len(request)) + request
                out += frame(HEADERS, END_HEADERS, self.stream, self.headers)
                for begin in range(0, len(body), 1 << 14):
                    part = body[begin : begin + (1 << 14)]
                    out += frame(
                        DATA, END_STREAM if begin + len(part) == len(body) else 0, self.stream, part
                    )
                self.stream += 2
            self.socket.sendall(out)
        except (OSError, AttributeError):
            self.socket = None


class Load:
    """Sends `rate()` requests per second, made by `request()`, over connections, until stopped."""

    def __init__(self, port, rate, request, connections=2, timeout="1S"):
        self.rate, self.request = rate, request
        self.connections = [Connection(port, timeout) for _ in range(connections)]
        self.is_stopped = False
        threading.Thread(target=self.run, daemon=True).start()

    def run(self, interval=0.05):
        owed = 0.0
        while not self.is_stopped:
            time.sleep(interval)
            owed += self.rate() * interval
            count, owed = int(owed), owed % 1
            if count:
                random.choice(self.connections).send([self.request() for _ in range(count)])

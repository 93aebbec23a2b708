#!/usr/bin/env python3
"""Stock ZeroMQ clients against the echo example.

Usage: zmq_echo.py ECHO RESULTS. ECHO is the example's program, started here on a free port of the loopback
interface and stopped at the end. Needs the package pyzmq. Appends one row per check to RESULTS, exits with 1
if any failed. No check waits longer than PATIENCE for a peer that owes it something.
"""

import contextlib
import faulthandler
import random
import socket
import struct
import subprocess
import sys
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

PATIENCE = 20
MESSAGES = 10_000
ROUNDS = 5
MIB = 1 << 20
# Sizes at which a length or a buffer changes its kind; two thirds small, as traffic is, up to 1 MiB.
EDGES = [0, 1, 254, 255, 256, 2047, 2048, 2049, 4096, 16384, 65535, 65536, 131072, MIB - 1, MIB]
KINDS = {
    "NotFound", "AlreadyExists", "NotConfigured", "Rejected", "Unavailable", "CapacityExceeded", "DeadlineExceeded",
    "ShuttingDown", "Protocol", "InvalidOperation", "Remote", "Config", "Internal",
}  # fmt: skip

CHECKS = []


def check(sockets, sizes, client=f"pyzmq {zmq.__version__} / libzmq {zmq.zmq_version()}"):
    def note(function):
        CHECKS.append((function, client, sockets, sizes))
        return function

    return note


def same(found, expected, what):
    if found != expected:
        shown = [f if len(str(f)) < 200 else f"{len(f)} bytes or frames" for f in (found, expected)]
        raise AssertionError(f"{what}: {shown[0]!r} instead of {shown[1]!r}")


def demand(truth, what):
    if not truth:
        raise AssertionError(what)


class Bytes:
    """Payloads of any size up to 1 MiB that differ from each other, for the price of a slice."""

    def __init__(self):
        self.pool = random.Random(37).randbytes(2 * MIB)

    def __call__(self, number, size):
        at = (number * 7919) % MIB
        return self.pool[at : at + size]


payload = Bytes()


def size_of(number):
    if number % 50 == 0:
        return EDGES[(number // 50) % len(EDGES)]
    rng = random.Random(number)
    return rng.randrange(0, 512) if rng.random() < 0.7 else int(2 ** rng.uniform(9, 16))


@contextlib.contextmanager
def connected(kind, endpoint, **options):
    context = zmq.Context()
    s = context.socket(kind)
    s.linger = 0
    s.rcvtimeo = s.sndtimeo = PATIENCE * 1000
    for name, value in options.items():
        s.setsockopt(getattr(zmq, name), value)
    s.connect(endpoint)
    try:
        yield s
    finally:
        s.disable_monitor()
        context.destroy(linger=0)


def refused(answer, kind=None):
    """An error answer: `error`, the name of a kind, a sentence."""
    same(len(answer), 3, "frames of an error answer")
    same(answer[0], b"error", "first frame")
    demand(answer[1].decode() in KINDS, f"{answer[1]!r} is no error kind")
    demand(kind is None or answer[1].decode() == kind, f"{answer[1]!r} instead of {kind}")
    demand(len(answer[2].decode()) > 3, f"no sentence: {answer[2]!r}")


@check("DEALER", "5 B")
def dealer_gets_its_envelope_back(endpoint):
    with connected(zmq.DEALER, endpoint) as s:
        s.send_multipart([b"req-17", b"", b"echo", b"hello"])
        same(s.recv_multipart(), [b"req-17", b"", b"ok", b"hello"], "answer")
        s.send_multipart([b"", b"echo", b"no id"])
        same(s.recv_multipart(), [b"", b"ok", b"no id"], "answer")
        deep = [b"a", b"bb", b"\x00", b"x" * 300]
        s.send_multipart([*deep, b"", b"echo", b""])
        same(s.recv_multipart(), [*deep, b"", b"ok", b""], "answer to four frames of envelope and an empty payload")


@check("REQ", "0 B to 1 MiB")
def req_gets_ok(endpoint):
    with connected(zmq.REQ, endpoint) as s:
        for number, size in enumerate(EDGES):
            body = payload(number, size)
            s.send_multipart([b"echo", body])
            same(s.recv_multipart(), [b"ok", body], f"{size} bytes")


@check("DEALER, REQ", "unknown route")
def unknown_routes_are_answered(endpoint):
    with connected(zmq.DEALER, endpoint) as s:
        for route in (b"nobody.home", b"nobody/home", b"", b"\xff\xfe"):
            s.send_multipart([b"17", b"", route, b"x"])
            answer = s.recv_multipart()
            same(answer[:2], [b"17", b""], "envelope")
            refused(answer[2:], "NotFound" if route.startswith(b"nobody") else None)
    with connected(zmq.REQ, endpoint) as s:
        s.send_multipart([b"nobody.home", b"x"])
        refused(s.recv_multipart(), "NotFound")
        s.send_multipart([b"echo", b"still there"])
        same(s.recv_multipart(), [b"ok", b"still there"], "after an error answer")


@check("DEALER, REQ", "wrong number of frames")
def malformed_requests_are_answered(endpoint):
    with connected(zmq.DEALER, endpoint) as s:
        for body in ([b"echo"], [b"echo", b"a", b"b"], [b"echo", b"", b"", b""]):
            s.send_multipart([b"17", b"", *body])
            answer = s.recv_multipart()
            same(answer[:2], [b"17", b""], "envelope")
            refused(answer[2:])
    with connected(zmq.REQ, endpoint) as s:
        for body in ([b"echo"], [b""], [b"echo", b"a", b"b"]):
            s.send_multipart(body)
            refused(s.recv_multipart())
        s.send_multipart([b"echo", b"still there"])
        same(s.recv_multipart(), [b"ok", b"still there"], "after malformed requests")


@check("DEALER", f"{ROUNDS} x {MESSAGES} of 0 B to 1 MiB, pipelined")
def pipelined_bytes_are_the_same(endpoint):
    # Links stop and go on at marks, and whether one that should go on does is a matter of timing.
    return f"{sum(pipeline(endpoint) for _ in range(ROUNDS)) / 1e6:.0f} MB"


def pipeline(endpoint):
    sent, pending, total = 0, {}, 0
    with connected(zmq.DEALER, endpoint) as s:
        while sent < MESSAGES or pending:
            if sent < MESSAGES and len(pending) < 200:
                size = size_of(sent)
                pending[sent] = size
                s.send_multipart([struct.pack(">I", sent), b"", b"echo", payload(sent, size)])
                sent += 1
                if not s.poll(0):
                    continue
            number, empty, word, body = s.recv_multipart()
            number = struct.unpack(">I", number)[0]
            size = pending.pop(number)  # a second answer finds nothing
            same((empty, word), (b"", b"ok"), f"answer {number}")
            same(len(body), size, f"answer {number}: length")
            demand(body == payload(number, size), f"answer {number}: other bytes")
            total += size
    return total


@check("8 DEALER at once", "200 of 0 B to 64 KiB each")
def clients_do_not_get_each_others_answers(endpoint):
    context = zmq.Context()
    sockets = []
    for _ in range(8):
        s = context.socket(zmq.DEALER)
        s.linger, s.rcvtimeo, s.sndtimeo = 0, PATIENCE * 1000, PATIENCE * 1000
        s.setsockopt(zmq.IDENTITY, b"the-same-name")  # a label, never a key
        s.connect(endpoint)
        sockets.append(s)
    try:
        bodies = [[payload(c * 1000 + n, min(size_of(c + n), 65536)) for n in range(200)] for c in range(8)]
        for n in range(200):
            for c, s in enumerate(sockets):
                s.send_multipart([bytes([c, n]), b"", b"echo", bodies[c][n]])
        for c, s in enumerate(sockets):
            answers = {}
            for _ in range(200):
                label, _, word, body = s.recv_multipart()
                same((label[0], word), (c, b"ok"), "answer")
                answers[label[1]] = body
            same([answers.get(n) for n in range(200)] == bodies[c], True, f"bytes of client {c}")
    finally:
        context.destroy(linger=0)


@check("PUSH", "400 of 256 KiB, one-way")
def one_way_messages_are_taken(endpoint):
    # Far more than all buffers between the two: the last send returns only if the others were read.
    with connected(zmq.PUSH, endpoint, SNDHWM=4, SNDBUF=65536) as s:
        for number in range(400):
            s.send_multipart([b"echo", payload(number, 256 << 10)])
        s.send_multipart([b"nobody/home", b"counted, not answered"])
        s.send_multipart([b"one frame only"])
        s.send_multipart([b"echo", b"the connection lives"])
    with connected(zmq.DEALER, endpoint) as s:
        s.send_multipart([b"echo", b"one-way: no delimiter, no answer"])
        s.send_multipart([b"1", b"", b"echo", b"x"])
        same(s.recv_multipart(), [b"1", b"", b"ok", b"x"], "the first answer after a one-way message")


@check("DEALER, heartbeats", "every 100 ms, 2 s of silence")
def heartbeats_keep_the_connection(endpoint):
    options = {"HEARTBEAT_IVL": 100, "HEARTBEAT_TIMEOUT": 400, "HEARTBEAT_TTL": 1000}
    with connected(zmq.DEALER, endpoint, **options) as s:
        monitor = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        s.send_multipart([b"1", b"", b"echo", b"before"])
        same(s.recv_multipart()[-1], b"before", "answer")
        lost = monitor.poll(2000)  # the time is the check: 20 heartbeats, or 5 timeouts
        if lost:
            raise AssertionError(f"lost: {recv_monitor_message(monitor)}")
        s.send_multipart([b"1", b"", b"echo", b"after"])
        same(s.recv_multipart()[-1], b"after", "answer")
        demand(not monitor.poll(0), "the connection was replaced")


# Below: a client of our own making, for what libzmq never does.

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def short(flags, body):
    return bytes([flags, len(body)]) + body


def ready(kind):
    name, value = b"Socket-Type", kind
    return short(4, b"\x05READY" + bytes([len(name)]) + name + struct.pack(">I", len(value)) + value)


class Raw:
    def __init__(self, endpoint):
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self.s = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()

    def send(self, data):
        self.s.sendall(data)

    def read(self, count):
        got = b""
        while len(got) < count:
            piece = self.s.recv(count - len(got))
            demand(piece, f"closed after {len(got)} of {count} bytes")
            got += piece
        return got

    def frame(self):
        flags = self.read(1)[0]
        size = struct.unpack(">Q", self.read(8))[0] if flags & 2 else self.read(1)[0]
        return flags, self.read(size)

    def message(self):
        """The next message; commands in between are heartbeats, of no interest."""
        frames = []
        while True:
            flags, body = self.frame()
            if flags & 4:
                continue
            frames.append(body)
            if not flags & 1:
                return frames

    def handshake(self, kind=b"DEALER"):
        self.send(GREETING)
        same(self.read(64)[10:12], b"\x03\x01", "version")
        self.send(ready(kind))
        flags, body = self.frame()
        demand(flags & 4 and body.startswith(b"\x05READY"), f"{body!r} instead of READY")

    def ask(self, text):
        self.send(short(1, b"7") + short(1, b"") + short(1, b"echo") + short(0, text))
        same(self.message(), [b"7", b"", b"ok", text], "answer")

    def closed(self):
        """Whether the other side ends the connection; what it says before that is of no interest."""
        try:
            while self.s.recv(4096):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True


@check("greeting trap", "10 B, then wait for 64", client="raw TCP")
def the_greeting_does_not_wait_for_ours(endpoint):
    with Raw(endpoint) as peer:
        peer.send(GREETING[:10])
        same(peer.read(64)[:1], b"\xff", "their whole greeting after ten bytes of ours")
        peer.send(GREETING[10:] + ready(b"DEALER"))
        demand(peer.frame()[1].startswith(b"\x05READY"), "READY")
        peer.ask(b"after a slow greeting")


@check("DEALER, byte by byte", "5 B", client="raw TCP")
def a_byte_at_a_time_is_enough(endpoint):
    with Raw(endpoint) as peer:
        message = short(1, b"7") + short(1, b"") + short(1, b"echo") + short(0, b"hello")
        for step, await_answer in (
            (GREETING, lambda: same(peer.read(64)[:1], b"\xff", "greeting")),
            (ready(b"DEALER"), lambda: demand(peer.frame()[1].startswith(b"\x05READY"), "READY")),
            (message, lambda: same(peer.message(), [b"7", b"", b"ok", b"hello"], "answer")),
        ):
            for i in range(len(step)):
                peer.send(step[i : i + 1])
            await_answer()


@check("DEALER, long frames", "1 B", client="raw TCP")
def long_headers_of_short_bodies_are_read(endpoint):
    with Raw(endpoint) as peer:
        peer.handshake()
        frames = [(1, b"7"), (1, b""), (1, b"echo"), (0, b"x")]
        peer.send(b"".join(struct.pack(">BQ", flags | 2, len(body)) + body for flags, body in frames))
        same(peer.message(), [b"7", b"", b"ok", b"x"], "answer")


@check("PING", "context of 16 B", client="raw TCP")
def a_ping_gets_its_context_back(endpoint):
    with Raw(endpoint) as peer:
        peer.handshake()
        context = bytes(range(16))
        peer.send(short(4, b"\x04PING" + struct.pack(">H", 50) + context))
        while True:
            flags, body = peer.frame()
            if flags & 4 and body.startswith(b"\x04PONG"):
                same(body[5:], context, "context")
                break
        peer.send(short(4, b"\x07WHATEVR" + b"unknown commands are ignored"))
        peer.ask(b"after a ping")


@check("other protocols", "refused", client="raw TCP")
def strangers_are_sent_away(endpoint):
    strangers = {
        "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 64,
        "an unknown mechanism": GREETING[:12] + b"MAGIC".ljust(20, b"\0") + bytes(32) + ready(b"DEALER"),
        "an illegal pair": GREETING + ready(b"PAIR"),
        "a reserved bit": GREETING + ready(b"DEALER") + short(8, b"x"),
        "an announced petabyte": GREETING + ready(b"DEALER") + struct.pack(">BQ", 2, 1 << 50) + b"x",
        "no READY, a message": GREETING + short(0, b"x"),
    }
    for name, hello in strangers.items():
        with Raw(endpoint) as peer:
            with contextlib.suppress(ConnectionError):
                peer.send(hello)
            demand(peer.closed(), f"{name}: the connection was kept")
    with Raw(endpoint) as peer:
        peer.handshake()
        peer.ask(b"others are served")


@contextlib.contextmanager
def echo(program):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [*program.split(), "--listen", f"tcp://127.0.0.1:{port}"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        demand(line.startswith("listening on tcp://"), f"the example said {line!r}")
        yield line.split()[-1], server
        demand(server.poll() is None, f"the example ended with {server.returncode}")
    finally:
        server.terminate()
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()
            raise


def main(program, results):
    faulthandler.dump_traceback_later(300, exit=True)
    failed = False
    with echo(program) as (endpoint, server), open(results, "a", encoding="utf-8") as out:
        for function, client, sockets, sizes in CHECKS:
            began = time.monotonic()
            try:
                note = function(endpoint)
                demand(server.poll() is None, "the example died")
                outcome = f"ok, {note or function.__name__.replace('_', ' ')}, {time.monotonic() - began:.1f} s"
            except Exception as e:  # every failure of a client is an outcome
                outcome, failed = f"FAILED: {function.__name__}: {type(e).__name__}: {e}", True
            print(client, sockets, "NULL", "client -> afflux", sizes, outcome, sep="\t", file=out, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

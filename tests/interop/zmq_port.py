#!/usr/bin/env python3
"""Every kind of stock ZeroMQ socket against one port: the one_port example.

Usage: zmq_port.py ONE_PORT ZMQ_CLIENT C_CLIENT RESULTS. The first two are the examples' programs, the third is
zmq_client.c, built against the libzmq of the system. Needs the package pyzmq. Appends one row per check to RESULTS,
exits with 1 if any failed. No check waits longer than PATIENCE for a peer that owes it something.
"""

import contextlib
import faulthandler
import select
import socket
import subprocess
import sys
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message
from zmq_echo import EDGES, GREETING, PATIENCE, Raw, demand, payload, ready, same, short, size_of

MESSAGES = 10_000
CHECKS = []
PYZMQ = f"pyzmq {zmq.__version__} / libzmq {zmq.zmq_version()}"
USER, PASSWORD = b"ada", b"sesame"
PLAIN = ("--plain", "ada:sesame")
TO_US, TO_THEM, BOTH = "client -> afflux", "afflux -> client", "both ways"


def check(sockets, mechanism, direction, sizes, client=PYZMQ):
    def note(function):
        CHECKS.append((function, client, sockets, mechanism, direction, sizes))
        return function

    return note


@contextlib.contextmanager
def port(*options, listen="tcp://127.0.0.1:0"):
    command = [ONE_PORT, "--listen", listen, *options]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    timer = threading.Timer(4 * PATIENCE, child.kill)
    timer.start()
    try:
        line = child.stdout.readline()
        demand(line.startswith("listening on tcp://"), f"the example said {line!r}")
        yield child, line.split()[-1]
        demand(child.poll() is None, f"the example ended with {child.returncode}")
    finally:
        timer.cancel()
        child.kill()
        child.wait()


@contextlib.contextmanager
def sockets(endpoint, *kinds, **options):
    context = zmq.Context()
    made = []
    for kind in kinds:
        s = context.socket(kind)
        s.linger, s.rcvtimeo, s.sndtimeo = 0, PATIENCE * 1000, PATIENCE * 1000
        for name, value in options.items():
            s.setsockopt(getattr(zmq, name), value)
        s.connect(endpoint)
        made.append(s)
    try:
        yield made if len(made) > 1 else made[0]
    finally:
        for s in made:
            s.disable_monitor()
        context.destroy(linger=0)


def ask(dealer, route, body=b""):
    dealer.send_multipart([b"1", b"", route, body])
    answer = dealer.recv_multipart()
    same(answer[:3], [b"1", b"", b"ok"], "answer")
    return answer[3]


def until(holds, what):
    end = time.monotonic() + PATIENCE
    while not holds():
        demand(time.monotonic() < end, f"in vain: {what}")
        time.sleep(0.02)


def subscribed(sub, push):
    """Says something until the subscriber hears it: nothing is kept for those who are not there yet."""
    sub.subscribe(b"")
    until(lambda: push.send_multipart([b"say/probe", b""]) or sub.poll(50), "no probe was heard")


def hear(sub):
    while (got := sub.recv_multipart())[0] == b"probe":
        pass
    return got


def all_five(endpoint, **options):
    with sockets(endpoint, zmq.DEALER, zmq.REQ, zmq.PUSH, zmq.PUB, zmq.SUB, **options) as (dealer, req, push, pub, sub):
        subscribed(sub, push)
        for number, size in enumerate(EDGES):
            body = payload(number, size)
            same(ask(dealer, b"echo", body) == body, True, f"DEALER, {size} bytes")
            req.send_multipart([b"echo", body])
            same(req.recv_multipart() == [b"ok", body], True, f"REQ, {size} bytes")
            push.send_multipart([b"say/eur/usd", body])
            same(hear(sub) == [b"eur/usd", body], True, f"PUSH to SUB, {size} bytes")
            heard = []

            def published():
                pub.send_multipart([b"usd/eur", body])
                while not heard and sub.poll(100):
                    heard.extend(hear(sub))
                return heard

            # A PUB says nothing before it was told what is wanted.
            until(published, "a PUB is not heard")
            same(heard == [b"usd/eur", body], True, f"PUB to SUB, {size} bytes")
            while sub.poll(20):
                same(sub.recv_multipart()[0] in (b"usd/eur", b"probe"), True, "topic")


@check("DEALER, REQ, PUSH, PUB, SUB at one port", "NULL", BOTH, "0 B to 1 MiB")
def one_port_mirrors_all_five():
    with port() as (_, endpoint):
        all_five(endpoint)


@check("DEALER, REQ, PUSH, PUB, SUB at one port", "PLAIN", BOTH, "0 B to 1 MiB")
def one_port_mirrors_all_five_that_log_in():
    with port(*PLAIN) as (_, endpoint):
        all_five(endpoint, PLAIN_USERNAME=USER, PLAIN_PASSWORD=PASSWORD)


@check("PUSH, heard by SUB", "NULL", BOTH, f"{MESSAGES} of 0 B to 1 MiB")
def everything_pushed_is_heard():
    with port() as (_, endpoint), sockets(endpoint, zmq.PUSH, zmq.SUB, RCVHWM=0) as (push, sub):
        subscribed(sub, push)

        def write():
            for number in range(MESSAGES):
                push.send_multipart([b"say/%d" % number, payload(number, size_of(number))])

        # A socket is one thread's: it is the writer's from here on.
        writer = threading.Thread(target=write)
        writer.start()
        total = 0
        for number in range(MESSAGES):
            topic, body = hear(sub)
            same(topic, b"%d" % number, "topic")
            demand(body == payload(number, size_of(number)), f"message {number}: other bytes")
            total += len(body)
        writer.join()
        return f"{total / 1e6:.0f} MB"


def held_back(kind, endpoint, child):
    """The handler stops: sends block, and nothing of what was sent is lost. It goes on: they go on."""
    heartbeats = {"HEARTBEAT_IVL": 200, "HEARTBEAT_TIMEOUT": 1000, "HEARTBEAT_TTL": 2000}
    with (
        sockets(endpoint, kind, SNDHWM=10, SNDBUF=65536, **heartbeats) as sender,
        sockets(endpoint, zmq.DEALER) as asker,
    ):
        monitor = sender.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        before = int(ask(asker, b"count"))
        child.stdin.write("stop\n")
        body, sent = payload(7, 16 << 10), 0
        sender.sndtimeo = 1500
        while True:
            try:
                sender.send_multipart([b"say/held", body])
                sent += 1
            except zmq.Again:
                break
            demand(sent < 100_000, "its sends are never held back")
        # Its heartbeats are not read, and it is told all the same that we live: three of its timeouts.
        lost = monitor.poll(3000)
        demand(not lost, "the paused connection was lost")
        child.stdin.write("go\n")
        sender.sndtimeo = PATIENCE * 1000
        for _ in range(200):
            sender.send_multipart([b"say/more", body])
        until(lambda: int(ask(asker, b"count")) == before + sent + 200, "not everything was taken")
        demand(not monitor.poll(0), "the connection was replaced")
        return sent


@check("PUSH, DEALER with heartbeats", "NULL", TO_US, "16 KiB until they block, 3 s")
def senders_feel_a_handler_that_stops():
    with port("--heartbeat", "300") as (child, endpoint):
        held = [held_back(kind, endpoint, child) for kind in (zmq.PUSH, zmq.DEALER)]
        return f"blocked after {held[0]} and {held[1]}, none lost"


@check("DEALER, REQ, SUB", "NULL, PLAIN", BOTH, "X- properties, identities")
def both_sides_read_what_the_other_says_of_itself():
    for options, login in (((), {}), (PLAIN, {"PLAIN_USERNAME": USER, "PLAIN_PASSWORD": PASSWORD})):
        with port(*options) as (_, endpoint):
            told = {"METADATA": b"X-Name:Ada Lovelace", "IDENTITY": b"till-3", **login}
            with sockets(endpoint, zmq.DEALER, zmq.REQ, **told) as (dealer, req):
                same(ask(dealer, b"who"), b"till-3 Ada Lovelace", "DEALER")
                req.send_multipart([b"who", b""])
                frames = req.recv_multipart(copy=False)
                same(frames[1].bytes, b"till-3 Ada Lovelace", "REQ")
                same([frame.get("X-Service") for frame in frames], ["one-port"] * 2, "our property")
                same(frames[0].get("Socket-Type"), "ROUTER", "our type")
            with sockets(endpoint, zmq.SUB, zmq.PUSH, **login) as (sub, push):
                subscribed(sub, push)
                same(sub.recv(copy=False).get("X-Service") if sub.poll(0) else "one-port", "one-port", "to a SUB")
            with sockets(endpoint, zmq.DEALER, **login) as dealer:
                same(ask(dealer, b"who").split()[-1:], [b"peer"], "one that says nothing of itself")


@check("DEALER of ZMTP 3.1", "NULL", TO_THEM, "PING every 300 ms", client="raw TCP")
def a_peer_is_asked_for_a_sign_of_life():
    with port("--heartbeat", "300") as (_, endpoint), Raw(endpoint) as peer:
        peer.handshake()
        for _ in range(5):
            flags, body = peer.frame()
            demand(flags & 4 and body.startswith(b"\x04PING"), f"{body!r} instead of PING")
            same(int.from_bytes(body[5:7]), 9, "its time to live, in tenths of a second")
            peer.send(short(4, b"\x04PONG" + body[7:]))
        peer.ask(b"alive")
        demand(peer.closed(), "a peer that gives no sign of life was kept")


@check("DEALER of ZMTP 3.0", "NULL", BOTH, "no PING, 1 s of silence", client="raw TCP")
def an_old_peer_is_not_asked():
    with port("--heartbeat", "300") as (_, endpoint), Raw(endpoint) as peer:
        peer.send(GREETING[:11] + b"\0" + GREETING[12:])
        peer.read(64)
        peer.send(ready(b"DEALER"))
        demand(peer.frame()[1].startswith(b"\x05READY"), "READY")
        came = select.select([peer.s], [], [], 1.2)[0]
        demand(not came, "something came that a peer of 3.0 does not know")
        peer.ask(b"still there")


def fate(endpoint, kind, **options):
    """What becomes of a stock client's handshake: the event, and its code."""
    with sockets(endpoint, kind, RECONNECT_IVL=-1, **options) as s:
        failed = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        failed |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
        monitor = s.get_monitor_socket(failed | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        demand(monitor.poll(PATIENCE * 1000), "nothing became of the handshake")
        seen = recv_monitor_message(monitor)
        return zmq.Event(seen["event"]).name, seen["value"]


@check("DEALER, SUB", "NULL, PLAIN", TO_US, "wrong password, mechanism, type")
def whoever_does_not_fit_is_told():
    with port(*PLAIN) as (_, endpoint):
        for kind in (zmq.DEALER, zmq.SUB, zmq.PUSH):
            right = fate(endpoint, kind, PLAIN_USERNAME=USER, PLAIN_PASSWORD=PASSWORD)
            same(right[0], "HANDSHAKE_SUCCEEDED", "the right password")
            for user, password in ((USER, b"Sesame"), (b"bob", PASSWORD)):
                # It is told ERROR, as the specification says; libzmq's clients look for their server's misspelling.
                wrong = fate(endpoint, kind, PLAIN_USERNAME=user, PLAIN_PASSWORD=password)
                demand(wrong[0].startswith("HANDSHAKE_FAILED"), f"{user} with {password}: {wrong}")
        demand(fate(endpoint, zmq.DEALER)[0] != "HANDSHAKE_SUCCEEDED", "NULL was let in where PLAIN is asked for")
        with Raw(endpoint) as peer:
            peer.send(GREETING[:12] + b"PLAIN".ljust(20, b"\0") + bytes(32))
            peer.read(64)
            peer.send(short(4, b"\x05HELLO\x03ada\x05wrong"))
            same(peer.frame(), (4, b"\x05ERROR\x03400"), "what a wrong password is told")
            demand(peer.closed(), "it was kept")
    with port() as (_, endpoint):
        wrong = fate(endpoint, zmq.DEALER, PLAIN_USERNAME=USER, PLAIN_PASSWORD=PASSWORD)
        demand(wrong[0] != "HANDSHAKE_SUCCEEDED", "PLAIN was let in where NULL is spoken")
        # A type that fits none of ours is disconnected without a word, as the specification asks.
        for kind in (b"PAIR", b"PULL", b"REP", b"NONSENSE"):
            with Raw(endpoint) as peer:
                peer.send(GREETING)
                peer.read(64)
                peer.send(ready(kind))
                same(peer.s.recv(64), b"", f"what a {kind} is told")


@check("DEALER", "NULL", BOTH, "afflux restarted")
def a_client_finds_us_again():
    with sockets("tcp://127.0.0.1:1", zmq.DEALER, RECONNECT_IVL=20) as dealer:
        dealer.disconnect("tcp://127.0.0.1:1")
        with port() as (_, endpoint):
            dealer.connect(endpoint)
            same(ask(dealer, b"echo", b"first"), b"first", "answer")
        with port(listen=endpoint):
            same(ask(dealer, b"echo", b"second"), b"second", "after the restart")


@check("ROUTER", "NULL", "we dial", "bound 1 s after we dialled")
def a_router_that_comes_late_is_found():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    client = subprocess.Popen([ZMQ_CLIENT, "--ask", endpoint, "-n", "50"], stdout=subprocess.PIPE, text=True)
    context = zmq.Context()
    try:
        time.sleep(1)  # the time is the check: several dials in vain
        router = context.socket(zmq.ROUTER)
        router.linger, router.rcvtimeo = 0, PATIENCE * 1000
        router.bind(endpoint)
        for _ in range(51):
            peer, correlation, empty, route, body = router.recv_multipart()
            answer = [b"ok", body] if route == b"echo" else [b"error", b"Rejected", b"as it was asked"]
            router.send_multipart([peer, correlation, empty, *answer])
        out, _ = client.communicate(timeout=PATIENCE)
        demand("50 answered" in out, out)
    finally:
        client.kill()
        client.wait()
        context.destroy(linger=0)


def c_client(results):
    """The C program adds its own rows."""
    failed = False
    for options, arguments in ((), ()), (PLAIN, ("ada", "sesame")):
        with port(*options) as (_, endpoint):
            done = subprocess.run([C_CLIENT, endpoint, *arguments], capture_output=True, text=True, timeout=4 * PATIENCE)
            results.write(done.stdout)
            results.flush()
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                failed = True
    return failed


def main(results):
    faulthandler.dump_traceback_later(300, exit=True)
    failed = False
    with open(results, "a", encoding="utf-8") as out:
        for function, client, kinds, mechanism, direction, sizes in CHECKS:
            began = time.monotonic()
            try:
                note = function()
                outcome = f"ok, {note or function.__name__.replace('_', ' ')}, {time.monotonic() - began:.1f} s"
            except Exception as e:  # every failure is an outcome
                outcome, failed = f"FAILED: {function.__name__}: {type(e).__name__}: {e}", True
            print(client, kinds, mechanism, direction, sizes, outcome, sep="\t", file=out, flush=True)
        failed |= c_client(out)
    return 1 if failed else 0


if __name__ == "__main__":
    ONE_PORT, ZMQ_CLIENT, C_CLIENT, RESULTS = sys.argv[1:]
    sys.exit(main(RESULTS))

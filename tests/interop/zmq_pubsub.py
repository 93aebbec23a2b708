#!/usr/bin/env python3
"""Stock ZeroMQ subscribers against the publisher example, and the subscriber example against stock publishers.

Usage: zmq_pubsub.py PUBLISHER SUBSCRIBER RESULTS. The first two are the examples' programs, which publish the
lines of their input and print what they get. Needs the package pyzmq. Appends one row per check to RESULTS,
exits with 1 if any failed. No check waits longer than PATIENCE for a peer that owes it something.
"""

import contextlib
import faulthandler
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import zmq
from zmq_echo import EDGES, GREETING, MIB, PATIENCE, Raw, demand, ready, same, short, size_of

MESSAGES = 10_000
CHECKS = []
PYZMQ = f"pyzmq {zmq.__version__} / libzmq {zmq.zmq_version()}"
TO_ZMQ, FROM_ZMQ = "afflux -> client", "client -> afflux"


def check(sockets, direction, sizes, client=PYZMQ):
    def note(function):
        CHECKS.append((function, client, sockets, direction, sizes))
        return function

    return note


class Text:
    """Lines of any length that differ from each other."""

    def __init__(self):
        rng = random.Random(41)
        self.pool = bytes(rng.choices(range(33, 127), k=1 << 16)) * (2 * MIB >> 16)

    def __call__(self, number, size):
        at = (number * 7919) % MIB
        return self.pool[at : at + size]


text = Text()


@contextlib.contextmanager
def program(command):
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    timer = threading.Timer(6 * PATIENCE, child.kill)
    timer.start()
    # Read all the time: a full pipe would stop it.
    child.errors = []
    reader = threading.Thread(target=lambda: child.errors.extend(child.stderr), daemon=True)
    reader.start()
    child.output = open(child.stdout.fileno(), "rb", buffering=MIB, closefd=False)
    try:
        yield child
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        reader.join(PATIENCE)
        child.output.close()


@contextlib.contextmanager
def publisher(*options, listen="tcp://127.0.0.1:0"):
    with program([PUBLISHER, "--listen", listen, *options]) as child:
        line = child.output.readline().decode()
        demand(line.startswith("listening on tcp://"), f"the example said {line!r}")
        yield child, line.split()[-1]


@contextlib.contextmanager
def subscriber(addresses, *topics):
    command = [SUBSCRIBER, *(f"--publisher={a}" for a in addresses), *(f"--topic={t}" for t in topics)]
    with program(command) as child:
        yield child


def say(child, *lines):
    child.stdin.write(b"".join(line + b"\n" for line in lines))


def hear(child):
    line = child.output.readline()
    demand(line.endswith(b"\n"), f"the example ended: {child.errors}")
    topic, _, rest = line[:-1].partition(b" ")
    return topic, rest


@contextlib.contextmanager
def sockets(*kinds, **options):
    context = zmq.Context()
    made = []
    for kind in kinds:
        s = context.socket(kind)
        s.linger, s.rcvtimeo, s.sndtimeo = 0, PATIENCE * 1000, PATIENCE * 1000
        for name, value in options.items():
            s.setsockopt(getattr(zmq, name), value)
        made.append(s)
    try:
        yield made if len(made) > 1 else made[0]
    finally:
        context.destroy(linger=0)


def bound(s):
    return f"tcp://127.0.0.1:{s.bind_to_random_port('tcp://127.0.0.1')}"


def until_subscribed(child, topic, receive):
    """Publishes until the subscriber gets it: what was published before it subscribed does not come."""
    end = time.monotonic() + PATIENCE
    number = 0
    while time.monotonic() < end:
        say(child, topic + b" probe %d" % number)
        number += 1
        if (got := receive(50)) is not None:
            return got, number
    raise AssertionError(f"no publication on {topic!r}")


def receive_of(s):
    return lambda ms: s.recv_multipart() if s.poll(ms) else None


@check("SUB", TO_ZMQ, "0 B to 1 MiB")
def prefixes_choose():
    # Room for all of them at once.
    with publisher("--hwm", "8192") as (child, endpoint), sockets(zmq.SUB) as s:
        s.connect(endpoint)
        for prefix in (b"eur/", b"eur/usd", b"log"):
            s.subscribe(prefix)
        until_subscribed(child, b"log", receive_of(s))
        for number, size in enumerate(EDGES):
            say(child, b"usd/eur no", b"eu no", b"eur/usd " + text(number, size))
        while (got := s.recv_multipart())[0] == b"log":
            pass
        for number, size in enumerate(EDGES):
            same(got, [b"eur/usd", text(number, size)], f"{size} bytes")
            got = s.recv_multipart() if number + 1 < len(EDGES) else None


@check("SUB", TO_ZMQ, f"{MESSAGES} of 0 B to 1 MiB, policy wait")
def nothing_is_lost_where_publishers_wait():
    with publisher("--slow", "wait", "--hwm", "8192") as (child, endpoint), sockets(zmq.SUB) as s:
        s.connect(endpoint)
        s.subscribe(b"t")
        until_subscribed(child, b"t-probe", receive_of(s))

        def write():
            for number in range(MESSAGES):
                say(child, b"t%d " % number + text(number, size_of(number)))

        writer = threading.Thread(target=write)
        writer.start()
        total, number = 0, 0
        while number < MESSAGES:
            topic, body = s.recv_multipart()
            if topic == b"t-probe":
                continue
            same(topic, b"t%d" % number, "topic")
            demand(body == text(number, size_of(number)), f"publication {number}: other bytes")
            total += len(body)
            number += 1
        writer.join()
        return f"{total / 1e6:.0f} MB"


@check("SUB", TO_ZMQ, "subscribed twice, cancelled")
def subscriptions_are_a_set():
    with publisher() as (child, endpoint), sockets(zmq.SUB) as s:
        s.connect(endpoint)
        for prefix in (b"a", b"a", b"b"):
            s.subscribe(prefix)
        until_subscribed(child, b"a", receive_of(s))
        until_subscribed(child, b"b", receive_of(s))
        s.unsubscribe(b"a")
        s.unsubscribe(b"a")
        s.subscribe(b"end")
        receive = receive_of(s)

        def the_end(ms):
            return next((m for m in iter(lambda: receive(ms), None) if m[0] == b"end"), None)

        until_subscribed(child, b"end", the_end)
        say(child, b"a no", b"b yes")
        while (got := s.recv_multipart())[1].startswith(b"probe"):
            pass
        same(got, [b"b", b"yes"], "after the cancel")


@check("XSUB", TO_ZMQ, "5 B")
def xsub_says_what_it_wants():
    with publisher() as (child, endpoint), sockets(zmq.XSUB) as s:
        s.connect(endpoint)
        s.send(b"\x01eur/")
        got, _ = until_subscribed(child, b"eur/usd", receive_of(s))
        same(got[0], b"eur/usd", "topic")


@check("SUB", TO_ZMQ, "publisher restarted")
def a_reconnect_is_told_everything():
    with sockets(zmq.SUB, RECONNECT_IVL=20) as s:
        s.subscribe(b"eur/")
        with publisher() as (child, endpoint):
            s.connect(endpoint)
            until_subscribed(child, b"eur/1", receive_of(s))
        with publisher(listen=endpoint) as (child, _):
            while True:
                got, _ = until_subscribed(child, b"eur/2", receive_of(s))
                if got[0] == b"eur/2":
                    break


@check("SUB that does not read", TO_ZMQ, "3000 of 4 KiB beside one that does", client="raw TCP")
def a_stuck_subscriber_costs_the_other_nothing():
    with publisher("--hwm", "256") as (child, endpoint), sockets(zmq.SUB) as s, Raw(endpoint) as stuck:
        stuck.handshake(b"SUB")
        stuck.send(short(4, b"\x09SUBSCRIBEt"))
        s.connect(endpoint)
        s.subscribe(b"t")
        until_subscribed(child, b"t", receive_of(s))
        body = text(1, 4096)
        for number in range(3000):
            say(child, b"t %d " % number + body)
            while (got := s.recv_multipart())[1].startswith(b"probe"):
                pass
            same(got[1], b"%d " % number + body, f"publication {number}")
        child.stdin.close()
        child.output.read()
        dropped = [line for line in child.errors if b" dropped" in line]
        demand(dropped and all(b"Newest" in line or b"Shutdown" in line for line in dropped), f"{dropped[:3]}")
        return f"{len(dropped)} drops told"


class Old(Raw):
    """A peer of ZMTP 3.0: subscriptions are messages."""

    def handshake(self, kind):
        self.send(GREETING[:11] + b"\0" + GREETING[12:])
        same(self.read(64)[10], 3, "version")
        self.send(ready(kind))
        flags, body = self.frame()
        demand(flags & 4 and body.startswith(b"\x05READY"), f"{body!r} instead of READY")


@check("SUB of ZMTP 3.0", TO_ZMQ, "subscribe, cancel", client="raw TCP")
def subscriptions_may_be_messages():
    with publisher() as (child, endpoint), Old(endpoint) as peer:
        peer.handshake(b"SUB")
        peer.send(short(0, b"\x01eur/") + short(0, b"\x01usd/"))

        def receive(ms):
            return peer.message() if select.select([peer.s], [], [], ms / 1000)[0] else None

        until_subscribed(child, b"eur/", receive)
        peer.send(short(0, b"\0eur/") + short(0, b"\x01end"))

        def the_end(ms):
            return next((m for m in iter(lambda: receive(ms), None) if m[0] == b"end"), None)

        until_subscribed(child, b"end", the_end)
        say(child, b"eur/ no", b"usd/ yes")
        while (got := peer.message())[1].startswith(b"probe"):
            pass
        same(got, [b"usd/", b"yes"], "after the cancel")


@check("XPUB", FROM_ZMQ, "0 B to 1 MiB")
def xpub_hears_what_is_wanted():
    with sockets(zmq.XPUB) as s:
        s.setsockopt(zmq.XPUB_VERBOSER, 1)
        with subscriber([bound(s)], "eur/", "log") as child:
            same({s.recv(), s.recv()}, {b"\x01eur/", b"\x01log"}, "subscriptions")
            for number, size in enumerate(EDGES):
                s.send_multipart([b"usd/", b"no"])
                s.send_multipart([b"eur/usd", text(number, size)])
                same(hear(child), (b"eur/usd", text(number, size)), f"{size} bytes")
            say(child, b"-eur/", b"+usd/", b"+usd/")
            same({s.recv(), s.recv()}, {b"\x00eur/", b"\x01usd/"}, "changes")
            s.send_multipart([b"eur/usd", b"no"])
            s.send_multipart([b"usd/", b"yes"])
            same(hear(child), (b"usd/", b"yes"), "after the changes")


@check("PUB", FROM_ZMQ, f"{MESSAGES} of 0 B to 1 MiB")
def publications_are_the_same():
    # A PUB drops at its mark: it has none here.
    with sockets(zmq.PUB, SNDHWM=0) as s, subscriber([bound(s)], "") as child:
        started = threading.Event()

        def write():
            while not started.wait(0.05):
                s.send_multipart([b"probe", b""])
            for number in range(MESSAGES):
                s.send_multipart([b"t%d" % number, text(number, size_of(number))])

        threading.Thread(target=write, daemon=True).start()
        same(hear(child), (b"probe", b""), "first")
        started.set()
        total = 0
        for number in range(MESSAGES):
            while (got := hear(child))[0] == b"probe":
                pass
            same(got[0], b"t%d" % number, "topic")
            demand(got[1] == text(number, size_of(number)), f"publication {number}: other bytes")
            total += len(got[1])
        return f"{total / 1e6:.0f} MB"


@check("PUB and XPUB at once", FROM_ZMQ, "one restarted")
def several_publishers_and_one_that_comes_back():
    with sockets(zmq.XPUB, zmq.XPUB) as (a, b):
        addresses = [bound(a), bound(b)]
        with subscriber(addresses, "eur/") as child:
            for s, body in ((a, b"a"), (b, b"b")):
                same(s.recv(), b"\x01eur/", "subscription")
                s.send_multipart([b"eur/usd", body])
                same(hear(child), (b"eur/usd", body), "publication")
            a.unbind(addresses[0])
            a.close()
            say(child, b"+log")
            same(b.recv(), b"\x01log", "a change meanwhile")
            with sockets(zmq.XPUB) as again:
                end = time.monotonic() + PATIENCE
                while True:
                    try:
                        again.bind(addresses[0])
                        break
                    except zmq.ZMQError:
                        demand(time.monotonic() < end, "the port is not free again")
                        time.sleep(0.05)
                same({again.recv(), again.recv()}, {b"\x01eur/", b"\x01log"}, "told anew")
                again.send_multipart([b"log", b"back"])
                same(hear(child), (b"log", b"back"), "publication")


@check("PUB and XPUB that connect", FROM_ZMQ, "0 B to 1 MiB")
def publishers_may_come_themselves():
    command = [SUBSCRIBER, "--listen=tcp://127.0.0.1:0", "--topic=eur/"]
    with program(command) as child, sockets(zmq.PUB, zmq.XPUB) as (p, x):
        endpoint = child.output.readline().decode().split()[-1]
        x.connect(endpoint)
        same(x.recv(), b"\x01eur/", "subscription")
        for number, size in enumerate(EDGES):
            x.send_multipart([b"eur/usd", text(number, size)])
            same(hear(child), (b"eur/usd", text(number, size)), f"{size} bytes")
        p.connect(endpoint)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and p.getsockopt(zmq.EVENTS) & zmq.POLLOUT:
            p.send_multipart([b"eur/", b"from a PUB"])
            x.send_multipart([b"eur/", b"from an XPUB"])
            if hear(child) == (b"eur/", b"from a PUB"):
                break
        else:
            raise AssertionError("the PUB was not heard")


@check("PUB of ZMTP 3.0", FROM_ZMQ, "subscribe, cancel", client="raw TCP")
def an_old_publisher_is_told_by_messages():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        with subscriber([f"tcp://127.0.0.1:{server.getsockname()[1]}"], "eur/") as child:
            peer = Old.__new__(Old)
            peer.s = server.accept()[0]
            peer.s.settimeout(PATIENCE)
            with peer:
                peer.handshake(b"PUB")
                same(peer.frame(), (0, b"\x01eur/"), "subscription")
                peer.send(short(1, b"eur/usd") + short(0, b"17"))
                same(hear(child), (b"eur/usd", b"17"), "publication")
                say(child, b"-eur/")
                same(peer.frame(), (0, b"\x00eur/"), "cancel")


def main(results):
    faulthandler.dump_traceback_later(300, exit=True)
    failed = False
    with open(results, "a", encoding="utf-8") as out:
        for function, client, kinds, direction, sizes in CHECKS:
            began = time.monotonic()
            try:
                note = function()
                outcome = f"ok, {note or function.__name__.replace('_', ' ')}, {time.monotonic() - began:.1f} s"
            except Exception as e:  # every failure is an outcome
                outcome, failed = f"FAILED: {function.__name__}: {type(e).__name__}: {e}", True
            print(client, kinds, "NULL", direction, sizes, outcome, sep="\t", file=out, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    PUBLISHER, SUBSCRIBER = sys.argv[1:3]
    sys.exit(main(sys.argv[3]))

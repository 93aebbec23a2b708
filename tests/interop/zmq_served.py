#!/usr/bin/env python3
"""The zmq_client example against stock ZeroMQ sockets that listen, and PLAIN on either side.

Usage: zmq_served.py ZMQ_CLIENT ECHO RESULTS. The two are the examples' programs. Needs the package pyzmq. Appends
one row per check to RESULTS, exits with 1 if any failed. No check waits longer than PATIENCE.
"""

import subprocess
import sys
import threading

import zmq
import zmq.auth.thread

PATIENCE = 60
CLIENT = f"pyzmq {zmq.__version__} / libzmq {zmq.zmq_version()}"


class Server:
    """Stock sockets on free ports, served by a thread until the end."""

    def __init__(self, plain=None):
        self.context = zmq.Context()
        self.auth = None
        if plain:
            self.auth = zmq.auth.thread.ThreadAuthenticator(self.context)
            self.auth.start()
            self.auth.configure_plain(domain="*", passwords=dict([plain]))
        self.router, self.pull = self.bound(zmq.ROUTER, plain), self.bound(zmq.PULL, plain)
        self.over = threading.Event()
        self.told, self.wrong, self.answered = [], [], 0
        self.thread = threading.Thread(target=self.serve)

    def bound(self, kind, plain):
        s = self.context.socket(kind)
        s.linger = 0
        s.plain_server = bool(plain)
        # The sockets' own heartbeats have to be answered while nothing else happens.
        # A PULL at its mark stops reading, our answers too, and takes us for dead: it has none.
        s.rcvhwm = 0
        s.heartbeat_ivl, s.heartbeat_timeout = 200, 1000
        s.bind("tcp://127.0.0.1:*")
        return s

    def serve(self):
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.pull, zmq.POLLIN)
        while not self.over.is_set():
            for s, _ in poller.poll(50):
                frames = s.recv_multipart()
                if s is self.pull:
                    self.told.append(frames)
                    continue
                match frames:
                    case [peer, correlation, b"", b"echo", body] if len(correlation) == 8:
                        s.send_multipart([peer, correlation, b"", b"ok", body])
                        self.answered += 1
                    case [peer, correlation, b"", b"fail", b""]:
                        s.send_multipart([peer, correlation, b"", b"error", b"Rejected", b"as it was asked"])
                    case _:
                        self.wrong.append(frames)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for s in (self.router, self.pull):
            s.close()
        if self.auth:
            self.auth.stop()
        self.context.term()


def run(program, *arguments, fails=False):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=PATIENCE)
    if (done.returncode != 0) != fails:
        raise AssertionError(f"exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return done.stdout + done.stderr


def expect(text, *parts):
    for part in parts:
        if part not in text:
            raise AssertionError(f"{part!r} is not in {text[-600:]!r}")


def padded(n, largest):
    """What the example sends as the n-th."""
    return n.to_bytes(8, "big") + bytes([n & 255]) * (n * 37 % (largest + 1) - 8)


def at(s):
    return s.last_endpoint.decode().rstrip("\0")


def asks_router(client, _echo):
    with Server() as server:
        out = run(client, "--ask", at(server.router), "-n", "10000", "--size", "3000")
        expect(out, "10000 answered", "Rejected", "as it was asked")
        assert (server.answered, server.wrong) == (10000, []), (server.answered, server.wrong[:3])


def asks_router_large(client, _echo):
    with Server() as server:
        expect(run(client, "--ask", at(server.router), "-n", "60", "--size", str(1 << 20)), "60 answered")
        assert (server.answered, server.wrong) == (60, []), (server.answered, server.wrong[:3])


def tells_pull(client, _echo):
    with Server() as server:
        out = run(client, "--tell", at(server.pull), "-n", "10000", "--size", "3000")
        expect(out, "10000 told", "refused")
        for _ in range(PATIENCE * 10):
            if len(server.told) == 10000:
                break
            server.over.wait(0.1)
        numbers = [int.from_bytes(body[:8], "big") for route, body in server.told if route == b"orders/tell"]
        assert numbers == list(range(10000)), f"{len(numbers)} in order"
        wrong = [n for n, (_, body) in enumerate(server.told) if body != padded(n, 3000)]
        assert not wrong, f"other bytes in {wrong[:5]}"


def tells_pull_large(client, _echo):
    with Server() as server:
        expect(run(client, "--tell", at(server.pull), "-n", "60", "--size", str(1 << 20)), "60 told")
        for _ in range(PATIENCE * 10):
            if len(server.told) == 60:
                break
            server.over.wait(0.1)
        assert [body for _, body in server.told] == [padded(n, 1 << 20) for n in range(60)], len(server.told)


def shows_plain(client, _echo):
    with Server(plain=("ada", "sesame")) as server:
        arguments = ["--ask", at(server.router), "--tell", at(server.pull), "-n", "1000"]
        expect(run(client, *arguments, "--plain", "ada:sesame"), "1000 answered", "1000 told")
        run(client, *arguments, "--plain", "ada:wrong", fails=True)


def asks_for_plain(_client, echo):
    with subprocess.Popen(
        [echo, "--listen", "tcp://127.0.0.1:0", "--plain", "ada:sesame"], stdout=subprocess.PIPE, text=True
    ) as served:
        try:
            address = next(word for word in served.stdout.readline().split() if word.startswith("tcp://")).rstrip(".,")
            context = zmq.Context()
            for user, password, welcome in [("ada", "sesame", True), ("ada", "wrong", False), ("", "", False)]:
                s = context.socket(zmq.DEALER)
                s.linger = 0
                if user:
                    s.plain_username, s.plain_password = user.encode(), password.encode()
                s.rcvtimeo = PATIENCE * 1000 if welcome else 1500
                s.connect(address)
                s.send_multipart([b"1", b"", b"echo", b"hello"])
                try:
                    answer = s.recv_multipart()
                    assert welcome and answer == [b"1", b"", b"ok", b"hello"], (user, password, answer)
                except zmq.Again:
                    assert not welcome, (user, password, "no answer")
                s.close()
            context.term()
        finally:
            served.terminate()


CHECKS = [
    (asks_router, "ROUTER", "NULL", "we dial; 10,000 requests", "8 B - 3 KB"),
    (asks_router_large, "ROUTER", "NULL", "we dial; 60 requests", "8 B - 1 MiB"),
    (tells_pull, "PULL", "NULL", "we dial; 10,000 messages", "8 B - 3 KB"),
    (tells_pull_large, "PULL", "NULL", "we dial; 60 messages", "8 B - 1 MiB"),
    (shows_plain, "ROUTER, PULL", "PLAIN", "we dial; right and wrong password", "8 B - 1 KB"),
    (asks_for_plain, "DEALER", "PLAIN", "they dial; right, wrong and none", "5 B"),
]


def main():
    client, echo, results = sys.argv[1:]
    failed = False
    with open(results, "a", encoding="utf-8") as rows:
        for function, sockets, mechanism, direction, sizes in CHECKS:
            try:
                function(client, echo)
                outcome = "ok"
            except Exception as e:  # whatever it was, it is a row of the table
                outcome, failed = f"FAILED: {type(e).__name__}: {e}".replace("\n", " ").replace("\t", " "), True
            rows.write("\t".join([CLIENT, sockets, mechanism, direction, sizes, outcome]) + "\n")
            rows.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()

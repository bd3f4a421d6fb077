"""Neighbours that do something on the card all the time: a thread each, which starts the process, tells it what to do
through a pipe, ends it and starts another. A temperament is a generator of (seconds to wait, order); the orders are
those of `programs/neighbour.py`, and `kill`. Each process starts with 518 MiB or what a context costs.
"""

import subprocess
import threading
import time

from harness import LITE, program

FOREVER = 1e6


def restless(draw):
    """Starts, grows by 100 to 2,000 MiB, shrinks, ends in one way or another; more than twice a second."""
    while True:
        blocks = 0
        for _ in range(draw.randint(2, 14)):
            if blocks and (blocks > 3 or draw.random() < 0.45):
                blocks -= 1
                yield draw.uniform(0.05, 0.7), "free"
            else:
                blocks += 1
                yield draw.uniform(0.05, 0.7), f"alloc {draw.randint(100, 2000)}"
        yield draw.uniform(0.05, 0.7), draw.choice(("end", "kill"))


def seldom(draw):
    """Grows once in half a minute, by 500 to 2,000 MiB; gives some of it back at another time."""
    yield draw.uniform(0, 1), f"alloc {draw.randint(500, 2000)}"
    yield draw.uniform(0, 30), f"alloc {draw.randint(500, 2000)}"
    while True:
        yield 15, "free"
        yield 15, f"alloc {draw.randint(500, 2000)}"


def still(_):
    """Has 600 MiB and does nothing."""
    yield 0, "alloc 600"
    while True:
        yield FOREVER, "free"


class Neighbour(threading.Thread):
    """One neighbour after the other. `events` gets (monotonic seconds when it was done, PID, order)."""

    def __init__(self, facts, env, events, temperament, draw):
        super().__init__(daemon=True)
        self.facts, self.env, self.events = facts, env, events
        self.orders = temperament(draw)
        self.child, self.failure = None, None
        self.over, self.pipe = threading.Event(), threading.Lock()
        self.up = threading.Event()
        self.start()

    def run(self):
        try:
            self.begin()
            while not self.over.is_set():
                pause, order = next(self.orders)
                if self.over.wait(pause):
                    break
                if order in ("end", "kill"):
                    self.finish(order)
                    self.begin()
                else:
                    self.tell(order)
        except Exception as error:
            self.failure = f"a neighbour: {error!r}"
        finally:
            self.up.set()
            self.finish("kill")

    def begin(self):
        self.child = subprocess.Popen(
            [*LITE, program("neighbour.py"), self.facts, "0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.env, start_new_session=True,
        )
        self.answered("start")
        self.up.set()

    def answered(self, order):
        answer = self.child.stdout.readline().strip()
        if answer != "ok":
            raise RuntimeError(f"answered {answer!r} to {order!r}")
        self.events.append((time.monotonic(), self.child.pid, order))

    def tell(self, order):
        """Also for others than this thread: an order beside those of the temperament."""
        with self.pipe:
            self.child.stdin.write(order + "\n")
            self.child.stdin.flush()
            self.answered(order)

    def finish(self, order):
        with self.pipe:
            if self.child is None:
                return
            if order == "kill":
                self.child.kill()
            else:
                self.child.stdin.write("end\n")
                self.child.stdin.flush()
            self.child.wait(30)
            self.events.append((time.monotonic(), self.child.pid, order))
            for pipe in (self.child.stdin, self.child.stdout):
                try:
                    pipe.close()
                except OSError:
                    pass
            self.child = None

    def stop(self):
        self.over.set()
        self.join(40)


class Street:
    """Some neighbours of one temperament, for the time of a `with` block."""

    def __init__(self, card, count, temperament):
        self.card, self.count, self.temperament = card, count, temperament
        self.all = []

    def __enter__(self):
        for _ in range(self.count):
            self.all.append(self.card.neighbour(self.temperament))
        for one in self.all:
            one.up.wait(30)
        return self

    def __exit__(self, *_):
        for one in self.all:
            one.over.set()
        for one in self.all:
            one.stop()

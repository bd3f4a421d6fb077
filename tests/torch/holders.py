"""Every way in which a program can refer to a tensor, one each, of its own size."""

import sys
import threading
from collections import deque

import torch

KIB = 256  # elements of four bytes


def sized(kib):
    return torch.zeros(kib, KIB)


global_tensor = torch.zeros(10000, 10000)
view_of_it = global_tensor.view(100, 1000000)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(1024, 1001)


class Table:
    cache = sized(1002)


class Slots:
    __slots__ = ("buffer",)


class Touchy:
    """Its attributes are not asked for in the usual way."""

    def __init__(self):
        self.kept = sized(1013)

    def __getattribute__(self, name):
        raise AssertionError("code of the program was run")


model = Model()
model.fc.weight.grad = torch.zeros(1024, 1003)
slots = Slots()
slots.buffer = sized(1004)
touchy = Touchy()
history = [sized(1005)]
table = {"name": {"deep": sized(1006)}}
recent = deque([sized(1007)])


def make():
    hidden = sized(1008)

    def step():
        return hidden

    return step


step = make()


def with_default(x=sized(1009)):
    pass


def batches():
    batch = sized(1010)
    yield batch.shape


loader = batches()
next(loader)
own = threading.local()
own.value = sized(1011)


def wait(go):
    local = sized(1012)
    go.wait()


go = threading.Event()
waiting = threading.Thread(target=wait, args=(go,), name="waiting", daemon=True)
waiting.start()

activation = sized(8192)
activation.held_in_cpp()
del activation


def fail():
    lost = sized(1014)
    raise ValueError("on purpose")


try:
    fail()
except ValueError:
    # As the interpreter does for an error that nobody caught.
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
while "local" not in sys._current_frames()[waiting.ident].f_back.f_back.f_locals and waiting.is_alive():
    pass
cached = sized(4096)
del cached

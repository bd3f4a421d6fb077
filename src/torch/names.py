"""Who refers to the live CUDA tensors: the garbage collector tells which there are, then a walk leads from where names begin
(globals, frames, the last traceback, thread-locals) to them. No code of the program runs: attributes are read past its
own `__getattr__`. All of it under a limit of CPU time (so that a busy machine changes nothing), and what was not
reached is said.
"""

import gc
import os
import sys
import time
import types
from _thread import _local
from collections import deque
from itertools import islice

TOP = 20  # storages and owners that are told
NAMES = 3  # of tensors that keep a graph
ITEMS = 50000  # of one container
MOST_OBJECTS = 20000000
PASS = 0.04  # seconds of CPU time that are kept for asking the collector, which looks through everything
MAIN = ("__main__", "__mp_main__")
LAST = ("last_exc", "last_value", "last_traceback")
# By their ids, here and elsewhere: a metaclass may have a hash and an equality of its own, or none.
ATOMS = frozenset(map(id, (
    int, float, str, bytes, bool, complex, type(None), type(Ellipsis), types.ModuleType, types.CodeType,
    types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, range, slice, bytearray, memoryview,
)))
MRO, DICT, NAME = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__", "__name__"))
WALKING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def variables(frame):
    """Names and values of a frame. Before Python 3.13 asking for them leaves a copy in the frame, which would keep the
    values alive until the function returns: it is emptied, unless the program itself has it from `locals()`."""
    names = frame.f_locals
    found = list(names.items())
    of_function = frame.f_code.co_flags & 3 == 3  # CO_OPTIMIZED and CO_NEWLOCALS: a class body has no copy
    if type(names) is dict and of_function and sys.getrefcount(names) <= 3:
        names.clear()
    return found


class Step:
    """A place on the way from a root to a tensor. `scope` is said after the name: `closure variable of train.step`."""

    __slots__ = ("name", "scope", "kind", "owner")

    def __init__(self, name, scope, kind, owner):
        self.name, self.scope, self.kind, self.owner = name, scope, kind, owner or self

    def within(self):
        return self.name + (", " + self.scope if self.scope else "")

    def attribute(self, name):
        kind = self.kind if self.scope or self.kind == "ipython_out" else "attribute"
        return Step("%s.%s" % (self.name, name), self.scope, kind, self.owner)

    def element(self, key):
        if type(key) is str:
            shown = repr(key[:60])
        else:
            shown = str(key) if type(key) in (int, bool, float) else "…"
        kind = self.kind if self.scope or self.kind == "ipython_out" else "element"
        return Step("%s[%s]" % (self.name, shown), self.scope, kind, self.owner)

    def variable(self, name, what, kind):
        return Step(name, "%s %s" % (what, self.within()), kind, None)

    def inside(self, what):
        return Step("%s (%s)" % (self.name, what), self.scope, self.kind, self.owner)


class Walk:
    """Breadth first, so that the shortest names are found; large containers come last."""

    def __init__(self, live, deadline, ours):
        self.live, self.deadline, self.ours = live, deadline, ours
        self.queue, self.later = deque(), deque()
        self.seen = {id(live), id(live.storages), id(live.of_tensor), id(live.kept), id(self.__dict__)}
        self.kept, self.getters = [], {}
        self.stopped = self.traced = False
        self.user_modules = set()

    def run(self):
        count = 0
        while self.live.missing > 0 and (self.queue or self.later):
            value, step = (self.queue or self.later).popleft()
            count += 1
            if count % 64 == 0 and time.thread_time() > self.deadline:
                self.stopped = True
                break
            try:
                self.expand(value, step)
            except Exception:
                pass  # it changed under us, or does not let itself be read

    def space(self, space, name):
        """The global variables of a module."""
        self.seen.add(id(space))
        notebook = type(space.get("Out")) is dict and "get_ipython" in space
        for key, inner in list(space.items()):
            if id(type(inner)) in ATOMS or type(key) is not str or key == "__builtins__":
                continue
            shown, kind = (key if notebook else "%s.%s" % (name, key)), "global"
            if notebook and (key in ("Out", "_oh") or not key.strip("_") or key.strip("_").isdigit()):
                shown, kind = ("Out" if key == "_oh" else key), "ipython_out"
            self.offer(inner, Step(shown, "", kind, None))

    def offer(self, value, step, later=False):
        kind = type(value)
        if id(kind) in ATOMS:
            return
        if id(kind) in self.live.kinds:
            storage = self.live.add(value)
            if storage is not None:
                self.live.name(storage, step)
            return
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        self.kept.append(value)
        (self.later if later else self.queue).append((value, step))

    # ---- what is inside of what ------------------------------------------------------------------------------------

    def expand(self, value, step):
        kind = type(value)
        if issubclass(kind, dict):
            self.mapping(value, step)
        elif issubclass(kind, (list, tuple, set, frozenset, deque)):
            self.sequence(value, step, next(k for k in (list, tuple, set, frozenset, deque) if issubclass(kind, k)))
        elif kind is types.FunctionType:
            return self.function(value, step)
        elif kind is types.MethodType:
            self.offer(value.__self__, step)
            return self.offer(value.__func__, step)
        elif kind is types.FrameType:
            return self.frame(value, step)
        elif kind is types.TracebackType:
            return self.traceback(value, step)
        elif any(kind is walking for walking in WALKING):
            return self.walking(value, step)
        elif kind is types.CellType:
            return self.offer(value.cell_contents, step)
        elif issubclass(kind, type):
            return self.of_class(value, step)
        if issubclass(kind, BaseException):
            self.offer(value.__traceback__, step)
            for other in (value.__context__, value.__cause__, value.args):
                self.offer(other, step)
        plain = self.attributes(value, kind, step)
        if not plain and not issubclass(kind, (dict, list, tuple)):
            for inner in islice(gc.get_referents(value), ITEMS):
                self.offer(inner, step.inside("held by a %s" % NAME(kind)))

    def mapping(self, value, step):
        items = list(islice(dict.items(value), ITEMS))
        for key, inner in items:
            if id(type(inner)) not in ATOMS:
                self.offer(inner, step.element(key), len(items) > 1000)
            if id(type(key)) not in ATOMS:
                self.offer(key, step.inside("as a key"), True)

    def sequence(self, value, step, base):
        items = list(islice(base.__iter__(value), ITEMS))
        for place, inner in enumerate(items):
            if id(type(inner)) not in ATOMS:
                shown = "…" if base in (set, frozenset) else place
                self.offer(inner, step.element(shown), len(items) > 1000)

    def attributes(self, value, kind, step):
        """Attributes of an object and names in it; whether it has any."""
        if issubclass(kind, _local):
            return self.thread_local(value, step)
        getter, known = self.getter(kind), False
        names = getter.__get__(value) if getter else None
        if type(names) is dict:
            known = True
            self.seen.add(id(names))
            module = "_parameters" in names and "_modules" in names
            for name, inner in list(dict.items(names)):
                if id(type(inner)) in ATOMS:
                    continue
                if module and name in ("_parameters", "_buffers", "_modules") and issubclass(type(inner), dict):
                    # A module's parts are known by the names that people use: model.fc.weight
                    self.seen.add(id(inner))
                    for part, held in list(dict.items(inner)):
                        self.offer(held, step.attribute(part))
                else:
                    self.offer(inner, step.attribute(name))
        for base in MRO(kind):
            space = DICT(base)
            for name, slot in list(space.items()) if "__slots__" in space else ():
                if type(slot) is types.MemberDescriptorType:
                    known = True
                    try:
                        self.offer(slot.__get__(value), step.attribute(name))
                    except AttributeError:
                        pass
        return known

    def getter(self, kind):
        """What gives the attributes of objects of this type, without running what a class may have put in its place."""
        if id(kind) not in self.getters:
            own = [DICT(base)["__dict__"] for base in MRO(kind) if "__dict__" in DICT(base)]
            getters = [g for g in own if type(g) is types.GetSetDescriptorType]
            self.getters[id(kind)] = kind, getters[0] if getters else None
        return self.getters[id(kind)][1]

    def thread_local(self, value, step):
        """The names that each thread has there; Python itself shows only those of the thread that asks."""
        inside = Step(step.name, step.scope or "thread-local", "thread_local", step.owner)
        own = _local.__getattribute__(value, "__dict__")
        for names in [own] + [d for held in gc.get_referents(value) if type(held) is dict for d in dict.values(held)]:
            if type(names) is dict:
                for name, inner in list(dict.items(names)):
                    self.offer(inner, inside.attribute(name))
        return True

    def function(self, value, step):
        space = value.__globals__
        if id(space) not in self.seen and (space.get("__name__") in MAIN or space.get("__name__") not in sys.modules):
            # Of no module that can be found: run by exec, or the main module of a spawned child.
            self.space(space, stem(space.get("__file__")) or str(space.get("__name__")))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                self.offer(cell.cell_contents, step.variable(name, "closure variable of", "closure"))
            except ValueError:
                pass  # empty
        arguments = value.__code__.co_varnames[: value.__code__.co_argcount]
        defaults = value.__defaults__ or ()
        for name, inner in zip(arguments[len(arguments) - len(defaults):], defaults):
            self.offer(inner, step.variable(name, "default argument of", "default_argument"))
        for name, inner in (value.__kwdefaults__ or {}).items():
            self.offer(inner, step.variable(name, "default argument of", "default_argument"))
        for name, inner in list(value.__dict__.items()):
            self.offer(inner, step.attribute(name))

    def of_class(self, value, step):
        # Classes of libraries have thousands of entries and no tensors.
        if type.__getattribute__(value, "__module__") in self.user_modules:
            for name, inner in list(type.__getattribute__(value, "__dict__").items()):
                if not name.startswith("__"):
                    self.offer(inner, step.attribute(name))

    def frame(self, frame, step, kind="frame"):
        if frame.f_code.co_filename.startswith(self.ours):
            return
        if frame.f_code.co_flags & 3 != 3:
            return  # of a module, whose names are known, or of a class in the making
        where = "%s() (%s:%s)" % (
            getattr(frame.f_code, "co_qualname", frame.f_code.co_name), os.path.basename(frame.f_code.co_filename), frame.f_lineno)
        if step.scope:
            where = "%s, %s" % (where, step.scope)
        for name, inner in variables(frame):
            if id(type(inner)) not in ATOMS:
                self.offer(inner, Step(name, "local variable of %s" % where, kind, None))

    def walking(self, value, step):
        frame = getattr(value, "gi_frame", None) or getattr(value, "cr_frame", None) or getattr(value, "ag_frame", None)
        if frame is not None:
            for name, inner in variables(frame):
                if id(type(inner)) not in ATOMS:
                    what = "local variable of the generator %s, held by" % value.__qualname__
                    self.offer(inner, step.variable(name, what, "generator"))

    def traceback(self, value, step):
        while value is not None:
            self.seen.add(id(value))
            self.frame(value.tb_frame, Step(step.name, "kept by the traceback %s" % step.name, "traceback", None), "traceback")
            value = value.tb_next


# ---- where names begin ---------------------------------------------------------------------------------------------


def modules(main):
    """(name that a person would use, module, written by the user), the user's first."""
    libraries = os.path.dirname(os.__file__)
    found = []
    for name, module in list(sys.modules.items()):
        if type(name) is not str or not issubclass(type(module), types.ModuleType):
            continue
        space = types.ModuleType.__getattribute__(module, "__dict__")
        file = space.get("__file__")
        file = file if type(file) is str else ""
        users = name in MAIN or bool(
            file and not file.startswith(libraries) and "site-packages" not in file and "dist-packages" not in file)
        if name in MAIN:
            name = getattr(space.get("__spec__"), "name", None) or stem(file or main) or name
            found.insert(0, (name, space, True))
        elif name != "torch" and not name.startswith(("torch.", "gpuresid_")):
            found.append((name, space, users))
    return sorted(found, key=lambda m: not m[2])


def stem(file):
    """The name by which a person knows a program's file."""
    return os.path.splitext(os.path.basename(file))[0] if type(file) is str else ""


def roots(walk, wide, main):
    told = set()
    for name, space, users in modules(main):
        if users is wide or id(space) in told:
            continue
        told.add(id(space))
        if users:
            walk.user_modules.add(space.get("__name__"))
        walk.space(space, name)
    if wide:
        return
    for name in LAST:
        walk.offer(getattr(sys, name, None), Step("sys." + name, "", "traceback", None))
    threads = getattr(sys.modules.get("threading"), "_active", {})
    for ident, frame in list(sys._current_frames().items()):
        thread = getattr(threads.get(ident), "name", None)
        scope = "thread %s" % thread if thread and thread != "MainThread" else ""
        stack = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        if any(frame.f_trace is not None for frame in stack):
            walk.traced = True
            continue  # a debugger writes variables back through that copy
        for frame in stack:
            walk.frame(frame, Step("", scope, "frame", None))


def nameless(live, storages):
    """Asks the collector, in one pass, who refers to the largest storages that no name leads to."""
    ours = {id(live.kept)}
    holders = [
        (h, {id(r) for r in islice(gc.get_referents(h), ITEMS)})
        for h in gc.get_referrers(*[s.first for s in storages])
        if id(h) not in ours and type(h) is not type(storages[0]) and type(h) is not types.FrameType
    ]
    for storage in storages:
        tensor = storage.first
        holder = next((h for h, held in holders if id(tensor) in held), None)
        if holder is None:
            storage.names.append(Step("held by C++", "no Python object refers to it", "cpp", None))
            continue
        keys = [k for k, v in list(dict.items(holder)) if v is tensor and type(k) is str] if type(holder) is dict else []
        name = "%s of a dict" % keys[0] if keys else "held by a %s" % NAME(type(holder))
        storage.names.append(Step(name, "no name leads to it", "unknown", None))


# ---- what is told --------------------------------------------------------------------------------------------------


def live(torch, tensors, devices, deadline, ours, main=None):
    """The live tensors of each device, with who refers to them."""
    gaps = []
    kinds = tensors["tensor_types"](torch)
    found = tensors["Live"](kinds)
    with tensors["undisturbed"](torch):
        if sys.getallocatedblocks() < MOST_OBJECTS:
            for place, tensor in enumerate(tensors["among"](gc.get_objects(), kinds)):
                if place % 1024 == 1023 and time.thread_time() > deadline:
                    gaps.append("there were too many tensors to look at all of them in time")
                    break
                found.add(tensor)
        else:
            gaps.append("the program has too many objects to look through all of them")
        walk = Walk(found, deadline - PASS, ours)
        roots(walk, False, main)
        walk.run()
        if found.missing > 0 and not walk.stopped:
            roots(walk, True, main)
            walk.run()
        by_size = sorted(found.storages.values(), key=lambda s: -s.bytes)
        for storage in by_size:
            # A gradient is named after its parameter, which has a better name than the optimiser's list of it.
            if storage.grad_of is not None and not storage.names and storage.grad_of.names:
                of = storage.grad_of.names[0]
                storage.names.append(Step(of.name + ".grad", of.scope, "attribute", None))
                storage.owner = of.owner
        missing = [s for s in by_size if not s.names]
        if missing and time.thread_time() < deadline - PASS / 2 and sys.getallocatedblocks() < 4000000:
            nameless(found, missing[:3])
        if walk.traced:
            gaps.append("a thread is under a debugger: its local variables were left alone")
        if walk.stopped and any(not s.names for s in by_size):
            gaps.append("the search for names was stopped at its time limit")
        return {"devices": [told(d, by_size, found) for d in devices], "gaps": gaps}


def reference(step):
    return {"kind": step.kind, "name": step.name, "scope": step.scope or None}


def told(device, by_size, found):
    mine = [s for s in by_size if s.device == device["index"]]
    owners = {}
    for storage in mine:
        owner = storage.owner or (storage.names[0] if storage.names else None)
        if owner is not None:
            entry = owners.setdefault((owner.name, owner.scope), [owner, 0, 0])
            entry[1] += storage.bytes
            entry[2] += 1
    largest = sorted(owners.values(), key=lambda e: -e[1])
    seen = sum(s.bytes for s in mine)
    whole = device["requested_bytes"] if device["requested_bytes"] is not None else device["allocated_bytes"]
    graphs = []
    for storage in found.graphs:
        if storage.device == device["index"] and storage.names and storage.names[0].name not in graphs:
            graphs.append(storage.names[0].name)
    return {
        "index": device["index"],
        "storages": len(mine),
        "bytes": seen,
        "hidden_bytes": max(0, whole - seen) if whole is not None else None,
        "unnamed_bytes": sum(s.bytes for s in mine if not s.names),
        "largest": [
            {
                "bytes": s.bytes,
                "shape": [int(n) for n in object.__getattribute__(s.first, "shape")],
                "dtype": str(object.__getattribute__(s.first, "dtype")).replace("torch.", ""),
                "tensors": s.tensors,
                "references": [reference(step) for step in s.names],
            }
            for s in mine[:TOP]
        ],
        "owners": [dict(reference(o), bytes=b, storages=n) for o, b, n in largest[:TOP]],
        "graphs": graphs[:NAMES],
        "graph_storages": sum(s.device == device["index"] for s in found.graphs),
    }

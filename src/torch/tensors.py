"""The live CUDA tensors that Python objects refer to, grouped by the storage below them: views of one storage count
once, gradients are found through their parameters.
"""

from itertools import compress

NAMES = 3  # of one storage


def tensor_types(torch):
    """torch.Tensor and everything derived from it, by id, as a type's hash may be its metaclass's. Fakes stand for memory
    that is not there."""
    found, todo = {}, [torch.Tensor]
    while todo:
        kind = todo.pop()
        if id(kind) not in found and type.__dict__["__name__"].__get__(kind) not in ("FakeTensor", "FunctionalTensor"):
            found[id(kind)] = kind
            todo.extend(type.__subclasses__(kind))
    return found


def plain_types():
    """No metaclass has a hash or an equality of its own, so that types can be looked up in a set: half the time."""
    mro, space = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__"))
    todo = [type]
    while todo:
        for meta in type.__subclasses__(todo.pop()):
            if any("__hash__" in space(base) or "__eq__" in space(base) for base in mro(meta) if base is not type and base is not object):
                return False
            todo.append(meta)
    return True


def among(objects, kinds):
    """Those that are tensors."""
    if plain_types():
        kinds = set(kinds.values())
        return [o for o in objects if type(o) in kinds]
    return list(compress(objects, map(kinds.__contains__, map(id, map(type, objects)))))


# Past what a subclass may have instead.
read = object.__getattribute__


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def undisturbed(torch):
    """Subclasses of Tensor may answer questions with code of their own; not these."""
    for name in ("DisableTorchFunctionSubclass", "DisableTorchFunction"):
        found = getattr(torch._C, name, None)
        if found is not None:
            return found()
    return Nothing()


def storage_of(tensor):
    """(address, bytes) of the memory below a tensor; views of one storage have the same."""
    try:
        storage = read(tensor, "untyped_storage")()
    except AttributeError:
        storage = read(tensor, "storage")()
    size = storage.nbytes() if hasattr(storage, "nbytes") else storage.size() * storage.element_size()
    return storage.data_ptr(), size


class Storage:
    __slots__ = ("device", "bytes", "first", "tensors", "names", "owner", "grad_of")

    def __init__(self, device, size, first):
        self.device, self.bytes, self.first = device, size, first
        self.tensors, self.names, self.owner, self.grad_of = 0, [], None, None


class Live:
    """The storages that Python objects refer to."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.storages = {}  # (device, address)
        self.of_tensor = {}  # id of a tensor
        self.kept = []  # so that no id is given away while we look
        self.graphs = []
        self.missing = 0  # storages that need a name; a gradient has its parameter's

    def add(self, tensor):
        known = self.of_tensor.get(id(tensor))
        if known is not None or id(tensor) in self.of_tensor:
            return known
        storage = None
        try:
            if read(tensor, "is_cuda"):
                device = read(tensor, "get_device")()
                address, size = storage_of(tensor)
                if address and size:
                    storage = self.storages.get((device, address))
                    if storage is None:
                        storage = self.storages[device, address] = Storage(device, size, tensor)
                        self.missing += 1
                    storage.tensors += 1
        except Exception:
            storage = None  # no memory of its own: sparse, or a wrapper around others
        self.of_tensor[id(tensor)] = storage
        self.kept.append(tensor)
        if storage is not None:
            self.graph_and_gradient(tensor, storage)
        return storage

    def graph_and_gradient(self, tensor, storage):
        try:
            if not read(tensor, "requires_grad"):
                return
            if not read(tensor, "is_leaf"):
                self.graphs.append(storage)
                return
            gradient = read(tensor, "grad")
        except Exception:
            return
        if gradient is not None and id(type(gradient)) in self.kinds:
            of_gradient = self.add(gradient)
            if of_gradient is not None and of_gradient.grad_of is None and of_gradient is not storage:
                of_gradient.grad_of = storage
                if not of_gradient.names:
                    self.missing -= 1

    def name(self, storage, step):
        if not storage.names:
            storage.owner = step.owner
            if storage.grad_of is None:
                self.missing -= 1
        if len(storage.names) < NAMES and all(s.name != step.name or s.scope != step.scope for s in storage.names):
            storage.names.append(step)

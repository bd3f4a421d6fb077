"""The live CUDA tensors that Python objects refer to, grouped by the storage below them: views of one storage count
once, gradients are found through their parameters.
"""

NAMES = 3  # of one storage


def tensor_types(torch):
    """torch.Tensor and everything derived from it. Fakes stand for memory that is not there."""
    found, todo = set(), [torch.Tensor]
    while todo:
        kind = todo.pop()
        if kind not in found and kind.__name__ not in ("FakeTensor", "FunctionalTensor"):
            found.add(kind)
            todo.extend(type.__subclasses__(kind))
    return found


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
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
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
            if tensor.is_cuda:
                device = tensor.get_device()
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
            if not tensor.requires_grad:
                return
            if not tensor.is_leaf:
                self.graphs.append(storage)
                return
            gradient = tensor.grad
        except Exception:
            return
        if gradient is not None and type(gradient) in self.kinds:
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

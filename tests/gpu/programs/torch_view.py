"""PyTorch with every kind of holder, one a run, and its own numbers for the suite to hold the report against.

    torch_view.py ROLES WHAT [--then exit|sleep|osexit] [--side N]

WHAT: article (a global tensor of N × N, a model, a local tensor), attribute, closure, list, generator, graph (a loss
that keeps its graph), cudagraph, loader, compile, oom, cache.
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402

MIB = 1 << 20


def zeros(mib, **options):
    return torch.zeros(mib, MIB // 4, device="cuda", **options)


class Keeper:
    pass


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, place):
        return torch.full((1024,), float(place))


def article(side):
    global global_tensor, model
    global_tensor = torch.randn(side, side, device="cuda")
    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU()).cuda()
    local = torch.randn(1000, 1000, device="cuda")
    return model(local).sum().item()


def attribute():
    global keeper
    keeper = Keeper()
    keeper.buffer = zeros(64)


def closure():
    global step
    hidden = zeros(64)

    def step():
        return hidden


def in_list():
    global history
    history = [zeros(16) for _ in range(4)]


def generator():
    global batches

    def make():
        batch = zeros(64)
        yield batch.shape

    batches = make()
    next(batches)


def graph():
    """What a loss keeps: activations that no Python object refers to."""
    global loss
    weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
    hidden = torch.ones(16384, 1024, device="cuda") * weight
    loss = hidden.sigmoid().exp().sum()


def cudagraph():
    global graph_of_work
    graph_of_work = torch.cuda.CUDAGraph()
    still = zeros(1)
    with torch.cuda.graph(graph_of_work):
        inner = still.repeat(64, 1) + 1
        del inner
    torch.cuda.synchronize()


def loader():
    global kept
    kept = []
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2):
        kept.append(batch.cuda())
    kept.append(zeros(64))


def compiled():
    global network, result
    network = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048)).cuda()
    fast = torch.compile(network)
    with torch.no_grad():
        result = fast(torch.randn(4096, 2048, device="cuda"))


def oom():
    global weights
    weights = zeros(64)
    try:
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass


def cache():
    global small
    big = zeros(1024)
    small = zeros(64)
    del big


KINDS = {
    "attribute": attribute, "closure": closure, "list": in_list, "generator": generator, "graph": graph,
    "cudagraph": cudagraph, "loader": loader, "compile": compiled, "oom": oom, "cache": cache,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("roles")
    parser.add_argument("what")
    parser.add_argument("--then", default="exit")
    parser.add_argument("--side", type=int, default=10000)
    args = parser.parse_args()
    article(args.side) if args.what == "article" else KINDS[args.what]()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    roles.tell(
        args.roles, "holder", allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved(),
        peak_allocated=torch.cuda.max_memory_allocated(), peak_reserved=torch.cuda.max_memory_reserved(),
        ooms=stats["num_ooms"], torch=torch.__version__,
    )
    # So long that NVML and both sides have looked while nothing changes.
    time.sleep(3600 if args.then == "sleep" else 1.5)
    if args.then == "osexit":
        os._exit(0)

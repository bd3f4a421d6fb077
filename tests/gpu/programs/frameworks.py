"""A program as people write it, one a framework. It ends by itself, with exit code 0, and leaves nothing.

    frameworks.py NAME [DEVICE]         77: what it needs is not installed

DEVICE is `cuda`; with `cpu` it can be rehearsed where there is no GPU.
"""

import os
import sys
import time

STEPS = 30


def model_of(torch, device, width=2048, layers=4):
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts).to(device)


def training(device):
    import torch

    kept = torch.zeros(256, 1024, 1024, device=device)
    model = model_of(torch, device)
    optimiser = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        optimiser.zero_grad()
        model(torch.randn(1024, 2048, device=device)).square().mean().backward()
        optimiser.step()
    return float(kept.sum())


def loader(device):
    import torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1024

        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.randn(2048)

    model = model_of(torch, device)
    batches = torch.utils.data.DataLoader(Data(), batch_size=64, num_workers=3, pin_memory=device != "cpu", persistent_workers=True)
    for _ in range(2):
        for batch in batches:
            model(batch.to(device, non_blocking=True)).mean().backward()


def compiled(device):
    import torch

    model = model_of(torch, device, 1024, 2)
    run = torch.compile(model)
    for rows in (256, 512):
        for _ in range(5):
            run(torch.randn(rows, 1024, device=device)).mean().backward()


def spawned_worker(tasks, answers):
    while True:
        tensor = tasks.get()
        if tensor is None:
            return
        answers.put(float(tensor.sum()))
        del tensor


def spawned(device):
    """Two processes that work on tensors of the first one's GPU memory."""
    import torch

    multi = torch.multiprocessing.get_context("spawn")
    tasks, answers = multi.Queue(), multi.Queue()
    workers = [multi.Process(target=spawned_worker, args=(tasks, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    tensors = [torch.ones(64, 1024, 1024, device=device) for _ in range(6)]
    for tensor in tensors:
        tasks.put(tensor)
    if sum(answers.get(timeout=120) for _ in tensors) != len(tensors) * (64 << 20):
        raise SystemExit("the workers computed something else")
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()


def transformers(device):
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=8000, bos_token_id=0, eos_token_id=1)).to(device)
    optimiser = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        tokens = torch.randint(2, 8000, (8, 256), device=device)
        optimiser.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimiser.step()
    model.generate(tokens[:1, :8], attention_mask=torch.ones_like(tokens[:1, :8]), max_new_tokens=16, do_sample=False, pad_token_id=1)


def lightning(device):
    import torch

    try:
        import lightning
    except ImportError:
        import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2048, 2048)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(4096, 2048))
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu" if device == "cpu" else "gpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=64))


def cupy(_):
    import cupy as cp

    square = cp.random.random((8192, 8192), dtype=cp.float32)
    for _ in range(STEPS):
        square = square @ square
        square /= cp.abs(square).max()
    return float(square.sum())


def jax(device):
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax as library
    import jax.numpy as jnp

    @library.jit
    def step(value):
        value = value @ value
        return value / jnp.abs(value).max()

    value = library.random.normal(library.random.PRNGKey(0), (4096, 4096) if device != "cpu" else (256, 256))
    for _ in range(STEPS):
        value = step(value)
    if device != "cpu" and library.devices()[0].platform == "cpu":
        raise SystemExit("JAX runs on the CPU")
    return float(value.sum())


def graphs(device):
    """Mixed precision, then a captured graph."""
    import torch

    model = model_of(torch, device)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    for _ in range(STEPS):
        optimiser.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(torch.randn(1024, 2048, device=device)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    if device == "cpu":
        return
    static = torch.randn(1024, 2048, device=device)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(static)
        for _ in range(STEPS):
            graph.replay()
    torch.cuda.synchronize()


PROGRAMS = {f.__name__: f for f in (training, loader, compiled, spawned, transformers, lightning, cupy, jax, graphs)}

if __name__ == "__main__":
    try:
        PROGRAMS[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "cuda")
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(77)

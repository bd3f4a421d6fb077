"""Training steps whose time is told: small kernels, so that the processor's side decides and every pause shows.

    torch_steps.py OUT STEPS          seconds for so many steps
    torch_steps.py OUT tensors N      N live tensors, then the exit; OUT gets the moment on the monotonic clock
"""

import sys
import time

import torch


def steps(count):
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 512, device="cuda")

    def run(n):
        for _ in range(n):
            optimiser.zero_grad()
            model(data).square().mean().backward()
            optimiser.step()
        torch.cuda.synchronize()

    run(300)
    began = time.perf_counter()
    run(count)
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[2] == "tensors":
        kept = [torch.empty(256, device="cuda") for _ in range(int(sys.argv[3]))]
        torch.cuda.synchronize()
        # The first sample is over, and the next one is not due at the exit.
        time.sleep(0.5)
        answer = time.monotonic()
    else:
        answer = steps(int(sys.argv[2]))
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(repr(answer))

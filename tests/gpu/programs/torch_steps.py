"""Training steps whose time is told: small kernels, so that the processor's side decides and every pause shows.

    torch_steps.py OUT steps N        N steps; OUT gets the moments at which they ended, and those of looks at PyTorch's counters
    torch_steps.py OUT tensors N      N live tensors, then the exit; OUT gets the moment at which that begins
Moments are seconds of the monotonic clock.
"""

import json
import sys
import time

import torch


def steps(count):
    # By hand: torch.optim would import the compiler, which takes longer than the training.
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    parameters = list(model.parameters())
    data = torch.randn(64, 512, device="cuda")

    def step():
        model(data).square().mean().backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-1e-3)
                parameter.grad = None

    looks, counters = [], torch.cuda.memory_stats_as_nested_dict

    def noted(*arguments):
        looks.append(time.monotonic())
        return counters(*arguments)

    torch.cuda.memory_stats_as_nested_dict = noted
    for _ in range(300):
        step()
    torch.cuda.synchronize()
    ends = [time.monotonic()]
    for _ in range(count):
        step()
        ends.append(time.monotonic())
    torch.cuda.synchronize()
    ends.append(time.monotonic())
    return {"ends": ends, "looks": looks}


if __name__ == "__main__":
    number = int(sys.argv[3])
    if sys.argv[2] == "tensors":
        kept = [torch.empty(256, device="cuda") for _ in range(number)]
        torch.cuda.synchronize()
        # The first sample is over, and the next one is not due at the exit.
        time.sleep(0.5)
        answer = {"begins": time.monotonic()}
    else:
        answer = steps(number)
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(answer, file)

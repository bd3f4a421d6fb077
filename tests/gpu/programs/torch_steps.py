"""Training steps whose time is told.

    torch_steps.py OUT steps N        N steps of small kernels, so that the processor's side decides and every pause shows
    torch_steps.py OUT busy N         N steps of large ones, which the GPU needs longer for than the processor to queue them
    torch_steps.py OUT tensors N      N live tensors, then the exit; OUT gets the moment at which that begins
Of steps, OUT gets the moments at which they ended, and those of looks at PyTorch's counters.
Moments are seconds of the monotonic clock.
"""

import json
import sys
import time

import torch


def steps(count, width, batch, warm, kind):
    # By hand: torch.optim would import the compiler, which takes longer than the training.
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)]).to("cuda", kind)
    parameters = list(model.parameters())
    data = torch.randn(batch, width, device="cuda", dtype=kind)

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
    for _ in range(warm):
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
    elif sys.argv[2] == "busy":
        answer = steps(number, 4096, 4096, 50, torch.bfloat16)
    else:
        answer = steps(number, 512, 64, 300, torch.float32)
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(answer, file)

"""PyTorch the way people write it: a model, a global tensor, some steps, an exit code. Tells its role at the peak.

    torch_train.py ROLES [--then exit:CODE|sleep|assert|oom] [--hold S]
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("roles")
parser.add_argument("--then", default="exit:0")
parser.add_argument("--hold", type=float, default=0.5)
args = parser.parse_args()

GLOBAL = torch.zeros(256, 1024, 1024, device="cuda")
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimiser = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimiser.zero_grad()
    model(torch.randn(4096, 2048, device="cuda")).square().mean().backward()
    optimiser.step()
torch.cuda.synchronize()
# Some cache that nobody uses any more: it must not be taken for residue after the exit.
waste = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
del waste
torch.cuda.synchronize()
roles.tell(args.roles, "holder")
time.sleep(args.hold)
what, _, value = args.then.partition(":")
if what == "sleep":
    time.sleep(3600)
elif what == "assert":
    table = torch.zeros(4, device="cuda")
    print(table[torch.tensor([9], device="cuda")])
    torch.cuda.synchronize()
elif what == "oom":
    torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
else:
    sys.exit(int(value))

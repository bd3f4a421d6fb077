"""PyTorch forked after CUDA was set up: the parent ends, the child goes on with what it inherited.

    torch_fork.py ROLES
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402

facts = sys.argv[1]
weights = torch.ones(512, 1024, 1024, device="cuda")
torch.cuda.synchronize()
roles.tell(facts, "ghost")
if os.fork() == 0:
    os.setsid()
    roles.tell(facts, "holder")
    time.sleep(3600)
    os._exit(0)
roles.wait_role(facts, "holder")
time.sleep(0.4)
os._exit(0)

"""One rank under torchrun: takes memory on its GPU (or the only one), tells its role and stays.

    torchrun … torch_rank.py ROLES
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402

device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
weights = torch.ones(256, 1024, 1024, device=f"cuda:{device}")
torch.cuda.synchronize()
if os.environ["LOCAL_RANK"] == "0":
    roles.tell(sys.argv[1], "agent", os.getppid())
roles.tell(sys.argv[1], "holder")
time.sleep(3600)

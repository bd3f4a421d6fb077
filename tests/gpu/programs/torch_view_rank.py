"""One of two ranks under torchrun on the same GPU: memory of its own size, then its exit.

    torchrun … torch_view_rank.py ROLES
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402

rank = int(os.environ["LOCAL_RANK"])
rank_tensor = torch.ones(64 * (rank + 1), 1024, 1024, device="cuda:0")
torch.cuda.synchronize()
roles.tell(sys.argv[1], "holder", rank=rank, reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated())
time.sleep(1.5)

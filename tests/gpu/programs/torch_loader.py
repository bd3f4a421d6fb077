"""A DataLoader whose main process is killed. `stuck`: a worker hangs in `__getitem__`. `idle`: workers wait for work.

    torch_loader.py ROLES stuck|idle
"""

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402

facts, mode = sys.argv[1], sys.argv[2]


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if mode == "stuck":
            roles.tell(facts, "holder")
            time.sleep(3600)
        return torch.zeros(4)


if __name__ == "__main__":
    weights = torch.ones(256, 1024, 1024, device="cuda")
    torch.cuda.synchronize()
    roles.tell(facts, "ghost")
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=1, num_workers=1 if mode == "stuck" else 2, multiprocessing_context="fork", persistent_workers=True
    )
    batches = iter(loader)
    if mode == "stuck":
        roles.wait_role(facts, "holder")
    else:
        next(batches)
        for worker in batches._workers:
            roles.tell(facts, "worker", worker.pid)
    time.sleep(0.4)
    os.kill(os.getpid(), signal.SIGKILL)

"""A CUDA tensor that PyTorch shares between two processes that know nothing of each other but a file.

    torch_share.py ROLES produce FILE SECONDS     makes the tensor, waits for the keeper, ends after SECONDS
    torch_share.py ROLES consume FILE             is on the GPU first, takes the tensor, keeps it
"""

import os
import pickle
import sys
import time
from multiprocessing.reduction import ForkingPickler

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402
import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402,F401 (teaches pickle to share tensors)


def main():
    facts, mode, path = sys.argv[1:4]
    torch.zeros(1, device="cuda")
    if mode == "produce":
        tensor = torch.ones(256, 1024, 1024, device="cuda")
        torch.cuda.synchronize()
        with open(path + ".new", "wb") as file:
            file.write(ForkingPickler.dumps(tensor))
        os.rename(path + ".new", path)
        roles.tell(facts, "producer")
        roles.wait_role(facts, "keeper")
        time.sleep(float(sys.argv[4]))
    else:
        roles.tell(facts, "keeper_up")
        roles.wait_until(lambda: os.path.exists(path), 120, path)
        with open(path, "rb") as file:
            tensor = pickle.load(file)
        float(tensor.sum())
        roles.tell(facts, "keeper")
        time.sleep(3600)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        roles.tell(sys.argv[1], "failed", error=repr(error))
        raise

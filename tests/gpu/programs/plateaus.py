"""Steps through plateaus of memory, each held for a time, for measuring how exactly a peak is seen.

    plateaus.py MILLISECONDS MIB…
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cudalite  # noqa: E402

cuda = cudalite.Cuda()
for size in sys.argv[2:]:
    cuda.alloc(int(size))
    time.sleep(int(sys.argv[1]) / 1000)
    cuda.free_last()
    time.sleep(0.05)

"""A CUDA process that ended and is not reaped by its parent, a survivor of the run that never touched the GPU.

    zombie.py ROLES
"""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import roles  # noqa: E402

facts = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    holder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "holder.py")
    child = subprocess.Popen([sys.executable, "-SB", holder, facts, "--role", "zombie", "--mib", "512", "--then", "exit:0"])
    roles.wait_until(lambda: (roles.stat(child.pid) or "?")[0] == "Z", 40, "the zombie")
    roles.tell(facts, "survivor")
    time.sleep(3600)
    os._exit(0)
roles.wait_role(facts, "survivor")
os._exit(0)

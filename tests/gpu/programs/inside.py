"""The first process of a PID namespace: runs a plan of steps and writes what came out, because nobody outside can see
the inner numbers.

    unshare -pf --mount-proc python3 inside.py PLAN.json OUT.json

The plan is a list of {"name", "argv", "report", "clean"}: `argv` is run with its output in files, `report` names a JSON
file to read afterwards, `truth` is read after each step, `clean` ends the told roles of that name before the step.
"""

import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import nvml  # noqa: E402
import roles  # noqa: E402


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    results = []
    library = nvml.Nvml()
    for number, step in enumerate(plan):
        for fact in [f for f in roles.told(step["roles"]) if f["role"] in step.get("clean", [])]:
            roles.send(fact)
            roles.wait_until(lambda fact=fact: not roles.alive(fact), 10, f"the end of {fact}")
        base = f"{sys.argv[2]}.{number}"
        began = time.monotonic()
        with open(base + ".out", "wb") as out, open(base + ".err", "wb") as err:
            child = subprocess.Popen(step["argv"], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            try:
                code = child.wait(step.get("limit", 60))
            except subprocess.TimeoutExpired:
                child.kill()
                code = "limit"
        results.append(
            {
                "name": step["name"],
                "code": code,
                "seconds": time.monotonic() - began,
                "out": read(base + ".out"),
                "err": read(base + ".err"),
                "report": read(step["report"]) if step.get("report") else None,
                "truth": library.look(),
                "alive": [f for f in roles.told(step["roles"]) if roles.alive(f)],
            }
        )
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(results, file)


main()

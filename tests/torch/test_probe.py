"""The probe of `check --torch` in plain Python, with a stand-in for PyTorch.

    python3 tests/torch/test_probe.py
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "..", "src", "torch")
DEADLINE = 60
CUDA = "import torch; kept = torch.zeros(1024, 1024)\n"


class Case(unittest.TestCase):
    def setUp(self):
        self.base = tempfile.mkdtemp(prefix="probe-test-")
        self.addCleanup(shutil.rmtree, self.base, True)
        self.probe = self.lay("probe")

    def lay(self, name):
        directory = os.path.join(self.base, name)
        os.mkdir(directory)
        for file in ("sitecustomize.py", "probe.py", "tensors.py", "names.py"):
            shutil.copy(os.path.join(SOURCES, file), directory)
        return directory

    def write(self, name, text):
        path = os.path.join(self.base, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def environment(self, before=(), after=(), **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FAKE_"))}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        env["PYTHONPATH"] = os.pathsep.join([*before, self.probe, *after, HERE])
        env.update(more)
        return env

    def run_python(self, *words, env=None, python=sys.executable, code=0):
        done = subprocess.run(
            [python, *words], env=env or self.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=DEADLINE, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def records(self, directory=None):
        found = []
        for path in sorted(glob.glob(os.path.join(directory or self.probe, "*.json"))):
            with open(path) as file:
                found.append(json.load(file))
        return found

    def started(self):
        try:
            with open(os.path.join(self.probe, "started")) as file:
                return [line.split() for line in file]
        except FileNotFoundError:
            return []

    def until(self, what, condition):
        end = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), end, "waited in vain for " + what)
            time.sleep(0.01)

    def one(self):
        records = self.records()
        self.assertEqual(len(records), 1, records)
        return records[0]


class Names(Case):
    def test_every_holder_is_named(self):
        self.run_python(os.path.join(HERE, "holders.py"))
        record = self.one()
        self.assertEqual((record["stage"], record["gaps"], record["live"]["gaps"]), ("exit", [], []))
        live = record["live"]["devices"][0]
        largest = live["largest"]
        self.assertEqual((largest[0]["bytes"], largest[0]["shape"], largest[0]["tensors"]), (400000000, [10000, 10000], 2))
        names = [(r["kind"], r["name"]) for r in largest[0]["references"]]
        self.assertEqual(names, [("global", "holders.global_tensor"), ("global", "holders.view_of_it")])
        for size, kind, name, scope in [
            (1001 * 4096, "attribute", "holders.model.fc.weight", None),
            (1002, "attribute", "holders.Table.cache", None),
            (1003 * 4096, "attribute", "holders.model.fc.weight.grad", None),
            (1004, "attribute", "holders.slots.buffer", None),
            (1005, "element", "holders.history[0]", None),
            (1006, "element", "holders.table['name']['deep']", None),
            (1007, "element", "holders.recent[0]", None),
            (1008, "closure", "hidden", "closure variable of holders.step"),
            (1009, "default_argument", "x", "default argument of holders.with_default"),
            (1010, "generator", "batch", "local variable of the generator batches, held by holders.loader"),
            (1011, "thread_local", "holders.own.value", "thread-local"),
            (1012, "frame", "local", "local variable of wait"),
            (1013, "attribute", "holders.touchy.kept", None),
            (1014, "traceback", "lost", "local variable of fail"),
        ]:
            size = size if size > 10000 else size << 10
            found = [s for s in largest if s["bytes"] == size]
            with self.subTest(name):
                self.assertEqual(len(found), 1, largest)
                first = found[0]["references"][0]
                self.assertEqual((first["kind"], first["name"]), (kind, name))
                if scope is None:
                    self.assertIsNone(first["scope"])
                else:
                    self.assertTrue(first["scope"].startswith(scope), first)
        frame = next(s for s in largest if s["bytes"] == 1012 << 10)["references"][0]
        self.assertIn("thread waiting", frame["scope"])
        # The activation has no Python object; what was freed is cache, and could be given back.
        self.assertLess(abs(live["hidden_bytes"] - (8192 << 10)), 1 << 20)
        device = record["devices"][0]
        self.assertEqual(device["releasable_bytes"], device["reserved_bytes"] - device["allocated_bytes"])
        self.assertGreaterEqual(device["releasable_bytes"], 4096 << 10)
        owners = {o["name"]: o for o in live["owners"]}
        self.assertEqual(owners["holders.model"]["bytes"], 1001 * 4096 + 1003 * 4096)

    def test_what_only_c_holds_is_said_to_be(self):
        code = "import torch, ctypes\nt = torch.zeros(1024, 1024)\nctypes.pythonapi.Py_IncRef(ctypes.py_object(t))\ndel t\n"
        self.run_python("-c", code)
        references = self.one()["live"]["devices"][0]["largest"][0]["references"]
        self.assertEqual([r["kind"] for r in references], ["cpp"])

    def test_thread_locals_of_other_threads(self):
        code = (
            "import torch, threading\nown = threading.local()\nready = threading.Event()\n"
            "def work():\n    own.mine = torch.zeros(1024, 1024)\n    ready.set()\n    threading.Event().wait()\n"
            "threading.Thread(target=work, daemon=True).start()\nready.wait()\n")
        self.run_python("-c", code)
        reference = self.one()["live"]["devices"][0]["largest"][0]["references"][0]
        self.assertEqual((reference["kind"], reference["name"]), ("thread_local", "__main__.own.mine"))

    def test_classes_without_a_hash_and_modules_without_a_name(self):
        code = CUDA + (
            "import sys, types\nsys.modules[5] = types.ModuleType('five')\n"
            "class Meta(type):\n    def __eq__(self, other): return self is other\n"
            "class Odd(metaclass=Meta): pass\nodd = Odd(); odd.mine = torch.zeros(512, 1024)\n")
        self.run_python("-c", code)
        record = self.one()
        self.assertEqual((record["gaps"], record["live"]["gaps"]), ([], []))
        names = [s["references"][0]["name"] for s in record["live"]["devices"][0]["largest"]]
        self.assertEqual(names, ["__main__.kept", "__main__.odd.mine"])

    def test_no_code_of_the_program_runs(self):
        code = CUDA + (
            "def told(*_): print('told'); raise ValueError\n"
            "class Meta(type):\n    __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = told\n"
            "    __mro__ = __name__ = property(told)\n"
            "class Odd(metaclass=Meta):\n    __getattr__ = __getattribute__ = __len__ = __iter__ = __eq__ = __repr__ = told\n"
            "    __class__ = property(told)\n"
            "class Proxy: __dict__ = property(told)\n"
            "proxy = Proxy()\n"
            "class Mine(torch.Tensor):\n    __getattr__ = told\n"
            "    def __getattribute__(self, name):\n"
            "        if name in ('is_cuda', 'grad', 'dtype', 'requires_grad', 'get_device'): told()\n"
            "        return object.__getattribute__(self, name)\n"
            "odd = Odd(); object.__setattr__(odd, 'own', torch.zeros(512, 1024)); mine = torch.zeros(256, 1024, cls=Mine)\n")
        self.assertEqual(self.run_python("-c", code).stdout, "")
        names = [s["references"][0]["name"] for s in self.one()["live"]["devices"][0]["largest"]]
        self.assertEqual(names, ["__main__.kept", "__main__.odd.own", "__main__.mine"])

    def test_a_name_that_is_no_text(self):
        code = CUDA + "del kept\nglobals()[b'n\\xff\\x1b'.decode(errors='surrogateescape')] = torch.zeros(1024, 1024)\n"
        self.run_python("-c", code)
        path, = glob.glob(os.path.join(self.probe, "*.json"))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertNotIn("\\udc", text)
        self.assertEqual(self.one()["live"]["devices"][0]["largest"][0]["references"][0]["name"], "__main__.n?\x1b")

    def test_a_notebooks_output(self):
        code = CUDA + "del kept\nget_ipython = len\nOut = {3: torch.zeros(1024, 1024)}\n"
        self.run_python("-c", code)
        reference = self.one()["live"]["devices"][0]["largest"][0]["references"][0]
        self.assertEqual((reference["kind"], reference["name"]), ("ipython_out", "Out[3]"))

    def test_a_loss_that_keeps_its_graph(self):
        code = CUDA + (
            "class Loss(torch.Tensor):\n    requires_grad, is_leaf = True, False\n"
            "losses = [torch.zeros(256, 256, cls=Loss) for _ in range(3)]\n")
        self.run_python("-c", code)
        live = self.one()["live"]["devices"][0]
        self.assertEqual(live["graph_storages"], 3)
        self.assertEqual(live["graphs"][0], "__main__.losses[0]")

    def test_what_was_not_reached_in_time_is_said(self):
        path = os.path.join(self.probe, "probe.py")
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace("BUDGET = 0.1", "BUDGET = 0.0"))
        self.run_python("-c", "ballast = [{1: [i]} for i in range(1000)]\n" + CUDA + "held = [[[[kept]]]]; del kept")
        live = self.one()["live"]
        self.assertIn("time limit", live["gaps"][0])
        self.assertEqual(live["devices"][0]["unnamed_bytes"], 4 << 20)

    def test_names_begin_with_the_module_that_was_run(self):
        self.write("pkg/__init__.py", "")
        self.write("pkg/job.py", CUDA)
        self.run_python("-m", "pkg.job", env=self.environment(after=[self.base]))
        reference = self.one()["live"]["devices"][0]["largest"][0]["references"][0]
        self.assertEqual(reference["name"], "pkg.job.kept")

    def test_ten_thousand_tensors_and_the_time_limit(self):
        code = (
            "import torch, time, atexit, sys\nkept = [torch.zeros(100) for _ in range(10000)]\n"
            "watch = sys._gpuresid_watch\n"
            "def timed():\n    before = time.thread_time()\n    watch.at_exit()\n    print(time.thread_time() - before)\n"
            "atexit.register(timed)\n")
        taken = float(self.run_python("-c", code).stdout)
        live = self.one()["live"]["devices"][0]
        self.assertEqual((live["storages"], live["owners"][0]["name"]), (10000, "__main__.kept"))
        self.assertEqual(live["owners"][0]["storages"], 10000)
        # CPU time on a machine that may be busy; the limit on the clock is measured in the benchmark.
        self.assertLess(taken, 0.6)


class Places(Case):
    def test_without_torch_nothing_is_written_and_nothing_imported(self):
        code = "import sys; print(*sorted(set(sys.modules) - {'sitecustomize'}))"
        without = self.run_python("-c", code, env=dict(self.environment(), PYTHONPATH=HERE))
        self.assertEqual(self.run_python("-c", code).stdout, without.stdout)
        self.assertEqual((self.records(), len(self.started())), ([], 1))
        self.run_python("-c", "import torch")
        self.assertEqual(self.records(), [])

    def test_the_hook_is_gone_once_torch_is_there(self):
        code = "import sys; n = len(sys.meta_path); import torch, torch.nn, wave; print(n - len(sys.meta_path))"
        self.assertEqual(self.run_python("-c", code).stdout.strip(), "1")

    def test_options_that_keep_it_out(self):
        path = self.write("train.py", "import sys; sys.path.insert(0, %r)\n" % HERE + CUDA)
        for option in ("-S", "-E", "-I"):
            # -E and -I ignore PYTHONDONTWRITEBYTECODE too.
            self.run_python("-B", option, path)
        self.assertEqual((self.records(), self.started()), ([], []))
        self.run_python("-s", path)
        self.assertEqual(self.one()["stage"], "exit")

    def test_in_a_venv_that_has_a_sitecustomize_of_its_own(self):
        venv = os.path.join(self.base, "venv")
        self.run_python("-m", "venv", "--without-pip", venv, env=dict(os.environ, PYTHONPATH=""))
        site = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages"))[0]
        with open(os.path.join(site, "sitecustomize.py"), "w") as file:
            file.write("import sys; sys.was_here = __file__")
        with open(os.path.join(site, "usercustomize.py"), "w") as file:
            file.write("raise SystemExit('not asked for')")
        path = self.write("train.py", CUDA + "import sys; print(sys.was_here)")
        done = self.run_python("-s", path, python=os.path.join(venv, "bin", "python"))
        self.assertIn("venv", done.stdout)
        self.assertEqual(self.one()["live"]["devices"][0]["largest"][0]["references"][0]["name"], "train.kept")

    def test_the_one_it_hides_runs_as_if_it_were_first(self):
        other = os.path.dirname(self.write("other/sitecustomize.py", "import sys; sys.was_here = __name__, __file__"))
        code = (
            "import sys, os, sitecustomize\n"
            "print(*sys.was_here, sitecustomize.__file__, any('probe-test' in p and p.endswith('/probe') for p in sys.path))")
        name, file, known, on_path = self.run_python("-c", code, env=self.environment(after=[other])).stdout.split()
        self.assertEqual((name, file, known, on_path), ("sitecustomize", known, file, "False"))
        self.assertTrue(file.startswith(other))
        self.assertEqual(len(self.started()), 1)

    def test_its_errors_are_told_as_without_us(self):
        for text in ("raise ValueError('theirs')", "import no_such_module", "raise ImportError('theirs')"):
            other = os.path.dirname(self.write("other/sitecustomize.py", text))
            with_us = self.run_python("-c", "print(1)", env=self.environment(after=[other]))
            env = self.environment()
            env["PYTHONPATH"] = os.pathsep.join([other, HERE])
            without = self.run_python("-c", "print(1)", env=env)
            self.assertEqual((with_us.stdout, with_us.stderr), (without.stdout, without.stderr))
            self.assertIn("sitecustomize", without.stderr + text)

    def test_a_check_inside_a_check(self):
        inner = self.lay("inner")
        self.run_python("-c", CUDA, env=self.environment(before=[inner]))
        self.assertEqual((len(self.records()), len(self.records(inner))), (1, 1))

    def test_a_home_that_cannot_be_written_to(self):
        self.run_python("-c", CUDA, env=self.environment(HOME="/proc"))
        self.assertEqual(self.one()["stage"], "exit")

    def test_a_directory_that_is_gone_harms_nobody(self):
        code = "import shutil; shutil.rmtree(%r)\n" % self.probe + CUDA + "print(kept.shape)"
        done = self.run_python("-c", code)
        self.assertEqual((done.stdout.strip(), done.stderr), ("(1024, 1024)", ""))

    def test_an_error_inside_is_a_gap(self):
        done = self.run_python("-c", CUDA, env=self.environment(FAKE_TORCH_BROKEN="1"))
        self.assertEqual(done.stderr, "")
        record = self.one()
        self.assertIn("fails on purpose", record["gaps"][0])
        self.assertEqual(record["devices"], [])

    def test_a_broken_part_harms_nobody(self):
        for part in ("names.py", "tensors.py", "probe.py"):
            with open(os.path.join(self.probe, part), "w") as file:
                file.write("this is no Python")
            done = self.run_python("-c", CUDA)
            self.assertEqual(done.stderr, "")

    def test_exit_codes_and_streams_stay(self):
        self.run_python("-c", CUDA + "raise SystemExit(7)", code=7)
        self.assertEqual(self.one()["stage"], "exit")
        done = self.run_python("-c", CUDA + "1/0", code=1)
        self.assertIn("ZeroDivisionError", done.stderr)

    def test_it_is_no_thread_of_the_programs(self):
        code = CUDA + "import threading; print(threading.active_count(), [t.name for t in threading.enumerate()])"
        self.assertEqual(self.run_python("-c", code).stdout.strip(), "1 ['MainThread']")


class Ends(Case):
    def test_children_of_multiprocessing(self):
        program = (
            "import multiprocessing as mp, os\n"
            "def work():\n    import torch\n    globals()['kept'] = torch.zeros(1024, 1024)\n"
            "if __name__ == '__main__':\n"
            "    for how in ('spawn', 'forkserver', 'fork'):\n"
            "        child = mp.get_context(how).Process(target=work)\n"
            "        child.start(); child.join(); assert child.exitcode == 0\n")
        self.run_python(self.write("train.py", program))
        records = self.records()
        self.assertEqual([r["stage"] for r in records], ["exit"] * 3)
        self.assertEqual({r["live"]["devices"][0]["largest"][0]["references"][0]["name"] for r in records}, {"train.kept"})

    def test_a_child_that_was_forked_after_cuda(self):
        code = CUDA + (
            "import os\npid = os.fork()\n"
            "if pid == 0:\n    raise SystemExit(0)\n"
            "os.waitpid(pid, 0); print(os.getpid())\n")
        parent = self.run_python("-c", code).stdout.strip()
        self.assertEqual(str(self.one()["pid"]), parent)
        self.assertEqual([words[2] for words in self.started()], ["0", parent])

    def sampled(self, code, **expected):
        """Runs until its first sample is there, then lets it go on."""
        go = os.path.join(self.base, "go")
        wait = "import os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n" % go
        child = subprocess.Popen([sys.executable, "-c", CUDA + wait + code], env=self.environment())
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.until("a sample", lambda: self.records())
        return child, go

    def test_os_exit_leaves_the_last_sample(self):
        child, go = self.sampled("os._exit(5)")
        open(go, "w").close()
        self.assertEqual(child.wait(DEADLINE), 5)
        record = self.one()
        self.assertEqual((record["stage"], record["devices"][0]["allocated_bytes"]), ("sample", 4 << 20))

    def test_sigterm_ends_it_as_ever(self):
        child, _ = self.sampled("")
        child.terminate()
        self.assertEqual(child.wait(DEADLINE), -signal.SIGTERM)
        self.assertEqual(self.one()["stage"], "sample")

    def test_a_process_at_rest_names_its_tensors(self):
        self.sampled("")
        self.until("names", lambda: self.one()["live"])
        reference = self.one()["live"]["devices"][0]["largest"][0]["references"][0]
        self.assertEqual((self.one()["stage"], reference["name"]), ("sample", "__main__.kept"))
        self.assertGreater(len(self.one()["timeline"]), 2)

    def test_a_look_keeps_nothing_alive(self):
        code = (
            "def main():\n    lost, named = torch.zeros(1024, 1024), locals()\n    named = None\n"
            "    mine = torch.zeros(512, 1024)\n    while not os.path.exists(%r): time.sleep(0.01)\n"
            "    lost = mine = None\n    print(torch.ALLOCATORS[0].allocated, flush=True)\n"
            "def keeper():\n    held = torch.zeros(1024, 1024)\n    names = locals()\n    names['more'] = 1\n"
            "    while not os.path.exists(%r): time.sleep(0.01)\n    print({'held', 'more'} <= set(names), flush=True)\n"
            "import torch, os, sys, time, threading\nother = threading.Thread(target=keeper); other.start()\n"
            "main(); other.join()\n") % ((os.path.join(self.base, "go"),) * 2)
        child = subprocess.Popen([sys.executable, "-c", code], env=self.environment(), stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.until("names", lambda: any(r["live"] for r in self.records()))
        scopes = [s["references"][0]["scope"] for s in self.one()["live"]["devices"][0]["largest"]]
        self.assertEqual(sum("local variable of main()" in s for s in scopes), 2, scopes)
        open(os.path.join(self.base, "go"), "w").close()
        lines = child.communicate(timeout=DEADLINE)[0].splitlines()
        # Only keeper's tensor is left; what it has from locals() was not taken away.
        self.assertEqual(sorted(lines), sorted([str(4 << 20), "True"]))

    def test_a_thread_that_keeps_the_process_is_named(self):
        code = CUDA + (
            "import threading, os, time\n"
            "def serve():\n    while not os.path.exists(%r): time.sleep(0.01)\n"
            "threading.Thread(target=serve, name='server').start()\n") % os.path.join(self.base, "go")
        child = subprocess.Popen([sys.executable, "-c", code], env=self.environment())
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.until("the thread", lambda: any(r["threads"] for r in self.records()))
        self.assertEqual(self.one()["threads"], [{"name": "server", "function": "serve"}])
        open(os.path.join(self.base, "go"), "w").close()
        self.assertEqual(child.wait(DEADLINE), 0)
        self.assertEqual((self.one()["stage"], self.one()["threads"]), ("exit", None))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()

"""Runs at the start of every Python process below `gpuresid check --torch`, so it is small: it waits for PyTorch to
initialise CUDA and only then loads probe.py, which lies beside it. It never imports torch, and whatever goes wrong in
it stays in it. A sitecustomize that this one hides is run as if this one were not there.
"""

import atexit
import os
import sys


def _identity():
    """PID and start time as /proc shows them; a PID alone is reused."""
    try:
        fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 4096)
        finally:
            os.close(fd)
        return int(text.split(b" ", 1)[0]), int(text.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return os.getpid(), 0


class _Watch:
    """Waits at no cost: asked only when a module is imported for the first time, and not any more once torch.cuda is
    there; from then on PyTorch itself calls when it initialises CUDA."""

    def __init__(self, directory):
        self.directories = [directory]
        self.view = self.main = None
        self.begin()

    def begin(self):
        """This process is new: started, or just forked."""
        self.owner = os.getpid()
        self.running = self.ended = False
        if self.view is not None:
            self.view.forget()
        for directory in self.directories:
            self.note(directory)

    def note(self, directory):
        """Tells gpuresid that Python has come this far, and whether CUDA was in use where this process was forked."""
        try:
            line = "%d %d %d\n" % (_identity() + (os.getppid() if self.in_forked_cuda() else 0,))
            fd = os.open(os.path.join(directory, "started"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError:
            pass

    @staticmethod
    def in_forked_cuda():
        cuda = sys.modules.get("torch.cuda")
        return bool(cuda is not None and getattr(cuda, "_initialized", False))

    def find_spec(self, name, path=None, target=None):
        """Never finds anything."""
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None:
            self.arm(cuda)
        return None

    def arm(self, cuda):
        queue = getattr(cuda, "_queued_calls", None)
        if queue is None:
            return  # that module is still being imported
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            queue.append((self.cuda_is_there, []))
        except AttributeError:
            pass
        if getattr(cuda, "_initialized", False):
            self.cuda_is_there()

    def cuda_is_there(self):
        """Called by PyTorch in the middle of its initialisation: no more than to start the thread that looks."""
        try:
            if self.running:
                return
            self.running = True
            # Gone when the program has ended, and names begin with it.
            self.main = getattr(sys.modules.get("__main__"), "__file__", None)
            # Once more and late, so that it runs before what PyTorch has registered.
            atexit.register(self.at_exit)
            util = sys.modules.get("multiprocessing.util")
            if util is not None:
                # Forked workers of multiprocessing end with os._exit, after these.
                util.Finalize(None, self.at_exit, exitpriority=1000)
            import _thread

            # Not a threading.Thread: programs that join or count those would meet it.
            _thread.start_new_thread(self.look_on, ())
        except Exception:
            pass

    def load(self):
        if self.view is None:
            view = self.part("probe.py")["View"](self, _identity)
            if self.view is None:
                self.view = view
        return self.view

    def part(self, name):
        """A file that lies beside this one, as a namespace. It is no module: the program shall not meet it."""
        path = os.path.join(self.directories[0], name)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        space = {"__name__": "gpuresid_" + name[:-3], "__file__": path}
        exec(code, space)
        return space

    def look_on(self):
        try:
            self.load().look_on()
        except BaseException:
            pass

    def at_exit(self):
        try:
            cuda = sys.modules.get("torch.cuda")
            if self.ended or cuda is None or not getattr(cuda, "_initialized", False):
                return
            self.ended = True
            self.load().at_exit()
        except (Exception, KeyboardInterrupt):
            pass  # the program is over: nobody else waits for that Ctrl-C


def _begin():
    here = os.path.dirname(os.path.abspath(__file__))
    watch = getattr(sys, "_gpuresid_watch", None)
    if watch is not None:
        # A check inside a check: one look, told to both.
        if here not in watch.directories:
            watch.directories.append(here)
            watch.note(here)
        return here
    watch = sys._gpuresid_watch = _Watch(here)
    sys.meta_path.insert(0, watch)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=watch.begin)
    atexit.register(watch.at_exit)
    return here


def _chain(here):
    """Runs the sitecustomize that this one hides; its errors are the business of whoever wrote it."""
    sys.path[:] = [entry for entry in sys.path if entry != here and os.path.abspath(entry) != here]
    me = sys.modules.pop(__name__, None)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        # Nobody else has that name, or it failed: the import that is in progress wants to find one.
        if me is not None:
            sys.modules.setdefault(__name__, me)


if __name__ == "sitecustomize":
    try:
        _here = _begin()
    except Exception:
        _here = os.path.dirname(os.path.abspath(__file__))
    _chain(_here)

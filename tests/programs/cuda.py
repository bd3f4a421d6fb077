#!/usr/bin/env python3
"""A CUDA program on the fake machine, told what to do on its command line.

    cuda.py [--ledger DIR] [--dev DIR] VERB [ARGUMENT…] VERB …

Verbs run one after the other; after the last one the program exits with 0. A verb that ends in a block takes the
verbs between `{` and `}` (arguments of their own). The ledger and the device directory come from the options, else
from FAKE_NVML_LEDGER and FAKE_DEV. G is NVML's index of a GPU, SIZE is `512MiB`, `4GiB` or bytes, FILE is relative to
the directory that holds the ledger.

Memory and device files (counts as measured on an H200; all close-on-exec, inherited over fork)
    init                  CUDA without a context: 7 files on every visible GPU (3 on hidden ones), control 2, uvm 4;
                          3.25 MiB a visible GPU, not listed
    context G             a context: 23 files on G, 518 MiB listed
    alloc G SIZE          more memory, with a context if there is none; `free G SIZE` gives it back
    managed G SIZE        managed memory: used but not listed
    late G MS:SIZE,…      after the end, SIZE is left from MS milliseconds on: memory that comes back late;
                          `late-listed` the same, and the process is listed until then
    lists G LIST,…        stand in these lists (compute, graphics, mps)
    instance G GI CI      be in this MIG instance
    unavailable G         be listed with memory "not available"
    export-handle G SIZE  a handle that a plain `sleep` inherits: SIZE stays with it when this program ends
    leave-files G SIZE    a plain `sleep` inherits files of the GPU, as an orted does: SIZE stays with it
    ipc-produce G SIZE NAME, ipc-consume NAME
                          shared memory: listed for the producer while it lives, then for the consumer; with
                          `ipc-produce-raw` it leaves no file that both map, as without a framework
    listen NAME, send-handle G SIZE NAME
                          a socket in which an exported handle waits that nobody receives: the memory stays, on no
                          list, while the listener lives
    nvml                  be a plain NVML client: files, no memory
    open NODE N           open /dev/NODE N times
    keep PATH             keep any file open
    close-files           close every device file and lock, inherited ones included

Processes (none is waited for unless `wait-children` says so, so forked ones become zombies)
    fork { … }            a forked copy runs the block
    fork-and-exit         the rest runs in a forked copy; this process exits with 0 at once
    spawn { … }           a new program runs the block
    spawn-session { … }   the same in a session of its own
    spawn-clean { … }     the same with an empty environment (env -i)
    daemonize-twice { … } setsid, forked twice, standard files on /dev/null
    namespace { … }       the same in a new PID namespace with its own /proc (needs root)
    supervise N { … }     N programs (RANK 0 to N-1, with torchrun's variables); when one dies, all are ended and N new
                          ones started; on TERM all are ended
    subreaper             whatever is orphaned below is left to this process from now on
    nanny S { … }         a program that is started again S seconds after each of its ends
    sleep-as N            a `sleep` with the PID N, as soon as nobody has it, where the system lets us choose
    trace FILE            attach to the process in FILE as a debugger does, which stops it
    log-to PATH           open a file for writing; `log TEXT` writes to it, unbuffered
    touch PATH            look a path up, and make the file
    block-in-kernel       sleep in the kernel (state D) until a child that shares nothing has ended
    run N WORD…           another program with N words, waited for; this one exits with its code
    exec-child            a `sleep` that inherits everything that exec leaves open: nothing of CUDA
    wait-children         until all children have ended

Being
    rename NAME           prctl(PR_SET_NAME)
    settitle TEXT         overwrite the argument and environment area, as setproctitle does
    setuid N              become that user
    ignore SIG            ignore a signal (TERM, HUP, …)
    exit-main-thread      the rest runs in another thread, the main thread ends
    stop-self             SIGSTOP

Time and order
    slow-import S         S seconds of imports
    eat SIZE              so much of the machine's memory, touched
    sleep S, busy S       S seconds idle, or on the processor
    ready FILE            make FILE, with the PID in it; `%RANK` in the name stands for the rank
    wait-file FILE, wait-gone FILE
    until-adopted         until its parent is PID 1, as programs do that are not to outlive it; as long as hold at most
    hold                  until killed (or until the ledger is taken away, at most ten minutes)

Ending
    print TEXT, eprint TEXT
    exit N, kill-self SIG, abort

Every process notes itself in LEDGER/started.log (`PID NAMESPACE START_TICKS`), so that a test can end what is left.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time

CONTEXT = 518 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
HOLD_LIMIT = 600


def size(text):
    for unit in ("KiB", "MiB", "GiB", "B"):
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * UNITS[unit])
    return int(text)


def number_of(name):
    return getattr(signal, "SIG" + name.removeprefix("SIG")) if not name.isdigit() else int(name)


def start_ticks(pid="self"):
    with open(f"/proc/{pid}/stat", "rb") as f:
        return int(f.read().rsplit(b")", 1)[1].split()[19])


def namespace():
    return os.stat("/proc/self/ns/pid").st_ino


def wait_until(condition):
    while not condition():
        time.sleep(0.005)


class Program:
    """The state of one process: what it has open, what it stands for in the ledger."""

    def __init__(self, ledger, dev):
        self.ledger = os.path.abspath(ledger)
        self.dev = os.path.abspath(dev)
        self.options = ["--ledger", self.ledger, "--dev", self.dev]
        self.files = {}  # node -> descriptors, this process's own and inherited ones
        self.locks = []
        self.children = []
        self.mappings = []
        self.begin()

    def begin(self):
        """This process is new: nothing in the ledger is its own."""
        self.records = {}  # GPU -> (name, allocation)
        self.lock = None
        self.own_files = {}
        self.note(os.getpid(), namespace(), start_ticks())

    def note(self, *words):
        line = " ".join(str(w) for w in words) + "\n"
        fd = os.open(f"{self.ledger}/started.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(fd, line.encode())
        os.close(fd)

    def path(self, name):
        return os.path.join(os.path.dirname(self.ledger), name)

    def machine(self):
        with open(f"{self.ledger}/machine.json") as f:
            return json.load(f)

    # -- device files ------------------------------------------------------------------------------------------------

    def open_up_to(self, node, count):
        have = self.own_files.setdefault(node, [])
        while len(have) < count:
            fd = os.open(f"{self.dev}/{node}", os.O_RDWR)
            have.append(fd)
            self.files.setdefault(node, []).append(fd)

    def node(self, gpu):
        return f"nvidia{self.machine()['devices'][gpu]['minor']}"

    def visible(self):
        devices = self.machine()["devices"]
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            return range(len(devices))
        names = [n.strip() for n in chosen.split(",")]
        return [i for i, d in enumerate(devices) if str(i) in names or d["uuid"] in names]

    def close_files(self):
        for fds in self.files.values():
            for fd in fds:
                os.close(fd)
        for fd in self.locks:
            os.close(fd)
        self.files, self.own_files, self.locks, self.lock, self.records = {}, {}, [], None, {}

    # -- the ledger --------------------------------------------------------------------------------------------------

    def take_lock(self, name):
        """Locked before anything hangs on it, so that no reader can find it free."""
        fd = os.open(f"{self.ledger}/allocations/{name}", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def name(self):
        return f"{namespace()}-{os.getpid()}-{start_ticks()}"

    def write(self, name, allocation):
        aside = f"{self.ledger}/allocations/{name}.new.{os.getpid()}"
        with open(aside, "w") as f:
            json.dump(allocation, f)
        os.replace(aside, f"{self.ledger}/allocations/{name}.json")

    def record(self, gpu, **changes):
        """Changes what this process stands for on this GPU."""
        if self.lock is None:
            self.lock = f"{self.name()}.lock"
            self.locks.append(self.take_lock(self.lock))
        if gpu not in self.records:
            self.records[gpu] = (f"{self.name()}-gpu{gpu}", {"device": gpu, "lock": self.lock})
        name, allocation = self.records[gpu]
        allocation.update(changes)
        self.write(name, allocation)
        return name

    def has(self, gpu, field, otherwise=0):
        return self.records.get(gpu, (None, {}))[1].get(field, otherwise)

    def init(self):
        visible = self.visible()
        self.open_up_to("nvidiactl", 2)
        self.open_up_to("nvidia-uvm", 4)
        for gpu in range(len(self.machine()["devices"])):
            self.open_up_to(self.node(gpu), 7 if gpu in visible else 3)
            if gpu in visible and gpu not in self.records:
                self.record(gpu)

    def context(self, gpu):
        if self.has(gpu, "pid", None) is None:
            self.init()
            self.open_up_to(self.node(gpu), 23)
            self.record(gpu, pid=os.getpid(), pid_ns=namespace(), bytes=CONTEXT)

    def alloc(self, gpu, more):
        self.context(gpu)
        return self.record(gpu, bytes=self.has(gpu, "bytes") + more)

    def managed(self, gpu, more):
        self.context(gpu)
        bytes_listed = self.has(gpu, "bytes") + (2 << 20)
        self.record(gpu, bytes=bytes_listed, unlisted_bytes=self.has(gpu, "unlisted_bytes") + more)

    def bequeath(self, gpu, more, argv, files):
        """A program that gets these files, and the memory with them when this one ends."""
        exporter = self.alloc(gpu, more)
        heir = f"{exporter}-heir-{time.monotonic_ns()}"
        lock = self.take_lock(f"{heir}.lock")
        self.write(heir, {"device": gpu, "inherits": [{"from": exporter, "bytes": more}]})
        child = self.start(argv, pass_fds=(lock, *files()), quiet=True)
        self.note(child.pid, namespace(), start_ticks(child.pid))
        os.close(lock)
        return child

    def export_handle(self, gpu, more):
        self.bequeath(gpu, more, ["sleep", str(HOLD_LIMIT)], lambda: self.own_files["nvidiactl"][:1])

    def leave_files(self, gpu, more):
        files = lambda: [fd for node in ("nvidiactl", self.node(gpu)) for fd in self.own_files[node][:4]]
        self.bequeath(gpu, more, ["sleep", str(HOLD_LIMIT)], files)

    def share(self, path):
        """Maps a file as CUDA's IPC does; the file stays in /dev/shm when its maker is killed."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(fd, mmap.PAGESIZE)
        self.mappings.append(mmap.mmap(fd, mmap.PAGESIZE))
        os.close(fd)

    def listen(self, name):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path(name))
        self.socket.listen()

    def send_handle(self, gpu, more, name):
        exporter = self.alloc(gpu, more)
        heir = f"{exporter}-heir-{time.monotonic_ns()}"
        lock = self.take_lock(f"{heir}.lock")
        self.write(heir, {"device": gpu, "inherits": [{"from": exporter, "bytes": more}]})
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(self.path(name))
            socket.send_fds(there, [b"x"], [lock, self.own_files["nvidiactl"][0]])
        os.close(lock)

    def ipc_produce(self, gpu, more, name, raw=False):
        producer = self.alloc(gpu, more)
        shm = None
        if not raw:
            shm = f"/dev/shm/cuda.shm.{os.getuid():x}.{os.getpid():x}.{start_ticks():x}"
            self.note("shm", shm)
            self.share(shm)
        text = {"from": producer, "gpu": gpu, "bytes": more, "shm": shm}
        with open(self.path(f"{name}.new"), "w") as f:
            json.dump(text, f)
        os.replace(self.path(f"{name}.new"), self.path(name))

    def ipc_consume(self, name):
        wait_until(lambda: os.path.exists(self.path(name)))
        with open(self.path(name)) as f:
            shared = json.load(f)
        if shared["shm"]:
            self.share(shared["shm"])
        self.context(shared["gpu"])
        inherits = self.has(shared["gpu"], "inherits", []) + [{"from": shared["from"], "bytes": shared["bytes"]}]
        self.record(shared["gpu"], inherits=inherits)

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, argv, env=None, session=False, quiet=False, pass_fds=()):
        null = subprocess.DEVNULL if quiet else None
        child = subprocess.Popen(
            argv, env=env, start_new_session=session, pass_fds=pass_fds, stdin=null, stdout=null, stderr=null
        )
        self.children.append(child)
        return child

    def again(self, block, before=(), flags=(), file=__file__, **how):
        """Starts this program anew with these verbs."""
        return self.start([*before, sys.executable, *flags, os.path.abspath(file), *self.options, *block], **how)

    def fork(self):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self.children = []
            self.begin()
        else:
            self.children.append(pid)
        return pid

    def daemonize_twice(self, block):
        sys.stdout.flush()
        first = os.fork()
        if first:
            os.waitpid(first, 0)
            return
        os.setsid()
        if os.fork() == 0:
            self.again(block, quiet=True)
        os._exit(0)

    def supervise(self, count, block):
        running = []

        def end_all(*_):
            for child in running:
                child.kill()
                child.wait()
            running.clear()

        def leave(*_):
            end_all()
            os._exit(143)

        signal.signal(signal.SIGTERM, leave)
        while os.path.exists(f"{self.ledger}/machine.json"):
            for rank in range(count):
                env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
                env.update(TORCHELASTIC_RUN_ID=str(os.getpid()), MASTER_PORT="29500")
                # As torchrun starts them.
                running.append(self.again(block, flags=["-u"], file=os.path.realpath(__file__), env=env, session=True))
            wait_until(lambda: any(child.poll() is not None for child in running))
            if all(child.wait() == 0 for child in running if child.poll() is not None):
                for child in running:
                    child.wait()
                return
            end_all()

    def nanny(self, pause, block):
        while os.path.exists(f"{self.ledger}/machine.json"):
            self.again(block).wait()
            time.sleep(pause)

    def trace(self, name):
        with open(self.path(name)) as f:
            tracee = int(f.read())
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(ctypes.c_long(16), ctypes.c_long(tracee), None, None) != 0:  # PTRACE_ATTACH
            raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(tracee, 0x40000000)  # __WALL

    def block_in_kernel(self):
        # A child that the kernel makes us wait for, as vfork does, but with its own copy of our memory.
        call = {"x86_64": 56, "aarch64": 220}[platform.machine()]
        libc = ctypes.CDLL(None)
        if libc.syscall(call, ctypes.c_long(0x4000 | signal.SIGCHLD), 0, 0, 0, 0) == 0:
            self.children = []
            self.close_files()
            self.begin()
            self.hold()
            os._exit(0)

    def sleep_as(self, number):
        wanted = (ctypes.c_int * 1)(number)
        # struct clone_args: only exit_signal, set_tid and set_tid_size are not 0.
        how = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        end = time.monotonic() + 5
        while (child := libc.syscall(435, how, ctypes.sizeof(how))) < 0:  # clone3
            if ctypes.get_errno() != errno.EEXIST or time.monotonic() > end:
                leave(0)
            time.sleep(0.002)
        if child == 0:
            os.execvp("sleep", ["sleep", str(HOLD_LIMIT)])
        self.note(child, namespace(), start_ticks(child))
        self.children.append(child)

    def log_to(self, path):
        self.log = open(path, "ab", buffering=0)

    def wait_children(self):
        for child in self.children:
            if isinstance(child, int):
                os.waitpid(child, 0)
            else:
                child.wait()
        self.children = []

    # -- being -------------------------------------------------------------------------------------------------------

    def settitle(self, text):
        with open("/proc/self/stat", "rb") as f:
            rest = f.read().rsplit(b")", 1)[1].split()
        first, last = int(rest[45]), int(rest[48])  # arg_start and env_end, fields 48 and 51
        title = os.fsencode(text)[: last - first - 1]
        ctypes.memset(first, 0, last - first)
        ctypes.memmove(first, title, len(title))

    def exit_main_thread(self, rest):
        # The interpreter's lock is let go around the call, so that the other thread can go on.
        threading.Thread(target=lambda: run(self, rest)).start()
        call = {"x86_64": 60, "aarch64": 93}[platform.machine()]
        ctypes.CDLL(None).syscall(call, 0)

    def busy(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    def ready(self, name):
        name = name.replace("%RANK", os.environ.get("RANK", ""))
        with open(self.path(f"{name}.new.{os.getpid()}"), "w") as f:
            f.write(str(os.getpid()))
        os.replace(f.name, self.path(name))

    def until_adopted(self):
        end = time.monotonic() + HOLD_LIMIT
        while time.monotonic() < end and os.path.exists(f"{self.ledger}/machine.json") and os.getppid() != 1:
            time.sleep(0.02)

    def hold(self):
        end = time.monotonic() + HOLD_LIMIT
        while time.monotonic() < end and os.path.exists(f"{self.ledger}/machine.json"):
            time.sleep(0.1)


def leave(code):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def late(program, gpu, steps, **how):
    pairs = [step.split(":") for step in steps.split(",")]
    program.record(gpu, release_steps_ms=[[int(ms), size(left)] for ms, left in pairs], **how)


EATEN = []


def eat(amount):
    for _ in range(max(1, amount >> 20)):
        EATEN.append(bytearray(b"x" * (1 << 20)))


def kill_self(name):
    os.kill(os.getpid(), number_of(name))


def show(text, to):
    print(text, file=to, flush=True)


# verb -> (how many arguments, what to do); the arguments come as text.
PLAIN = {
    "init": (0, lambda p: p.init()),
    "context": (1, lambda p, g: p.context(int(g))),
    "alloc": (2, lambda p, g, s: p.alloc(int(g), size(s))),
    "free": (2, lambda p, g, s: p.alloc(int(g), -size(s))),
    "managed": (2, lambda p, g, s: p.managed(int(g), size(s))),
    "late": (2, lambda p, g, steps: late(p, int(g), steps)),
    "late-listed": (2, lambda p, g, steps: late(p, int(g), steps, release_listed=True)),
    "lists": (2, lambda p, g, lists: p.record(int(g), lists=lists.split(","))),
    "instance": (3, lambda p, g, gi, ci: p.record(int(g), gi=int(gi), ci=int(ci))),
    "unavailable": (1, lambda p, g: p.record(int(g), unavailable=True)),
    "export-handle": (2, lambda p, g, s: p.export_handle(int(g), size(s))),
    "leave-files": (2, lambda p, g, s: p.leave_files(int(g), size(s))),
    "ipc-produce": (3, lambda p, g, s, name: p.ipc_produce(int(g), size(s), name)),
    "ipc-produce-raw": (3, lambda p, g, s, name: p.ipc_produce(int(g), size(s), name, raw=True)),
    "ipc-consume": (1, lambda p, name: p.ipc_consume(name)),
    "listen": (1, lambda p, name: p.listen(name)),
    "send-handle": (3, lambda p, g, s, name: p.send_handle(int(g), size(s), name)),
    "keep": (1, lambda p, path: os.open(path, os.O_RDWR | os.O_NOCTTY)),
    "open": (2, lambda p, node, n: p.open_up_to(node, int(n))),
    "close-files": (0, lambda p: p.close_files()),
    "exec-child": (0, lambda p: p.note(
        (c := subprocess.Popen(["sleep", str(HOLD_LIMIT)], close_fds=False, stdout=subprocess.DEVNULL)).pid,
        namespace(), start_ticks(c.pid))),
    "sleep-as": (1, lambda p, n: p.sleep_as(int(n))),
    "trace": (1, lambda p, name: p.trace(name)),
    "block-in-kernel": (0, lambda p: p.block_in_kernel()),
    "log-to": (1, lambda p, path: p.log_to(path)),
    "log": (1, lambda p, text: p.log.write(os.fsencode(text))),
    "touch": (1, lambda p, path: open(path, "ab").close()),
    "wait-children": (0, lambda p: p.wait_children()),
    "subreaper": (0, lambda p: ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)),
    "rename": (1, lambda p, name: ctypes.CDLL(None).prctl(15, os.fsencode(name), 0, 0, 0)),
    "settitle": (1, lambda p, text: p.settitle(text)),
    "setuid": (1, lambda p, uid: os.setuid(int(uid))),
    "ignore": (1, lambda p, name: signal.signal(number_of(name), signal.SIG_IGN)),
    "stop-self": (0, lambda p: kill_self("STOP")),
    "slow-import": (1, lambda p, s: time.sleep(float(s))),
    "eat": (1, lambda p, s: eat(size(s))),
    "sleep": (1, lambda p, s: time.sleep(float(s))),
    "busy": (1, lambda p, s: p.busy(float(s))),
    "ready": (1, lambda p, name: p.ready(name)),
    "wait-file": (1, lambda p, name: wait_until(lambda: os.path.exists(p.path(name)))),
    "wait-gone": (1, lambda p, name: wait_until(lambda: not os.path.exists(p.path(name)))),
    "until-adopted": (0, lambda p: p.until_adopted()),
    "hold": (0, lambda p: p.hold()),
    "print": (1, lambda p, text: show(text, sys.stdout)),
    "eprint": (1, lambda p, text: show(text, sys.stderr)),
    "exit": (1, lambda p, code: leave(int(code))),
    "kill-self": (1, lambda p, name: kill_self(name)),
    "abort": (0, lambda p: os.abort()),
}


def nvml(program):
    program.open_up_to("nvidiactl", 1)
    program.open_up_to("nvidia-uvm", 2)
    for gpu in range(len(program.machine()["devices"])):
        program.open_up_to(program.node(gpu), 3)


PLAIN["nvml"] = (0, nvml)


def namespaced(program, block):
    program.again(block, before=["unshare", "-pf", "--mount-proc"])


def forked(program, block):
    if program.fork() == 0:
        run(program, block)


# verb -> (arguments before the block, what to do)
WITH_BLOCK = {
    "fork": (0, forked),
    "spawn": (0, lambda p, block: p.again(block)),
    "spawn-session": (0, lambda p, block: p.again(block, session=True)),
    "spawn-clean": (0, lambda p, block: p.again(block, env={})),
    "daemonize-twice": (0, lambda p, block: p.daemonize_twice(block)),
    "namespace": (0, namespaced),
    "nanny": (1, lambda p, s, block: p.nanny(float(s), block)),
    "supervise": (1, lambda p, n, block: p.supervise(int(n), block)),
}


def split_block(words):
    """The words of the block that begins here, and what follows it."""
    if not words or words[0] != "{":
        sys.exit(f"cuda.py: a block in {{ }} is missing before {words[:1]}")
    depth = 0
    for place, word in enumerate(words):
        depth += (word == "{") - (word == "}")
        if depth == 0:
            return words[1:place], words[place + 1 :]
    sys.exit("cuda.py: a block is not closed")


def run(program, words):
    """Runs the verbs, then ends the process."""
    words = list(words)
    try:
        while words:
            verb = words.pop(0)
            if verb == "fork-and-exit":
                if program.fork():
                    leave(0)
            elif verb == "run":
                count = int(words[0])
                leave(subprocess.run(words[1 : count + 1]).returncode)
            elif verb == "exit-main-thread":
                program.exit_main_thread(words)
            elif verb in WITH_BLOCK:
                count, action = WITH_BLOCK[verb]
                arguments, words = words[:count], words[count:]
                block, words = split_block(words)
                action(program, *arguments, block)
            elif verb in PLAIN:
                count, action = PLAIN[verb]
                action(program, *words[:count])
                words = words[count:]
            else:
                sys.exit(f"cuda.py: unknown verb {verb!r}")
    except SystemExit as e:
        print(e, file=sys.stderr)
        leave(98)
    except BaseException:
        import traceback

        traceback.print_exc()
        leave(97)
    leave(0)


def main():
    words = sys.argv[1:]
    places = {"--ledger": os.environ.get("FAKE_NVML_LEDGER"), "--dev": os.environ.get("FAKE_DEV")}
    while words and words[0] in places:
        places[words[0]] = words[1]
        words = words[2:]
    if None in places.values():
        sys.exit("cuda.py: where is the fake machine? Set FAKE_NVML_LEDGER and FAKE_DEV or give --ledger and --dev.")
    run(Program(places["--ledger"], places["--dev"]), words)


if __name__ == "__main__":
    main()

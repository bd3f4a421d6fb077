"""Draws what a terminal shows: real commands, run in a terminal of their own, as pictures for the README and the guide.

    python3 tests/gpu/screens.py --binary target/release/gpuresid --out src/guide/pictures
    python3 tests/gpu/screens.py --binary target/debug/gpuresid --simulated target/debug/deps/libfake_nvml.so --out DIR

It needs one idle GPU (or the fake driver of the other tests), some 6 GiB of its memory, half a minute, and Python 3.9 or
newer. It ends what it started, by PID. A picture is an SVG of text, readable on light and on dark pages; the same
screen gives the same bytes.
"""

import argparse
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata
from fcntl import ioctl
from xml.sax.saxutils import escape

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import simulated  # noqa: E402

COLUMNS, ROWS = 100, 200
PATIENCE = 90

# ---- A terminal -----------------------------------------------------------------------------------------------------


class Screen:
    """What a terminal shows after these bytes, as far as the tool uses one. A sequence that it does not know is an error:
    a picture must not show what no terminal would."""

    SEQUENCE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07")

    def __init__(self, columns=COLUMNS):
        self.columns, self.rows, self.row, self.column, self.style = columns, [{}], 0, 0, ()

    def write(self, text):
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = self.SEQUENCE.match(text, at)
                if not found:
                    raise ValueError(f"not understood: {text[at:at + 12]!r}")
                if found[2]:
                    self.control(found[1], found[2])
                at = found.end()
            else:
                self.put(text[at])
                at += 1
        return self

    def put(self, char):
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.to_row(self.row + 1)
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char == "\t":
            self.column = (self.column // 8 + 1) * 8
        elif ord(char) < 32:
            raise ValueError(f"not understood: {char!r}")
        else:
            if self.column + width(char) > self.columns:
                self.column = 0
                self.to_row(self.row + 1)
            self.rows[self.row][self.column] = (char, self.style)
            self.column += width(char)

    def to_row(self, row):
        self.row = max(0, row)
        while len(self.rows) <= self.row:
            self.rows.append({})

    def control(self, values, letter):
        if values.startswith("?"):
            return  # the cursor shown or hidden, and the like
        numbers = [int(value or 0) for value in values.split(";")]
        count = numbers[0] or 1
        if letter == "m":
            for number in numbers:
                self.style = restyled(self.style, number)
        elif letter == "K":
            keep = {0: lambda c: c < self.column, 1: lambda c: c > self.column, 2: lambda c: False}[numbers[0]]
            self.rows[self.row] = {c: cell for c, cell in self.rows[self.row].items() if keep(c)}
        elif letter == "A":
            self.to_row(self.row - count)
        elif letter == "B":
            self.to_row(self.row + count)
        elif letter == "G":
            self.column = count - 1
        elif letter == "J" and numbers[0] == 0:
            self.control("0", "K")
            self.rows[self.row + 1:] = []
        else:
            raise ValueError(f"not understood: ESC [ {values} {letter}")

    def lines(self):
        """Each line as runs of one style: (column, text, style). Blank lines at both ends are left out."""
        lines = [self.runs(row) for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        while lines and not lines[0]:
            lines.pop(0)
        return lines

    @staticmethod
    def runs(row):
        runs, end = [], 0
        for column, (char, style) in sorted(row.items()):
            # Where several spaces stand, the next run begins behind them: not every viewer keeps them.
            if char == " ":
                continue
            if runs and runs[-1][2] == style and column - end <= 1:
                runs[-1][1] += " " * (column - end) + char
            else:
                runs.append([column, char, style])
            end = column + width(char)
        return [tuple(run) for run in runs]


def width(char):
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


COLOURS = dict(enumerate(("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")))


def restyled(style, number):
    """The style after one number of a sequence that sets it."""
    marks = {1: "bold", 2: "dim", 3: "italic", 4: "underline"}
    if number == 0:
        return ()
    if number in marks:
        return tuple(sorted({*style, marks[number]}))
    if number == 22:
        return tuple(mark for mark in style if mark not in ("bold", "dim"))
    rest = tuple(mark for mark in style if mark not in COLOURS.values())
    if number == 39:
        return rest
    if number % 10 in COLOURS and number // 10 in (3, 9):
        return tuple(sorted({*rest, COLOURS[number % 10]}))
    raise ValueError(f"a style that is not drawn: {number}")


# ---- A picture ------------------------------------------------------------------------------------------------------

CELL, LINE, MARGIN = 8.4, 19, 16
STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
  .bold { font-weight: 700 } .dim { fill: #59636e } .italic { font-style: italic } .underline { text-decoration: underline }
  .red { fill: #cf222e } .green { fill: #116329 } .yellow { fill: #7d4e00 } .blue { fill: #0550ae } .magenta { fill: #8250df } .cyan { fill: #1b7c83 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .dim { fill: #8d96a0 }
    .red { fill: #ff7b72 } .green { fill: #3fb950 } .yellow { fill: #d29922 } .blue { fill: #79c0ff } .magenta { fill: #d2a8ff } .cyan { fill: #39c5cf }
  }
"""


def svg(title, screen):
    """The screen as a picture. Every run of text is told its place and its length, so that columns stand under each
    other in every font."""
    lines = screen.lines()
    across = 2 * MARGIN + CELL * max((c + sum(map(width, t)) for line in lines for c, t, _ in line), default=1)
    down = 2 * MARGIN + LINE * len(lines)
    size = f"{across:.0f} {down:.0f}"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{across:.0f}" height="{down:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{across - 1:.0f}" height="{down - 1:.0f}" rx="8"/>',
    ]
    for number, line in enumerate(lines):
        for column, text, style in line:
            long = CELL * sum(map(width, text))
            marks = f' class="{" ".join(style)}"' if style else ""
            place = f'x="{MARGIN + CELL * column:.1f}" y="{MARGIN + LINE * number + 14}" textLength="{long:.1f}"'
            drawn.append(f'<text {place} lengthAdjust="spacingAndGlyphs"{marks}>{escape(text)}</text>')
    return "\n".join([*drawn, "</svg>", ""])


# ---- Commands -------------------------------------------------------------------------------------------------------


def typed(line, place):
    """A command line of a shell in a terminal of its own, with its prompt and all that it prints."""
    pid, terminal = pty.fork()
    if pid == 0:
        # Before the command asks for it.
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.chdir(place)
        os.execvp("sh", ["sh", "-c", line])
    raw, end = b"", time.monotonic() + PATIENCE
    # A leftover keeps the terminal open, so it is read until the command has ended, and then until it is empty.
    ended = False
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.05)
        try:
            piece = os.read(terminal, 65536) if ready else b""
        except OSError:  # nobody has it open any more
            piece, ended = b"", True
        raw += piece
        if ended and not piece:
            break
        if not ended:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"{line} has not ended in {PATIENCE} s: {raw.decode(errors='replace')}")
    os.close(terminal)
    return f"\x1b[2m$\x1b[0m \x1b[1m{line}\x1b[0m\r\n{raw.decode()}"


TRAINER = """\
import os, subprocess, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, {here!r})
{imports}
def told(name):
    with open(name + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + ".part", name)
def wait_for(name):
    end = time.monotonic() + 60
    while not os.path.exists(name):
        if time.monotonic() > end:
            sys.exit(name + " does not come")
        time.sleep(0.01)
"""

# Their end is nobody's loss: whoever is forgotten ends itself.
PROGRAMS = {
    "forks": {
        "train.py": "cuda = Cuda()\ncuda.alloc(5220)\nif os.fork() == 0:\n    os.setsid()\n    told('holder')\n    time.sleep(600)\n    os._exit(0)\nwait_for('holder')\nos._exit(0)\n",
    },
    "leaves": {
        "train.py": "cuda = Cuda()\ncuda.alloc(4096)\nsubprocess.Popen(['python', 'worker.py'], stdin=subprocess.DEVNULL, start_new_session=True)\nwait_for('holder')\ntime.sleep(0.5)\n",
        "worker.py": "cuda = Cuda()\ncuda.alloc(2048)\ntold('holder')\ntime.sleep(600)\n",
    },
    "clean": {"train.py": "cuda = Cuda()\ncuda.alloc(4096)\ntime.sleep(1)\n"},
}


class Stage:
    """A directory with programs, and a PATH by which they are started as people start them."""

    def __init__(self, directory, binary, library):
        self.directory, self.started = directory, []
        bins = os.path.join(directory, "bin")
        os.mkdir(bins)
        os.symlink(sys.executable, os.path.join(bins, "python"))
        os.symlink(binary, os.path.join(bins, "gpuresid"))
        path = bins
        self.imports = "from cudalite import Cuda"
        if library:
            os.mkdir(os.path.join(directory, "machine"))
            tool = simulated.make_machine(os.path.join(directory, "machine"), binary, library)
            # So that the plain name leads to it, and is printed.
            with open(tool, encoding="utf-8") as file:
                text = file.read().replace("exec ", f'PATH="{bins}:$PATH" exec ', 1)
            with open(tool, "w", encoding="utf-8") as file:
                file.write(text)
            path = os.path.dirname(tool) + os.pathsep + path
            self.imports = "from simulated import Cuda"
        os.environ.update(PATH=path + os.pathsep + os.environ["PATH"], TERM="xterm-256color", LC_ALL="C.UTF-8")
        for name in [name for name in os.environ if name.startswith("GPURESID_") and name != "GPURESID_SETTLE"] + ["NO_COLOR", "COLUMNS"]:
            os.environ.pop(name, None)

    def scene(self, name):
        """A directory with the programs of this scene."""
        place = os.path.join(self.directory, name)
        os.mkdir(place)
        for file, text in PROGRAMS[name].items():
            with open(os.path.join(place, file), "w", encoding="utf-8") as out:
                out.write(TRAINER.format(here=HERE, imports=self.imports) + text)
        return place

    def end(self, place):
        """Ends what this scene left, by the PID that it told, if it still is that program."""
        holder = os.path.join(place, "holder")
        if not os.path.exists(holder):
            return
        with open(holder, encoding="ascii") as file:
            pid = int(file.read())
        try:
            if os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(place):
                os.kill(pid, signal.SIGKILL)
                end = time.monotonic() + 20
                while os.path.exists(f"/proc/{pid}/fd/0") and time.monotonic() < end:
                    time.sleep(0.05)
        except OSError:
            pass


def hidden(stage):
    """A card whose holder nvidia-smi does not show."""
    place = stage.scene("forks")
    try:
        subprocess.run(["python", "train.py"], cwd=place, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE)
        screen = Screen()
        if shutil.which("nvidia-smi"):
            screen.write(typed("nvidia-smi | grep -E 'MiB|No running'", place) + "\r\n")
        return screen.write(typed("gpuresid", place))
    finally:
        stage.end(place)


def leftover(stage):
    """A check that finds a leftover."""
    place = stage.scene("leaves")
    try:
        return Screen().write(typed("gpuresid check -- python train.py", place))
    finally:
        stage.end(place)


def clean(stage):
    """A check of a clean run."""
    return Screen().write(typed("gpuresid check -- python train.py", stage.scene("clean")))


# What each must show: a picture of something else is worse than none.
PICTURES = (
    ("hidden", hidden, "gpuresid names the process that keeps the memory of one that is gone", "forked copy"),
    ("leftover", leftover, "gpuresid check finds a worker that outlived its run", "residue"),
    ("clean", clean, "gpuresid check says that all GPU memory came back", "clean"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, metavar="PATH")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the pictures are written")
    parser.add_argument("--simulated", metavar="LIBRARY", help="no GPU: the fake driver (see simulated.py)")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screens-") as directory:
        stage = Stage(directory, os.path.abspath(args.binary), args.simulated and os.path.abspath(args.simulated))
        for name, play, title, word in PICTURES:
            screen = play(stage)
            text = "\n".join("".join(run[1] + " " for run in line) for line in screen.lines())
            if word not in text:
                sys.exit(f"{name} does not show `{word}`:\n{text}")
            path = os.path.join(args.out, f"{name}.svg")
            with open(path, "w", encoding="utf-8") as file:
                file.write(svg(title, screen))
            print(f"{path}: {len(screen.lines())} lines")


if __name__ == "__main__":
    main()

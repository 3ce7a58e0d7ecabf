"""The folders of runs, the same as gomflux's:

    logs/runs/latest/SIDE/{settings.json,checkpoints,tensors,traces,images}
    logs/runs/archive/TIME-SIDE/...
    logs/runs/.gitignore

SIDE is reference here (gomflux on the other side), TIME when that run began, in UTC. A new run moves the latest one
to the archive. While a run lasts it holds a lock on latest/.SIDE.lock, and another that begins meanwhile goes straight
into the archive, so that they do not mix.
"""

import datetime
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SIDE = "reference"
FOLDERS = ("checkpoints", "tensors", "traces", "images")
PACKAGES = ("torch", "diffusers", "transformers", "tokenizers", "numpy", "pillow")
WARN, REFUSE = 1 << 30, 10 << 30  # bytes of the whole tree
BEGAN = "began"  # of settings.json: the run's time, which its archive is named by
ENDED = "ended"  # and when it ended; a run with neither this nor "interrupted" was killed
LOG = "output.log"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")


def default_root() -> Path:
    return Path(os.environ.get("GOMFLUX_LOG_DIR") or "logs")


def versions(packages=PACKAGES) -> dict:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def git_state() -> dict | None:
    """The commit of the working directory's repository and whether files differ from it, or None outside of one."""

    def git(*args):
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def stamp(time: datetime.datetime) -> str:
    return time.strftime("%Y%m%dT%H%M%S.%fZ")


def size_of(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def limit_of(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise SystemExit(f"{name}={text}: expected a number of bytes")
    return int(text or default)


def refuse_full(root: Path, size: int):
    """Ends the program if the tree of runs is too large."""
    limit = limit_of("GOMFLUX_LOG_LIMIT", REFUSE)
    if size > limit:
        oldest = sorted(p.name for p in (root / "runs" / "archive").glob("*"))[:3]
        hint = f"; the oldest archived runs are {', '.join(oldest)}" if oldest else ""
        raise SystemExit(
            f"{root} holds {size / 1e9:.2f} GB, the limit is {limit / 1e9:.2f} GB: remove runs{hint} "
            "(GOMFLUX_LOG_LIMIT sets another limit, in bytes)"
        )


class Run:
    """This process's run. Making one archives the latest."""

    def __init__(self, root: Path | None = None, side: str = SIDE):
        root = root or default_root()
        self.root, self.side = root, side
        latest, archive = root / "runs" / "latest", root / "runs" / "archive"
        self.size, self._warned = size_of(root), False
        self.reserve(0)
        latest.mkdir(parents=True, exist_ok=True)
        ignore(root / "runs")
        self.began = datetime.datetime.now(datetime.timezone.utc)
        self._lock = lock(latest / f".{side}.lock")
        if not self._lock:
            self.folder = fresh(archive / f"{stamp(self.began)}-{side}")
            self._lock = lock(latest / f".{self.folder.name}.lock")
            print(f"another {side} run is going on: this one is in {self.folder}", file=sys.stderr)
        else:
            self.folder = latest / side
            if self.folder.exists():
                archive.mkdir(parents=True, exist_ok=True)
                self.folder.rename(fresh(archive / f"{began(self.folder)}-{side}"))
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True)
        self._log = Log(self.folder / LOG)

    def __enter__(self):
        return self

    def __exit__(self, error, value, _):
        if error:  # which is printed only after this
            self._log.write(f"{'' if issubclass(error, SystemExit) else error.__name__ + ': '}{value}\n")
        self.end(interrupted=error is not None)

    def reserve(self, more: int):
        """Counts bytes that are about to be written. Warns about a large tree, and refuses one that is too large."""
        self.size += more
        refuse_full(self.root, self.size)
        if self.size > limit_of("GOMFLUX_LOG_WARN", WARN) and not self._warned:
            self._warned = True
            print(f"warning: {self.root} holds {self.size / 1e9:.2f} GB of runs", file=sys.stderr)

    def settings(self) -> dict:
        """Returns the settings that every run has."""
        return {
            "side": self.side,
            BEGAN: stamp(self.began),
            "command_line": shlex.join(sys.argv),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "git": git_state(),
        }

    def describe(self, settings: dict):
        """Writes settings.json of a run whose tensors are files of their own."""
        self._write(settings | self.settings())

    def begin(self, settings: dict):
        """Writes settings.json of a run whose tensors are still to come."""
        self._write(settings | {"files": []})

    def add(self, more: dict):
        """Adds to settings.json, if there is one yet."""
        try:
            settings = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            settings = self.settings()
        self._write(settings | more)

    def _write(self, settings: dict):
        text = json.dumps(settings, indent=1, ensure_ascii=False, default=str) + "\n"
        new = self.folder / ".settings.json"
        new.write_text(text, encoding="utf-8")
        new.rename(self.folder / "settings.json")

    def end(self, interrupted: bool = False):
        """Records when the run ended, or that an error or a signal has interrupted it."""
        if self._lock.closed:
            return
        self._log.close()
        with suppress(OSError):  # of a full disk
            ended = stamp(datetime.datetime.now(datetime.timezone.utc))
            self.add({"interrupted": True} if interrupted else {ENDED: ended})
        self._lock.close()
        if self.folder.parent.name == "archive":
            (self.root / "runs" / "latest" / f".{self.folder.name}.lock").unlink(missing_ok=True)


class Log:
    """Keeps in a file what the program prints, without the control codes of progress bars."""

    def __init__(self, file: Path):
        self._file = open(file, "w", encoding="utf-8", buffering=1)
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (Copied(stream, self) for stream in self._streams)
        self._own = sys.stdout, sys.stderr
        self._line = ""

    def write(self, text: str):
        if self._file.closed:
            return
        *lines, self._line = (self._line + text).split("\n")
        with suppress(OSError):  # of a full disk
            for line in lines:
                # a progress bar writes its line again and again
                self._file.write(CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]) + "\n")

    def close(self):
        if self._line:
            self.write("\n")
        if (sys.stdout, sys.stderr) == self._own:
            sys.stdout, sys.stderr = self._streams
        self._file.close()


class Copied:
    """A stream whose text goes into a log as well."""

    def __init__(self, stream, log: Log):
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        self._log.write(text)
        return self._stream.write(text)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def ignore(folder: Path):
    """Keeps a folder out of git, unless it has a .gitignore already."""
    try:
        with open(folder / ".gitignore", "x") as f:
            f.write("*\n")
    except FileExistsError:
        pass


def lock(file: Path):
    """The file, locked as long as it is open; None if another process has it."""
    opened = open(file, "w")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        return None
    return opened


def busy(root: Path, side: str) -> bool:
    """Reports whether a process is writing a side's latest run."""
    file = root / "runs" / "latest" / f".{side}.lock"
    if not file.exists():
        return False
    if held := lock(file):
        held.close()
    return not held


def began(folder: Path) -> str:
    """When an earlier run began; one that never said so, when its folder was made."""
    try:
        return json.loads((folder / "settings.json").read_text(encoding="utf-8"))[BEGAN]
    except (OSError, ValueError, KeyError):
        return stamp(datetime.datetime.fromtimestamp(folder.stat().st_mtime, datetime.timezone.utc))


def fresh(path: Path) -> Path:
    """path, or with a number at its end if there is one already."""
    n, candidate = 1, path
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}-{n}")
    return candidate


def copy_into(file: Path, folder: Path) -> Path:
    """A copy of a file in a folder, unless it is there already."""
    to = folder / file.name
    if to.resolve() != file.resolve():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    return to

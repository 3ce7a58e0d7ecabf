"""The folders of runs, the same as gomflux's:

    logs/runs/latest/SIDE/{settings.json,checkpoints,tensors,traces,images}
    logs/runs/archive/TIME-SIDE/...

SIDE is reference here (gomflux on the other side), TIME when that run began, in UTC. A new run moves the latest one
to the archive. While a run lasts it holds a lock on latest/.SIDE.lock, and another that begins meanwhile goes straight
into the archive, so that they do not mix.
"""

import datetime
import fcntl
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SIDE = "reference"
FOLDERS = ("checkpoints", "tensors", "traces", "images")
PACKAGES = ("torch", "diffusers", "transformers", "tokenizers", "numpy", "pillow")
WARN, REFUSE = 1 << 30, 10 << 30  # bytes of the whole tree
BEGAN = "began"  # of settings.json: the run's time, which its archive is named by


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


def check_size(root: Path):
    """Warns about a large tree, and refuses one that is too large. GOMFLUX_LOG_WARN and _LIMIT set other bytes."""
    size = size_of(root)
    limit = int(os.environ.get("GOMFLUX_LOG_LIMIT", REFUSE))
    if size > limit:
        oldest = sorted(p.name for p in (root / "runs" / "archive").glob("*"))[:3]
        hint = f"; the oldest archived runs are {', '.join(oldest)}" if oldest else ""
        raise SystemExit(f"{root} holds {size / 1e9:.1f} GB, more than {limit / 1e9:.1f} GB: remove runs{hint}")
    if size > int(os.environ.get("GOMFLUX_LOG_WARN", WARN)):
        print(f"warning: {root} holds {size / 1e9:.1f} GB", file=sys.stderr)


class Run:
    """This process's run. Making one archives the latest."""

    def __init__(self, root: Path | None = None, side: str = SIDE):
        root = root or default_root()
        self.root, self.side = root, side
        latest, archive = root / "runs" / "latest", root / "runs" / "archive"
        check_size(root)
        latest.mkdir(parents=True, exist_ok=True)
        self.began = datetime.datetime.now(datetime.timezone.utc)
        self._lock = open(latest / f".{side}.lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.folder = fresh(archive / f"{stamp(self.began)}-{side}")
            print(f"another {side} run is going on: this one is in {self.folder}", file=sys.stderr)
        else:
            self.folder = latest / side
            if self.folder.exists():
                archive.mkdir(parents=True, exist_ok=True)
                self.folder.rename(fresh(archive / f"{began(self.folder)}-{side}"))
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True)

    def settings(self) -> dict:
        """What every run says about itself."""
        return {
            BEGAN: stamp(self.began),
            "command_line": shlex.join(sys.argv),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "git": git_state(),
        }

    def describe(self, settings: dict):
        """Writes settings.json of a run whose tensors are files of their own."""
        text = json.dumps(settings | self.settings(), indent=1, ensure_ascii=False) + "\n"
        (self.folder / "settings.json").write_text(text, encoding="utf-8")


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

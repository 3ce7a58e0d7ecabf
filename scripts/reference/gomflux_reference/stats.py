"""Statistics of tensors as they are computed, without the tensors: a line each in traces/stats.jsonl.

A line has what gomflux's --debug-stats writes:

    {"name", "hit_count", "timestamp", "location": {"file", "line", "function"}, "point", "class", "shape", "dtype",
     "stats": {"min", "max", "mean", "std", "nan", "inf"}, "preview"}

A module's location is its class's forward, and that of a value of the pipeline is the line that computed it.
"""

import inspect
import json
import sys
from functools import cache
from pathlib import Path

from . import debug
from .record import Taps

FILE = Path("traces", "stats.jsonl")
STARTS = (str(Path(__file__).with_name("__main__.py")), "<string>")  # the files of this program's first frames


class Stats:
    """Writes lines to the stats of a run's or a dump's folder. Each is on disk when the next tensor is computed."""

    option, failed = "stats", None

    def __init__(self, folder: Path, run=None):
        self.file, self.run, self.lines = folder / FILE, run, 0
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._opened = open(self.file, "w", encoding="utf-8", buffering=1)
        self._hits = {}

    def put(self, name: str, tensor, module=None):
        self._hits[name] = hit = self._hits.get(name, 0) + 1
        known = {"name": name, "hit_count": hit, "timestamp": debug.now(), "location": place(module)}
        known |= {"point": debug.point_of(name), "class": type(module).__name__ if module is not None else ""}
        line = json.dumps(known | debug.summary(tensor), ensure_ascii=False) + "\n"
        if self.run:
            self.run.reserve(len(line))
        self._opened.write(line)
        self.lines += 1

    def settings(self) -> dict:
        return {"stats": self.lines}


def attach(record, stats, untapped=()):
    """Has a recorder write statistics of the tensors that globs name."""
    if stats:
        record.observe(Taps([*stats, *(f"!{glob}" for glob in untapped)]), Stats(record.out, record.run))


def place(module) -> dict:
    if module is not None:
        return of_class(type(module))
    return of_pipeline()


@cache
def of_class(cls) -> dict:
    try:
        forward = inspect.unwrap(getattr(cls, "forward", cls.__call__))
        return {
            "file": inspect.getsourcefile(forward), "line": forward.__code__.co_firstlineno,
            "function": forward.__qualname__,
        }  # fmt: skip
    except (AttributeError, TypeError):  # a forward that is not written in Python
        return {"file": "", "line": 0, "function": f"{cls.__module__}.{cls.__qualname__}"}


def of_pipeline() -> dict:
    """The innermost caller outside of this package and torch: a line of the pipeline."""
    frame, own = sys._getframe(1), None
    while frame:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(f"{__package__}."):
            own = own or (frame if module == f"{__package__}.dump" else None)
        elif not module.startswith(("torch.", "runpy")) and frame.f_code.co_filename not in STARTS:
            own = frame
            break
        frame = frame.f_back
    if not own:
        return {"file": "", "line": 0, "function": ""}
    return {"file": own.f_code.co_filename, "line": own.f_lineno, "function": own.f_code.co_qualname}

"""Stops at lines of Python files: through sys.monitoring, or before Python 3.12 through a trace function.

Without a breakpoint at a line neither is there. With one, only code that has such a line is watched: sys.monitoring is
told once of each function that runs. A trace function is called once per call of any function, so it is set only when a
file with a breakpoint is imported: the import of the libraries is not slower.
"""

import ctypes
import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

from . import expressions
from .wire import Refused

MONITORING = hasattr(sys, "monitoring")
SEARCHED = ("diffusers", "transformers")  # packages in which a file is found by its name alone
NEAR = 3
MISSING = object()
# Modules in which stepping from line to line does not stop.
HIDDEN = ("torch", "gomflux_reference", "importlib", "_frozen_importlib", "contextlib", "runpy")
STEPS = ("over", "into", "out")


class Lines:
    def __init__(self, session):
        self.session = session
        self.breakpoints = []
        self.wanted = {}  # file -> line -> breakpoints
        self.files = {}  # the name of a file in code -> its part of wanted
        self.executed = set()  # names of files whose functions were called
        self.tool, self.watched, self.tracing = None, [], False
        self.stepping = None  # how, and the frames of the run at whose next line it stops

    def check(self, file: str, line: int) -> str:
        """The path of a file that has code at a line. Other lines are refused."""
        path = find(file)
        try:
            found = lines_with_code(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))
        except (OSError, SyntaxError, ValueError) as e:
            raise Refused(f"{path}: {' '.join(str(e).split())}") from None
        if line not in found:
            close = sorted(sorted(found, key=lambda n: abs(n - line))[:NEAR])
            raise Refused(f"{path}:{line}: no code (nearest lines with code: {', '.join(map(str, close)) or 'nothing'})")
        return str(path)

    def set(self):
        """Puts the breakpoints in place. Before Python 3.12, in this thread and those that it starts."""
        wanted = {}
        for b in self.breakpoints:
            wanted.setdefault(os.path.realpath(b.asked["file"]), {}).setdefault(b.asked["line"], []).append(b)
        if not wanted and not self.wanted:
            return
        self.wanted, self.files = wanted, {}
        if MONITORING:
            self._monitor()
        else:
            self._trace()

    def step(self, how: str, frame):
        """Has the run stop before another line: of the frame or those around it, with into also of functions that are called."""
        frames = [f for f in frames_from(frame) if not hidden(f)]
        self.stepping = how, frames[how == "out" :]
        if not self.stepping[1]:
            self.stepping = None
            raise Refused("there is no Python around this place (next and continue go on)")
        if MONITORING:
            self._monitor()
            return
        for f in self.stepping[1]:
            f.f_trace = self._traced
        sys.settrace(self._called)

    def stopped(self):
        """Ends stepping."""
        if not self.stepping:
            return
        self.stepping = None
        if MONITORING:
            self._monitor()
        elif not self.tracing:
            sys.settrace(None)

    def _stepped_to(self, frame) -> bool:
        """Reports whether stepping ends before a line of a frame."""
        how, frames = self.stepping or (None, ())
        return any(f is frame for f in frames) or how == "into" and not hidden(frame)

    def end(self):
        """Ends the watching of lines, as far as other threads allow it."""
        self.wanted, self.files, self.stepping = {}, {}, None
        if MONITORING and self.tool is not None:
            sys.monitoring.set_events(self.tool, 0)
        elif self.tracing:
            sys.settrace(None)
            threading.settrace(None)

    def set_while_running(self):
        if MONITORING:
            self.set()
        elif self.breakpoints or self.wanted:  # a trace function is set by its own thread
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)

    def _monitor(self):
        monitoring = sys.monitoring
        if self.tool is None:
            free = [i for i in (monitoring.DEBUGGER_ID, 3, 4) if not monitoring.get_tool(i)]
            if not free:
                raise Refused("another debugger uses sys.monitoring", 1)
            self.tool = free[0]
            monitoring.use_tool_id(self.tool, "gomflux-reference")
            events = monitoring.events
            for event, function in (
                (events.PY_START, self._started), (events.PY_RESUME, self._started), (events.LINE, self._at_line),
            ):  # fmt: skip
                monitoring.register_callback(self.tool, event, function)
        for code in self.watched:
            monitoring.set_local_events(self.tool, code, 0)
        self.watched.clear()
        events = monitoring.events.PY_START | monitoring.events.PY_RESUME if self.wanted else 0
        how, frames = self.stepping or (None, ())
        monitoring.set_events(self.tool, events | (monitoring.events.LINE if how == "into" else 0))
        for code in {f.f_code for f in frames}:
            monitoring.set_local_events(self.tool, code, monitoring.events.LINE)
            self.watched.append(code)
        for frame in sys._current_frames().values():
            while frame:
                self._started(frame.f_code, 0)
                frame = frame.f_back
        monitoring.restart_events()

    def _started(self, code, offset):
        lines = self._lines_of(code.co_filename)
        if lines and has_any(code, lines):
            sys.monitoring.set_local_events(self.tool, code, sys.monitoring.events.LINE)
            self.watched.append(code)
        return sys.monitoring.DISABLE

    def _at_line(self, code, line):
        breakpoints = self._lines_of(code.co_filename).get(line, ())
        if not breakpoints and not self.stepping:
            return sys.monitoring.DISABLE
        self._passed(breakpoints, sys._getframe(1))

    def _trace(self):
        missing = [file for file in self.wanted if not self._imported(file)]
        ImportOf.install(missing, self._trace_imported)
        if len(missing) == len(self.wanted) and not self.tracing:
            return
        self.tracing = bool(self.wanted)
        trace = self._called if self.wanted else None
        threading.settrace(trace)
        for frame in frames_from(sys._getframe()):
            if self.wanted and has_any(frame.f_code, self._lines_of(frame.f_code.co_filename)):
                frame.f_trace = self._traced
            elif frame.f_trace == self._traced:
                frame.f_trace = None
        sys.settrace(trace)

    def _trace_imported(self):
        """Sets the trace function, before a file with a breakpoint is executed."""
        self.tracing = True
        self._trace()

    def _imported(self, file: str) -> bool:
        if file == os.path.realpath(self.session.command[0]):
            return True
        name = os.path.basename(file)
        found = (getattr(m, "__file__", None) for m in list(sys.modules.values()))
        return any(isinstance(f, str) and f.endswith(name) and os.path.realpath(f) == file for f in found)

    def _called(self, frame, event, arg):
        code = frame.f_code
        if self.stepping and self.stepping[0] == "into" and not hidden(frame):
            return self._traced
        lines = self.files.get(code.co_filename, MISSING)
        if lines is MISSING:
            lines = self._lines_of(code.co_filename)
        return self._traced if lines and has_any(code, lines) else None

    def _traced(self, frame, event, arg):
        if event == "line":
            breakpoints = self._lines_of(frame.f_code.co_filename).get(frame.f_lineno, ())
            if breakpoints or self.stepping:
                self._passed(breakpoints, frame)
        return self._traced

    def _lines_of(self, file: str) -> dict:
        """The lines with breakpoints of a file, by the file's name in code."""
        lines = self.files.get(file)
        if lines is None:
            self.executed.add(file)
            lines = self.files[file] = self.wanted.get(os.path.realpath(file), {})
        return lines

    def _passed(self, breakpoints, frame):
        """Sees a line that is about to be executed."""
        stepped = self._stepped_to(frame)
        if self.session.paused or not breakpoints and not stepped:
            return
        here = Here(self.session, frame)
        found = [stop for b in list(breakpoints) if (stop := self.session.hit(b, lambda: here))]
        found += [{"reason": f"step {self.stepping[0]}"}] if stepped else []
        if found:
            self.session.stop(here, **found[0])

    def near(self, b) -> list[str]:
        """Executed files that have names like that of a breakpoint's; nothing if it was executed itself."""
        file = os.path.realpath(b.asked["file"])
        imported = [m.__file__ for m in list(sys.modules.values()) if isinstance(getattr(m, "__file__", None), str)]
        executed = list(self.executed)
        if any(os.path.realpath(f) == file for f in executed):
            return []
        for files in (executed, imported):
            by_name = {}
            for f in sorted(set(files)):
                if f.endswith(".py") and os.path.realpath(f) != file:
                    by_name.setdefault(os.path.basename(f), []).append(f)
            same = by_name.pop(os.path.basename(file), [])
            like = difflib.get_close_matches(os.path.basename(file), by_name, NEAR, 0.6)
            if found := (same + [by_name[name][0] for name in like])[:NEAR]:
                return found
        return []


class Here:
    """A stop before a line."""

    def __init__(self, session, frame):
        self.session, self.frame = session, frame
        name = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        inside = session.tensors.innermost() if session.tensors else {}
        self.stop = {"name": name, "reason": "", "module": "", "class": "", "step": -1, "call": 0, "negative": False}
        self.stop |= inside | {"shape": [], "dtype": ""}

    def around(self) -> list:
        return self.session.tensors.around() if self.session.tensors else []

    def place(self) -> dict:
        from ..files import code_context

        code = self.frame.f_code
        at = {"file": code.co_filename, "line": self.frame.f_lineno, "function": code.co_qualname}
        context = code_context(at)
        return {"location": at} | ({"code_context": context} if context else {})

    def variables(self, weights: bool) -> dict:
        found = []
        for name, value in dict(self.frame.f_locals).items():
            if name.startswith("__") and name.endswith("__"):
                continue
            known = {"name": name, "point": "local"}
            if expressions.is_tensor(value):
                known |= expressions.described(value)
            else:
                known |= {"shape": [], "dtype": "", "value": expressions.short(value)}
            found.append(known)
        return {"name": self.stop["name"], "variables": found, "parameters": []}

    def names(self, hit: int) -> dict:
        known = {"load": load, "keep": self._keep, "compare": compare, "hit": hit}
        return known | self.session.defined | self.frame.f_globals | dict(self.frame.f_locals)

    def _keep(self, name: str, value):
        self.session.defined[name] = value
        return value

    def keep(self, before: dict, after: dict):
        """Takes over assignments: to the frame's variables, and else for later expressions."""
        frame = self.frame
        own = {*frame.f_code.co_varnames, *frame.f_code.co_cellvars, *frame.f_code.co_freevars}
        for name, value in after.items():
            if before.get(name, MISSING) is value:
                continue
            if name in own or frame.f_locals is frame.f_globals:
                assign(frame, name, value)
            else:
                self.session.defined[name] = value

    def save(self, name: str | None) -> dict:
        value = self.frame.f_locals.get(name) if name else None
        if not expressions.is_tensor(value):
            there = [n for n, v in dict(self.frame.f_locals).items() if expressions.is_tensor(v)]
            hint = f"local tensors: {', '.join(there) or 'nothing'}"
            raise Refused(f"save {name or ''}: at a line a local variable is saved, by its name ({hint})")
        return save(value, name, self.place()["location"])

    def set(self, source: str):
        raise Refused(f"{self.stop['name']}: set replaces outputs of modules; at a line, eval assigns to variables")


class Checkpoint(Here):
    """A stop at a debug_checkpoint, with the variables that it was given."""

    def __init__(self, session, frame, name: str, given: dict):
        super().__init__(session, frame)
        self.given = given
        self.stop |= {"name": name}

    def variables(self, weights: bool) -> dict:
        tensors, others = [], []
        for name, value in sorted(self.given.items()):
            if expressions.is_tensor(value):
                tensors.append({"name": f'inner["{name}"]', "point": "inner value", **expressions.described(value)})
            else:
                known = {"shape": [], "dtype": "", "value": expressions.short(value)}
                others.append({"name": name, "point": "inner value", **known})
        return {"name": self.stop["name"], "variables": tensors + others, "parameters": []}

    def names(self, hit: int) -> dict:
        return super().names(hit) | self.given | {"inner": dict(self.given)}


def frames_from(frame):
    while frame:
        yield frame
        frame = frame.f_back


def hidden(frame) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in HIDDEN


def without_call(name: str) -> str:
    """A name without step and call."""
    return name.partition("@")[0].partition("#")[0]


class ImportOf(importlib.abc.MetaPathFinder):
    """Calls a function before one of some files is executed as a module."""

    def __init__(self, files: list[str], function):
        self.names = {Path(f).parent.name if Path(f).name == "__init__.py" else Path(f).stem for f in files}
        self.files, self.function = set(files), function

    @classmethod
    def install(cls, files: list[str], function):
        """Takes the place of the last one."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, cls)]
        if files:
            sys.meta_path.insert(0, cls(files, function))

    def find_spec(self, name, path, target=None):
        if name.rpartition(".")[2] not in self.names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if not spec or not spec.origin or os.path.realpath(spec.origin) not in self.files:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            self.function()
            execute(module)

        spec.loader.exec_module = exec_module
        return spec


def load(name: str):
    """A tensor that either side has saved."""
    from .. import debug

    return debug.debug_load(name)


def compare(a, b):
    from .difference import reading

    return reading(a, b)


def save(tensor, name: str, at: dict) -> dict:
    from .. import debug

    return {"name": name, "file": str(debug.save(tensor, name, at))}


def assign(frame, name: str, value):
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):  # where f_locals is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def has_any(code, lines: dict) -> bool:
    return any(line in lines for _, _, line in code.co_lines())


def lines_with_code(code) -> set[int]:
    found = {line for _, _, line in code.co_lines() if line}
    for const in code.co_consts:
        if hasattr(const, "co_lines"):
            found |= lines_with_code(const)
    return found


def find(file: str) -> Path:
    """A file by its path: absolute, from the working directory, from a folder of sys.path, or by its name alone."""
    roots = [Path(), *(Path(p) for p in sys.path)]
    for root in roots:
        if (root / file).is_file():
            return Path(os.path.abspath(root / file))
    same = named(file) if os.path.basename(file) == file else []
    if len(same) == 1:
        return same[0]
    if same:
        raise Refused(f"{file}: several files have that name: {', '.join(map(str, same[:5]))}")
    close = []
    for folder in dict.fromkeys((root / file).parent for root in roots):
        if folder.is_dir():
            names = [f.name for f in folder.glob("*.py")]
            close += [str(folder / n) for n in difflib.get_close_matches(os.path.basename(file), names, NEAR, 0.6)]
    raise Refused(f"{file}: no such file (near: {', '.join(close[:NEAR]) or 'nothing'})")


def named(name: str) -> list[Path]:
    """The files of that name in the packages that a run is likely to execute."""
    found = []
    for package in SEARCHED:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            found += sorted(Path(folder).rglob(name))
    return found

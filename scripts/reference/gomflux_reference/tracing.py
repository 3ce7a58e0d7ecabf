"""Observes which functions of some packages are called: how often, with which lines, and their own time.

It imports no other package, so that it can begin before those that it observes are imported. From Python 3.12 on it
uses sys.monitoring, which reports each line once; before that sys.settrace, with lines only of functions that still
have some to be seen.
"""

import dis
import inspect
import os
import sys
import threading
from contextlib import contextmanager
from time import perf_counter_ns as clock

MONITORING = hasattr(sys, "monitoring")
METHOD = "sys.monitoring" if MONITORING else "sys.settrace"
OTHER = "other"
INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # parts of the functions that they are in
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Function:
    """A function that was called."""

    def __init__(self, code, package: str, home: str | None, hidden: bool):
        self.code, self.package, self.home, self.hidden = code, package, home, hidden
        self.places = {}  # place -> [calls, own nanoseconds]
        self.left = set() if hidden else lines_of(code)  # lines that were not reached
        self.start = start_of(code) if code.co_flags & SUSPENDED else None

    @property
    def calls(self) -> int:
        return sum(cell[0] for cell in self.places.values())

    @property
    def own(self) -> int:
        return sum(cell[1] for cell in self.places.values())


class Observer:
    """packages are names and their folders, hidden the folder of functions whose time counts to nobody.

    places is a stack of the names that calls are counted under. While it is empty that is what home returns for the
    file of the function, or else the place of its caller.
    """

    def __init__(self, packages: dict, hidden=None):
        self.roots = [(os.path.join(folder, ""), package) for package, folder in packages.items()]
        self.hidden = hidden and os.path.join(hidden, "")
        self.home = lambda file: None
        self.places = []
        self.called = {}  # id -> (code, package or None) of everything that only was noted
        self.known = {}  # id -> Function, or False for code of other packages
        self._held = []  # code objects, whose ids are those of no other code as long as they live
        self.spent = 0  # nanoseconds in the observer itself

    def package(self, file: str) -> str | None:
        return next((package for folder, package in self.roots if file.startswith(folder)), None)

    def learn(self, code):
        file, function = code.co_filename, False
        hidden = bool(self.hidden) and file.startswith(self.hidden)
        package = None if hidden else self.package(file)
        if (package or hidden) and code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in INLINED:
            function = Function(code, package, self.home(file), hidden)
        self._held.append(code)
        self.known[id(code)] = function
        return function

    def functions(self) -> list[Function]:
        return [f for f in self.known.values() if f and not f.hidden]

    def noted(self) -> list:
        """Code objects of functions, classes and modules of the packages that were called while calls were noted."""
        return [code for code, package in self.called.values() if package]

    def note(self, code):
        self.called[id(code)] = code, self.package(code.co_filename)

    @contextmanager
    def calls(self):
        """Notes what is called, without numbers, lines and times, at little cost."""

        known = self.called

        def called(frame, event, arg):
            code = frame.f_code
            if id(code) not in known:
                self.note(code)

        def started(code, offset):
            self.note(code)
            return sys.monitoring.DISABLE

        if MONITORING:
            with monitored({"PY_START": started}):
                yield
        else:
            with traced(lambda: called):
                yield

    @contextmanager
    def everything(self):
        """Observes calls, lines and times."""
        self.known.clear()
        if MONITORING:
            with monitored(Monitored(self).callbacks()):
                yield
        else:
            with traced(lambda: Stack(self).call):
                yield


class Stack:
    """The functions that a thread is in."""

    def __init__(self, observer: Observer):
        self.observer, self.known, self.places = observer, observer.known, observer.places
        self.stack = []  # ([calls, own time] of the function at its place, place)
        self.last = clock()

    def enter(self, function: Function, fresh: bool, now: int):
        stack = self.stack
        caller = OTHER
        if stack:
            cell, caller = stack[-1]
            cell[1] += now - self.last
        place = self.places[-1] if self.places else function.home or caller
        cell = function.places.get(place)
        if cell is None:
            cell = function.places[place] = [0, 0]
        if fresh:
            cell[0] += 1
        stack.append((cell, place))
        self._end(now)

    def leave(self, now: int):
        if self.stack:
            self.stack.pop()[0][1] += now - self.last
        self._end(now)

    def pause(self, now: int):
        if self.stack:
            self.stack[-1][0][1] += now - self.last
        self._end(now)

    def _end(self, now: int):
        self.last = end = clock()
        self.observer.spent += end - now

    def call(self, frame, event, arg):
        """The trace function of new frames."""
        code = frame.f_code
        function = self.known.get(id(code))
        if function is False:
            return None
        now = clock()
        if function is None:
            function = self.observer.learn(code)
            if not function:
                self.pause(now)
                return None
        frame.f_trace_lines = bool(function.left)
        self.enter(function, function.start is None or frame.f_lasti == function.start, now)
        return self.local

    def local(self, frame, event, arg):
        """The trace function inside frames."""
        now = clock()
        if event == "return":
            self.leave(now)
            return None
        if event == "line":
            left = self.known[id(frame.f_code)].left
            left.discard(frame.f_lineno)
            if not left:
                frame.f_trace_lines = False
        self.pause(now)
        return self.local


class Monitored:
    """The callbacks of sys.monitoring. Those of other packages' code are called once for each place in it."""

    def __init__(self, observer: Observer):
        self.observer, self.stacks = observer, {}

    def callbacks(self) -> dict:
        return {
            "PY_START": lambda code, offset: self._enter(code, True),
            "PY_RESUME": lambda code, offset: self._enter(code, False),
            "PY_THROW": lambda code, offset, error: self._enter(code, False) and None,
            "PY_RETURN": lambda code, offset, value: self._leave(code),
            "PY_YIELD": lambda code, offset, value: self._leave(code),
            "PY_UNWIND": lambda code, offset, error: self._leave(code) and None,
            "LINE": self._line,
        }

    def _stack(self) -> Stack:
        thread = threading.get_ident()
        return self.stacks.get(thread) or self.stacks.setdefault(thread, Stack(self.observer))

    def _function(self, code):
        function = self.observer.known.get(id(code))
        return self.observer.learn(code) if function is None else function

    def _enter(self, code, fresh: bool):
        now = clock()
        function = self._function(code)
        if not function:
            return sys.monitoring.DISABLE
        self._stack().enter(function, fresh, now)

    def _leave(self, code):
        now = clock()
        if not self._function(code):
            return sys.monitoring.DISABLE
        self._stack().leave(now)

    def _line(self, code, line: int):
        now = clock()
        if function := self._function(code):
            function.left.discard(line)
            self._stack().pause(now)
        return sys.monitoring.DISABLE


@contextmanager
def traced(make):
    """Sets a trace function that make returns, another one in each thread that begins."""

    def begin(frame, event, arg):
        own = make()
        sys.settrace(own)
        return own(frame, event, arg)

    before = sys.gettrace(), threading.gettrace()
    threading.settrace(begin)
    sys.settrace(make())
    try:
        yield
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])


@contextmanager
def monitored(callbacks: dict):
    monitoring = sys.monitoring
    tool = next((i for i in (monitoring.PROFILER_ID, 3, 4) if not monitoring.get_tool(i)), None)
    if tool is None:
        raise SystemExit("another profiler is observing this process")
    monitoring.use_tool_id(tool, "gomflux-reference")
    events = 0
    for name, callback in callbacks.items():
        event = getattr(monitoring.events, name)
        events |= event
        monitoring.register_callback(tool, event, callback)
    monitoring.restart_events()  # those that an earlier observer has disabled
    monitoring.set_events(tool, events)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        for name in callbacks:
            monitoring.register_callback(tool, getattr(monitoring.events, name), None)
        monitoring.free_tool_id(tool)


def lines_of(code) -> set[int]:
    """The lines of a function that can be reached, without that of its beginning."""
    begin = next((i for i in dis.get_instructions(code) if i.opname == "RESUME"), None)
    first = begin.offset if begin else -1
    return {line for start, _, line in code.co_lines() if line and start > first}


def start_of(code) -> int:
    """The offset at which a generator or coroutine starts, before it runs for the first time."""
    return next((i.offset for i in dis.get_instructions(code) if i.opname == "RESUME"), 0)

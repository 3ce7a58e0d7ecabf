"""The state of a session, its commands and its trace."""

import collections
import datetime
import difflib
import json
import math
import os
import queue
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from . import breakpoints, expressions, lines, wire
from .wire import ENDED, PROG, Refused

BEFORE = 5  # tensors that a stop lists
WATCHED = 1000  # statistics that are kept until the next answer
PATIENCE = 5  # seconds in which a run can end by itself
WAKE = 0.1  # seconds after which a stopped thread looks for signals, which another thread may have got
UNTRACED = ("status", "breaks")


class Job:
    """A piece of work for the stopped thread."""

    def __init__(self, work):
        self.work, self.done, self.result, self.error = work, threading.Event(), None, None

    def run(self):
        try:
            self.result = self.work()
        except Exception as e:
            self.error = e
        except BaseException as e:  # the run ends here
            self.error = Refused(f"the run ends ({type(e).__name__})", 1)
            raise
        finally:
            self.done.set()

    def refuse(self, error: Refused):
        self.error = error
        self.done.set()


class Session:
    """The session of this process. command is what it runs, trace and output are its files."""

    def __init__(self, name: str, command: list[str], trace: Path, output: Path):
        self.name, self.command, self.trace, self.output = name, command, trace, output
        self.began = datetime.datetime.now().astimezone().isoformat(timespec="seconds").replace("+00:00", "Z")
        self.folder = os.getcwd()
        self.state, self.progress = "starting", ""
        self.here, self.error, self.exit_code, self.run = None, None, None, None
        self.breakpoints, self.number, self.at_tensors = {}, 0, ()
        self.watched = collections.deque(maxlen=WATCHED)
        self.before = collections.deque(maxlen=BEFORE)
        self.never_hit = []  # breakpoints, at the end
        self.mode = None  # how the run goes on: what to do, and with what
        self.defined = {}  # names that expressions have defined
        self.tensors = None  # of the run's recorder
        self.lines = lines.Lines(self)
        self.jobs = queue.SimpleQueue()
        self.changed = threading.Condition(threading.RLock())
        self.stopping, self.inside = threading.RLock(), set()  # threads that are stopped or evaluate
        self.ending = None
        self.opened = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.write("start", command)
        wire.write_status(name, self.status())
        self.server = wire.Server(name, self.answer)

    # What the run calls.

    def wait_for_start(self):
        """Waits until a command lets the run begin."""
        self._obey()

    def attach(self, recorder):
        from .tensors import Tensors

        with self.changed:
            self.tensors = Tensors(self, recorder)
            self.state, self.progress = "running", ""
            self.run = str(recorder.run.folder) if recorder.run else recorder.out and str(recorder.out)
        return self.tensors

    def loading(self, what: str):
        with self.changed:
            if self.state in ("loading", "running"):
                self.state, self.progress = "loading", f"loading {what}"

    def loaded(self):
        with self.changed:
            if self.state == "loading":
                self.state, self.progress = "running", ""

    def watched_all(self):
        """Waits, once all modules of the model are known, if no tensor of the run can match a breakpoint."""
        from .. import dump

        known = self.tensors.recorder.names
        for b in self.at_tensors:
            if hint := dump.impossible(b.asked["glob"], known):
                near = [n for n in hint.split(", ") if difflib.SequenceMatcher(None, n, b.asked["glob"]).ratio() > 0.5]
                self.never_hit.append(b.as_json() | ({"near": near} if near else {}))
        if self.never_hit:
            with self.changed:
                self.state, self.progress = "starting", wire.NOT_BEGUN
                self.changed.notify_all()
            self._obey()
            self.never_hit, self.state, self.progress = [], "running", ""

    @property
    def paused(self) -> bool:
        """Reports whether this thread is stopped, so that modules which it calls are not the run's."""
        return threading.get_ident() in self.inside

    def passed(self, passage):
        """Sees a tensor that passes, and stops if it must."""
        stop = None
        for b in self.at_tensors:
            if not passage.matches(b):
                continue
            why = self.hit(b, passage.here, stop is None)
            if why and b.asked.get("watch"):
                self._watch(b, passage)
            else:
                stop = stop or why
        if not stop and self.mode and self._reached(passage):
            stop = {"reason": self.mode[0]}
        if stop:
            self.stop(passage.here(), **stop)
        self.before.append(passage.name)

    def _watch(self, b, passage):
        with self.apart():
            known = {"number": b.number, **passage.here().variable()}
        self.write("watch", result=known)
        self.watched.append(known)

    def hit(self, b, here, first: bool = True) -> dict | None:
        """Counts a match of a breakpoint. Returns the reason for a stop, if it is one. first removes one for once."""
        b.hits += 1
        reason = {"reason": f"breakpoint {b.number}", "breakpoint": b.number, "hit": b.hits}
        if b.asked.get("hit", b.hits) != b.hits:
            return None
        if b.code:
            try:
                with self.apart():
                    if not expressions.truth(b.code, here().names(b.hits)):
                        return None
            except Refused as e:
                reason["problem"] = str(e)
        if b.asked.get("once") and first:
            self._remove_once(b.number)
        return reason

    def _reached(self, passage) -> bool:
        kind, target = self.mode
        if kind == "until":
            return breakpoints.matches(target, passage.name)
        if kind == "step":  # from outside of the loop into it, or out of an evaluation of the model
            return passage.step != target and (target is not None or passage.step >= 0)
        return kind == "next" or kind == "out" and passage.name in target

    @contextmanager
    def apart(self):
        """Keeps what this thread calls from being taken for the run's."""
        me = threading.get_ident()
        nested = me in self.inside
        self.inside.add(me)
        try:
            yield
        finally:
            if not nested:
                self.inside.discard(me)

    def checkpoint(self, name: str, variables: dict, frame):
        """Stops at a debug_checkpoint."""
        self.stop(lines.Checkpoint(self, frame, name, variables), reason=f"checkpoint {name}")

    def stop(self, here, **why):
        """Stops here until a command lets the run go on."""
        if self.paused or self.state in ENDED:
            return
        with self.stopping, self.apart():
            self.lines.stopped()
            here.stop |= why
            place = self._place(here)
            variables = here.variables(False)
            with self.changed:
                self.here, self.state, self.progress, self.mode = here, "stopped", "", None
                self.write("stop", result=place | {"variables": variables})
                self.changed.notify_all()
            try:
                self._obey()
            finally:
                self.here = None

    def _obey(self):
        """Does what commands ask, until one lets the run go on."""
        while True:
            try:
                job = self.jobs.get(timeout=WAKE)
            except queue.Empty:
                continue
            job.run()
            if self.state not in ("stopped", "starting"):
                while not self.jobs.empty():
                    self.jobs.get().refuse(self._runs())
                return

    def end(self, state: str, error: str = "", exit_code: int = 0):
        """Ends the session: for good, and before the process ends."""
        with self.changed:
            if self.state in ENDED:
                return
            self.state, self.error, self.exit_code, self.here, self.progress = state, error, exit_code, None, ""
            while not self.jobs.empty():
                self.jobs.get().refuse(self._runs())
            self.lines.end()
            self.never_hit = [b.as_json() | self._near(b) for b in self.breakpoints.values() if not b.hits]
            status = self.status()
            self.write("end", result=status)
            wire.write_status(self.name, status)
            self.changed.notify_all()
        self.server.close()

    # Commands.

    def answer(self, command: str, arguments: dict) -> dict:
        began, work = time.monotonic(), getattr(self, f"do_{command}", None)
        try:
            if not work:
                names = ", ".join(name[3:] for name in dir(self) if name.startswith("do_"))
                raise Refused(f"unknown command {command!r} (commands: {names})")
            answer = {"ok": True, "result": work(arguments)}
        except Refused as e:
            answer = wire.refused(str(e), e.code)
        except Exception as e:  # of this program
            answer = wire.refused(one_line(f"{command}: {type(e).__name__}: {e}"), 1)
        if command not in UNTRACED:
            self.write(command, arguments, answer.get("result"), answer.get("error"), time.monotonic() - began)
        return answer

    def do_break(self, arguments):
        asked = breakpoints.checked(arguments)
        b = breakpoints.Breakpoint(0, asked)
        if "if" in asked:
            b.code = expressions.parsed(asked["if"])
        if b.at_line:
            asked["file"] = self.lines.check(asked["file"], asked["line"])
        if self.tensors and not b.at_line:
            self.tensors.check(b.asked)
        with self.changed:
            self.number += 1
            b.number = self.number
            self.breakpoints[b.number] = b
        self._set_breakpoints()
        return b.as_json()

    def _set_breakpoints(self):
        """Puts the breakpoints in place, for a command."""
        self._sort()
        try:
            self._on_stopped(self.lines.set)
        except Refused:  # the run is running
            self.lines.set_while_running()

    def _sort(self):
        with self.changed:
            self.at_tensors = tuple(b for b in self.breakpoints.values() if not b.at_line)
            self.lines.breakpoints = [b for b in self.breakpoints.values() if b.at_line]

    def _remove_once(self, number: int):
        """Removes a breakpoint that has stopped the run, for the run."""
        with self.changed:
            self.breakpoints.pop(number, None)
        self._sort()
        self.lines.set()

    def do_breaks(self, _):
        return {"breakpoints": [b.as_json() for b in self.breakpoints.values()]}

    def do_remove(self, arguments):
        number = arguments.get("number")
        with self.changed:
            if number not in self.breakpoints:
                raise Refused(f"there is no breakpoint {number} ({PROG} breaks lists them)")
            del self.breakpoints[number]
        self._set_breakpoints()
        return {"removed": [number]}

    def do_clear(self, _):
        with self.changed:
            removed = list(self.breakpoints)
            self.breakpoints.clear()
        self._set_breakpoints()
        return {"removed": removed}

    def do_continue(self, arguments):
        until = arguments.get("until") or None
        if until:
            breakpoints.check_glob(until)
            if self.tensors:
                self.tensors.check({"glob": until})
        mode = ("until", until) if until else None
        if self.state not in ("starting", "stopped"):
            if until:
                self.mode = mode
            return self._wait(arguments)
        return self._resume(lambda: mode, arguments)

    def do_next(self, arguments):
        return self._resume(lambda: ("next", None), arguments)

    def do_step(self, arguments):
        if how := arguments.get("line"):
            if how not in lines.STEPS:
                raise Refused(f"line {how!r}: must be {', '.join(lines.STEPS[:-1])} or {lines.STEPS[-1]}")

            def begin():
                if not self.here:
                    raise self._not_begun()
                self.lines.step(how, getattr(self.here, "frame", None) or sys._getframe())
                return "line", None

            return self._resume(begin, arguments)
        return self._resume(lambda: ("step", self.here.stop["step"] if self.here else None), arguments)

    def do_out(self, arguments):
        def target():
            if not self.here:
                raise self._not_begun()
            if not (around := [name for name, _ in self.here.around()]):
                raise Refused(f"{self.here.stop['name']} is not inside another module (next and continue go on)")
            return "out", around

        return self._resume(target, arguments)

    def do_accept(self, arguments):
        raise Refused("only a replay of gomflux has a reference's tensor to accept (gomflux debug start -- parity run)")

    def _resume(self, mode, arguments):
        wait_of(arguments)

        def resume():
            how = mode()
            with self.changed:
                first = self.state == "starting"
                self.mode, self.here = how, None
                self.state, self.progress = ("loading", "starting") if first else ("running", "")

        self._on_stopped(resume)
        return self._wait(arguments)

    def _wait(self, arguments):
        seconds = wait_of(arguments)
        with self.changed:
            there = self.changed.wait_for(lambda: self.state in ("stopped", *ENDED) or self.progress == wire.NOT_BEGUN, seconds)
            if not there:
                return self.status() | {"timed_out": True}
            watched = [self.watched.popleft() for _ in range(len(self.watched))]
            return self.status() | ({"watched": watched} if watched else {})

    def _on_stopped(self, work):
        """Has the stopped thread do some work, and returns its result."""
        with self.changed:
            if self.state not in ("starting", "stopped"):
                raise self._runs()
            job = Job(work)
            self.jobs.put(job)
        job.done.wait()
        if job.error:
            raise job.error
        return job.result

    def _runs(self) -> Refused:
        if self.state in ENDED:
            return wire.over({"session": self.name, "state": self.state, "error": self.error})
        return Refused(f"the run is running ({PROG} continue waits until it stops)")

    def _not_begun(self) -> Refused:
        return Refused(f"the run has not begun ({PROG} continue begins it)")

    def _at_stop(self, work):
        if self.state == "starting":
            raise self._not_begun()
        return self._on_stopped(lambda: work(self.here))

    def do_location(self, _):
        return self._at_stop(self._place)

    def _place(self, here) -> dict:
        around = [{"name": lines.without_call(name)} | ({"class": kind} if kind else {}) for name, kind in here.around()]
        return here.stop | here.place() | {"around": around, "before": list(self.before)}

    def do_vars(self, arguments):
        return self._at_stop(lambda here: here.variables(bool(arguments.get("weights"))))

    def do_eval(self, arguments):
        source = arguments.get("source")
        if not isinstance(source, str) or not source.strip():
            raise Refused("eval: no expression")

        def work(here):
            names = here.names(here.stop.get("hit", 0))
            result, names_after = expressions.run(source, names)
            here.keep(names, names_after)
            return result

        return self._at_stop(work)

    def do_save(self, arguments):
        return self._at_stop(lambda here: here.save(arguments.get("name") or None))

    def do_set(self, arguments):
        source = arguments.get("source")
        if not isinstance(source, str) or not source:
            raise Refused("set: no tensor (FILE[:KEY][@dtype], or the name of a saved one)")
        return self._at_stop(lambda here: here.set(source))

    def do_status(self, _):
        with self.changed:
            return self.status()

    def do_terminate(self, _):
        self.ending = wire.TERMINATED
        os.kill(os.getpid(), signal.SIGTERM)
        with self.changed:
            if not self.changed.wait_for(lambda: self.state in ENDED, PATIENCE):
                threading.Timer(0.1, self._kill).start()
            return self.status()

    def _kill(self):
        """Ends the process of a run that is inside a long computation, or that catches everything."""
        self.end("terminated", "", 128 + signal.SIGTERM)
        os._exit(128 + signal.SIGTERM)

    def status(self) -> dict:
        """What is known, as protocol.Status."""
        status = {"session": self.name, "side": wire.SIDE, "state": self.state}
        more = {"progress": self.progress, "stop": self.here and self.here.stop, "error": self.error}
        status |= {k: v for k, v in more.items() if v}
        if self.exit_code is not None:
            status["exit_code"] = self.exit_code
        status |= {"command": self.command, "pid": os.getpid(), "folder": self.folder, "began": self.began}
        status |= {"run": self.run} if self.run else {}
        status |= {"trace": str(self.trace), "output": str(self.output)}
        status |= {"last": list(self.before)} if self.before else {}
        return status | ({"never_hit": self.never_hit} if self.never_hit else {})

    def _near(self, b) -> dict:
        """Names that are like a breakpoint that was never hit."""
        found = self.lines.near(b) if b.at_line else self.tensors.near(b.asked["glob"]) if self.tensors else []
        return {"near": found} if found else {}

    def write(self, event, arguments=None, result=None, error=None, duration=0.0):
        """Adds a line to the trace, with one write."""
        line = {"time": now(), "event": event}
        more = {"arguments": arguments, "result": result, "error": error}
        line |= {k: v for k, v in more.items() if v} | {"duration": round(duration, 6)}
        try:
            os.write(self.opened, json.dumps(line, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n")
        except OSError as e:  # a full disk does not end the run
            print(f"{self.trace}: {e.strerror}: {event} is missing", file=sys.stderr)


def wait_of(arguments) -> float:
    wait = arguments.get("max_wait", 0)
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not math.isfinite(wait) or wait < 0:
        raise Refused(f"max_wait {wait!r}: must be a number of seconds, not negative")
    return min(float(wait), 1e6)


def lines_of(file: Path | str, count: int) -> list[str]:
    """The last lines of what a run has printed; all of them for 0."""
    from ..runs import CONTROL

    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = [CONTROL.sub("", line.rpartition("\r")[2]) for line in text.replace("\r\n", "\n").split("\n")]
    found = found[:-1] if found[-1] == "" else found
    return found[-count:] if count else found


def one_line(text: str) -> str:
    return " ".join(text.split())


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")

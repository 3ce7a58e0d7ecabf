"""The process of a session: it waits for a command that lets the run begin, and runs it."""

import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path

from .. import debugger
from . import wire
from .session import Session, one_line


def main():
    """Takes what start has prepared, as JSON: name, command, arguments, trace, output, and the pipe for its answer."""
    begun = json.loads(sys.argv[1])
    ready = os.fdopen(begun["ready"], "w")
    try:
        name, lock = wire.reserve(begun["name"])
        session = Session(name, begun["command"], Path(begun["trace"]), Path(begun["output"]))
    except wire.Refused as e:
        ready.write(json.dumps({"error": str(e), "code": e.code}))
        return
    os.register_at_fork(after_in_child=lambda: forked(session, lock))
    ended = Ended(session)
    debugger.current = session
    ready.write(json.dumps({"session": name}))
    ready.close()
    state, error, code = "finished", "", 0
    try:
        session.wait_for_start()
        run(session, begun["command"])
    except BaseException as e:
        state, error, code = outcome(session, e)
    ended.ignore = True
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    session.end(state, error, code)
    wire.remove(name, "sock", "tmp", "lock")
    lock.close()
    sys.exit(code)


class Ended:
    """Signals that end the run. They end what the main thread does between two instructions of Python."""

    def __init__(self, session):
        self.ignore, self.session = False, session
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.end)
        signal.signal(signal.SIGUSR2, lambda *_: session.lines.set())
        sys.unraisablehook = self.unraisable

    def unraisable(self, what):
        """Repeats a signal that came where Python ignores exceptions, such as in a destructor."""
        if self.session.ending and isinstance(what.exc_value, (SystemExit, KeyboardInterrupt)) and not self.ignore:
            number = signal.SIGINT if isinstance(what.exc_value, KeyboardInterrupt) else signal.SIGTERM
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        else:
            sys.__unraisablehook__(what)

    def end(self, number, frame):
        if self.ignore:
            return
        self.session.ending = self.session.ending or "interrupted"
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def forked(session, lock):
    """A process that the run forks is no session, and does not hold its lock."""
    debugger.current = None
    session.inside = Everything()
    os.close(lock.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


class Everything(set):
    """The threads of a forked process: none of them stops."""

    def __contains__(self, thread) -> bool:
        return True


def run(session, command: list[str]):
    if command[0] == "dump":
        from ..__main__ import main as reference

        session.loading("torch, diffusers and transformers")
        from . import scripts

        scripts.watch_loading(session)
        sys.argv = ["gomflux-reference", *command]
        reference(command, signals=False)
        return
    from . import scripts

    scripts.watch(session)
    session.loaded()
    file = os.path.abspath(command[0])
    sys.argv = [command[0], *command[1:]]
    sys.path[0] = os.path.dirname(file)
    runpy.run_path(file, run_name="__main__")


def outcome(session, e: BaseException) -> tuple[str, str, int]:
    """How a run has ended, by the exception that has ended it: state, error and exit code."""
    if session.ending == wire.TERMINATED:
        return wire.TERMINATED, "", 128 + signal.SIGTERM
    if session.ending:
        return "failed", session.ending, 128 + (signal.SIGINT if isinstance(e, KeyboardInterrupt) else signal.SIGTERM)
    if isinstance(e, SystemExit):
        if e.code is None or e.code == 0:
            return "finished", "", 0
        if isinstance(e.code, int):
            return "failed", f"exit code {e.code}", e.code & 255
        print(e.code, file=sys.stderr)
        return "failed", one_line(str(e.code)), 1
    sys.last_value = e
    traceback.print_exception(e)
    return "failed", one_line(f"{type(e).__name__}: {e}"), 1

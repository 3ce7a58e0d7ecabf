"""gomflux-reference debug: the commands that start, control and end sessions."""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from .. import runs
from ..arguments import check_dump
from . import text, wire
from .breakpoints import parse_place
from .wire import ENDED, PROG, Refused

TIMED_OUT, INTERRUPTED = 124, 130
MAX_WAIT = 60  # seconds
TERMINATED = 10  # seconds in which a terminated session ends

REASONS = {
    "failed": f"the run has failed ({PROG} log prints its output)",
    "killed": "the session's process was killed",
    "terminated": "the run was terminated",
    "starting": f"the model is loaded, and no tensor of the run can match this breakpoint ({PROG} break sets another, "
    f"{PROG} continue begins the run)",
    TIMED_OUT: f"the run has not stopped within --max-wait ({PROG} continue waits again)",
}
EXIT = """
exit status: 0 success, also when the run has finished; 1 the run or the command has failed; 2 invalid input or no
session; 124 the run has not stopped within --max-wait; 130 interrupted (the session lives on)
"""
HELP = """
Runs a dump or any Python script, stops it at tensors and at lines, looks at its values and changes them. A stop at a
tensor is always after the call of the module that computes it, a stop at a line before the line is executed. The
names of tensors are those of dumps: transformer.layers.3.attention@0 (@STEP, #CALL, :in.KEY, :out.KEY, :q).
"""


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message):
        sys.exit(fail(f"{self.prog}: {message}", 2))


def fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def main(argv: list[str]) -> int:
    argv, command = split(argv)
    args = vars(parser().parse_args(argv))
    if "command" in args:
        args["command"] += command
    run, as_json = args.pop("run"), args.pop("json")
    try:
        result, written, code = run(**args)
    except Refused as e:
        return fail(f"{PROG}: {e}", e.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as e:
        return fail(f"{PROG}: {e.filename or ''}: {e.strerror or e}", 1)
    try:
        written = json.dumps(result) if as_json else written(result)
        if written:
            print(written, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if code:
        fail(f"{PROG}: {REASONS[code] if code == TIMED_OUT else REASONS[result['state']]}", code)
    return code


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of start, and after -- what it is to run."""
    if argv[:1] != ["start"] or "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def parser() -> Parser:
    top = Parser(prog=PROG, description=HELP, epilog=EXIT, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def command(name, run, help, session=True):
        c = commands.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", epilog=EXIT,
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        c.set_defaults(run=run)
        c.add_argument("--json", action="store_true", help="print the answer as JSON")
        if session:
            c.add_argument("--session", metavar="NAME", help="the session; default: the only one")
        return c

    def resuming(name, help):
        c = command(name, lambda **args: resume(name, **args), help)
        c.add_argument(
            "--max-wait", type=seconds, default=MAX_WAIT, metavar="SECONDS",
            help=f"how long to wait for the stop; 0 does not wait (default: {MAX_WAIT})",
        )  # fmt: skip
        return c

    c = command("start", start, "start a dump or a script as a session, stopped before the model is loaded", False)
    c.add_argument("--name", help="name of the session; default: the first free number")
    c.add_argument("--break", action="append", default=[], dest="breaks", metavar="GLOB|FILE:LINE", help="set a breakpoint")
    c.add_argument("--run", action="store_true", dest="at_once", help="let it run to the first breakpoint")
    c.add_argument("--log-dir", type=Path, help="root of the log tree (GOMFLUX_LOG_DIR sets the default, logs)")
    c.add_argument("--max-wait", type=seconds, default=MAX_WAIT, metavar="SECONDS", help="with --run: how long to wait")
    c.add_argument("command", nargs="*", metavar="-- COMMAND", help="dump MODEL ..., or script.py and its arguments")

    c = command("break", set_break, "stop at tensors that match a glob, or before a line of a Python file")
    c.add_argument("place", metavar="GLOB|FILE:LINE", help="such as 'transformer.layers.*' or pipeline_z_image.py:473")
    c.add_argument("--step", type=int, metavar="N", help="only in step N, from 0; -1 is outside the denoising loop")
    c.add_argument("--call", type=int, metavar="N", help="only in the module's Nth call of a step, from 0")
    c.add_argument("--negative", action="store_true", help="only for the negative prompt")
    c.add_argument("--if", metavar="EXPR", help="only if this Python expression is true")
    c.add_argument("--hit", type=int, metavar="N", help="only at the Nth match")
    c.add_argument("--once", action="store_true", help="remove it when it has stopped the run")
    c.add_argument("--watch", action="store_true", help="print the statistics of the tensors as they pass, without a stop")
    command("breaks", simple("breaks", text.breakpoints_of), "list breakpoints and watches")
    c = command("remove", simple("remove", text.removed), "remove a breakpoint or a watch")
    c.add_argument("number", type=int)
    command("clear", simple("clear", text.removed), "remove all breakpoints and watches")

    c = resuming("continue", "let the run go on to the next breakpoint, or wait for it")
    c.add_argument("--until", metavar="GLOB", help="stop at the next tensor that matches, too")
    resuming("next", "let the run go on to the next tensor")
    resuming("out", "let the run go on until a module around the stop is done")
    c = resuming("step", "let the run go on to the next evaluation of the denoising model, or line of Python")
    c.add_argument(
        "--line", nargs="?", const="over", choices=("over", "into", "out"),
        help="stop before the next line of Python instead: of the same function (over, the default), of one that this line calls (into), or "
        "of the one that has called it (out)",
    )  # fmt: skip

    command("location", simple("location", text.location), "print where the run is stopped")
    c = command("vars", simple("vars", text.variables), "list the tensors of the stop, or the variables of its frame")
    c.add_argument("--weights", action="store_true", help="statistics of parameters, too")
    c = command("eval", evaluate, "evaluate Python at the stop")
    c.add_argument("source", metavar="EXPR", help="an expression or lines of Python; - reads them from standard input")
    c = command("save", simple("save", lambda r: f"{r['name']} saved in {r['file']}"), "save the tensor of the stop")
    c.add_argument("name", nargs="?", help="default: the tensor's name")
    c = command("set", replace, "replace the output of the stop by another tensor")
    c.add_argument("source", metavar="FILE[:KEY][@DTYPE]", help="a .safetensors, .npy or .npz file, or a saved tensor")

    command("status", status, "print the state of a session")
    c = command("log", log, "print what the run has printed")
    c.add_argument("-n", "--lines", type=int, default=0, metavar="N", help="only the last N lines")
    c = command("sessions", sessions, "list the sessions of this folder, and put those in order whose process is gone", False)
    c.add_argument("--user", action="store_true", help="of all folders")
    c = command("terminate", terminate, "end a session and its run")
    c.add_argument("--all", action="store_true", dest="every", help="all sessions of the reference in this folder")
    several(c)
    several(command("clean", clean, "remove ended sessions of this folder, with their traces and logs", False))
    return top


def several(c):
    c.add_argument("--user", action="store_true", help="the sessions of all folders")
    c.add_argument("--dry-run", action="store_true", dest="dry", help="only list what would be done")
    c.add_argument("--yes", action="store_true", help="do not ask")


def seconds(written: str) -> float:
    value = float(written)
    if not 0 <= value <= 1e6:
        raise ValueError
    return value


def live(name: str | None) -> str:
    """The session that a command is for, which must not have ended."""
    chosen = wire.choose(name)
    if chosen["state"] in ENDED:
        raise wire.over(chosen)
    return chosen["session"]


def given(arguments: dict) -> dict:
    return {k: v for k, v in arguments.items() if v is not None and v is not False}


def simple(command: str, written):
    """A command that is a request, with its answer as text."""

    def run(session=None, **arguments):
        return wire.call(live(session), command, given(arguments)), written, 0

    return run


def start(name, breaks, at_once, log_dir, max_wait, command):
    check_command(command)
    if name:
        wire.check_name(name)
    places = [parse_place(place) for place in breaks]
    root = log_dir or runs.default_root()
    runs.refuse_full(root, runs.size_of(root) if root.exists() else 0)
    session = spawn(name, root, command)
    try:
        for place in places:
            wire.call(session, "break", place)
        if at_once:
            return resume("continue", session=session, max_wait=max_wait)
        return wire.call(session, "status"), text.begun, 0
    except Refused:
        end(session)
        wire.forget(session)
        raise


def check_command(command: list[str]):
    """Checks the arguments of what is to be run, so that they are wrong before there is a session."""
    if not command:
        raise Refused("start: what is to be run is missing (-- dump MODEL ..., or -- script.py)")
    if command[0] == "dump":
        return check_dump(command[1:], Parser)
    if not command[0].endswith(".py"):
        raise Refused(f"{command[0]}: expected dump, or a Python script (.py)")
    try:
        compile(Path(command[0]).read_bytes(), command[0], "exec", dont_inherit=True)
    except OSError as e:
        raise Refused(f"{command[0]}: {e.strerror}") from None
    except (SyntaxError, ValueError) as e:
        raise Refused(f"{command[0]}: {' '.join(str(e).split())}") from None


def spawn(name: str | None, root: Path, command: list[str]) -> str:
    """Starts the process of a session. Returns its name once it listens."""
    output, trace = files_in(root)
    answer, ready = os.pipe()
    begun = {"name": name, "command": command, "trace": str(trace), "output": str(output), "ready": ready}
    env = os.environ | {"GOMFLUX_LOG_DIR": str(root.resolve()), "PYTHONUNBUFFERED": "1"}
    with open(output, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from gomflux_reference.debugger.process import main; main()", json.dumps(begun)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[ready], env=env,
        )  # fmt: skip
    os.close(ready)
    with os.fdopen(answer) as lines:
        written = lines.read()
    try:
        known = json.loads(written)
    except ValueError:
        last = [line for line in output.read_text(errors="replace").splitlines() if line.strip()][-1:]
        raise Refused(f"the process of the session has ended: {''.join(last)} ({output})", 1) from None
    if "error" in known:
        process.wait()
        output.unlink()
        trace.unlink(missing_ok=True)
        raise Refused(known["error"], known["code"])
    return known["session"]


def files_in(root: Path) -> tuple[Path, Path]:
    """New files for the output and the trace of a session."""
    folder = root.resolve() / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    runs.ignore(folder)
    now = datetime.now(timezone.utc)
    while True:
        try:
            output = folder / f"debug_{runs.stamp(now)}.log"
            output.open("x").close()
            return output, output.with_suffix(".jsonl")
        except FileExistsError:
            now += timedelta(microseconds=1)


def set_break(place, session, hit, **conditions):
    if hit is not None and hit < 1:
        raise Refused(f"--hit {hit}: must be a whole number, 1 or more")
    asked = parse_place(place) | given({"hit": hit, **conditions})
    return wire.call(live(session), "break", asked), text.breakpoint_of, 0


def resume(command, session, max_wait, **more):
    """Lets a run go on. Returns its status."""
    chosen = wire.choose(session)
    if chosen["state"] in ENDED:
        if command != "continue":
            raise wire.over(chosen)
        return chosen, text.arrived, code_of(chosen)
    arguments = {"max_wait": max_wait} | given(more)
    result = wire.call(chosen["session"], command, arguments)
    return result, text.arrived, code_of(result)


def code_of(status: dict) -> int:
    if status["state"] in ("failed", "killed", "terminated"):
        return 1
    if status["state"] == "starting" and status.get("never_hit"):
        return 2
    return TIMED_OUT if status.get("timed_out") else 0


def evaluate(source, session):
    source = sys.stdin.read() if source == "-" else source
    return wire.call(live(session), "eval", {"source": source}), text.evaluated, 0


def replace(source, session):
    for end in [i for i, c in enumerate(source) if c in ":@"] + [len(source)]:
        if os.path.isfile(source[:end]):  # the session's working directory may be another
            source = os.path.abspath(source[:end]) + source[end:]
            break
    result = wire.call(live(session), "set", {"source": source})
    return result, lambda r: f"{r['name']} is replaced by {r['source']}", 0


def status(session):
    chosen = wire.choose(session)
    if chosen["state"] not in ENDED:
        chosen = answered(chosen)
    return chosen, text.status_of, 0


def answered(chosen: dict) -> dict:
    """The status of a session as it answers, or as last known."""
    try:
        return wire.call(chosen["session"], "status", wait=5)
    except Refused:
        return wire.look(chosen["session"]) or chosen


def log(session, lines):
    from .session import lines_of

    if lines < 0:
        raise Refused(f"--lines {lines}: must be 0 or more")
    chosen = wire.choose(session)
    return {"lines": lines_of(Path(chosen.get("output") or os.devnull), lines)}, lambda r: "\n".join(r["lines"]), 0


def sessions(user):
    found = [s if s["state"] in ENDED else answered(s) for s in of_folder(user)]
    return {"sessions": found}, lambda r: text.sessions(r["sessions"]), 0


def of_folder(user: bool) -> list[dict]:
    """The sessions of both sides, of this folder or of all the user's folders."""
    return [s for s in wire.known().values() if user or wire.belongs(s)]


def confirmed(question: str, yes: bool) -> bool:
    """Asks before something is removed or ended, as the question says."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refused(f"{question}? Nobody can be asked: give --yes")
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def terminate(session, every, user, dry, yes):
    several = every or user
    if several and session:
        raise Refused("--all and --session cannot be combined")
    if not several:
        if dry or yes:
            raise Refused("--dry-run and --yes have no effect without --all or --user")
        return end(live(session)), text.terminated, 0
    found = [s for s in of_folder(user) if s["state"] not in ENDED and s.get("side") in (wire.SIDE, "")]
    names = [s["session"] for s in found]
    if dry:
        return {"sessions": found}, lambda _: "\n".join(f"session {n} would be terminated" for n in names) or "no sessions", 0
    if names and not confirmed(f"end {len(names)} session{'s' * (len(names) > 1)}: {', '.join(names)}", yes):
        names = []
    results = [end(name) for name in names]
    return {"sessions": results}, lambda r: "\n".join(map(text.terminated, r["sessions"])) or "no sessions", 0


def end(name: str) -> dict:
    """Terminates a session, and waits until its process is gone."""
    try:
        result = wire.call(name, "terminate", wait=TERMINATED)
    except Refused:
        result = wire.look(name) or {"session": name, "state": "killed"}
        if result["state"] not in ENDED:
            raise
    until = time.monotonic() + TERMINATED
    while wire.file_of(name, "lock").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return wire.look(name) or result


def clean(user, dry, yes):
    """Removes ended sessions of both sides; gomflux debug clean also removes files that no session knows any more."""
    ended = [s for s in of_folder(user) if s["state"] in ENDED]
    files = [Path(s[key]) for s in ended for key in ("trace", "output") if s.get(key)]
    files = [f for f in files if f.name.startswith("debug_") and f.is_file()]
    size = sum(f.stat().st_size for f in files)
    what = f"remove {len(ended)} ended session{'s' * (len(ended) != 1)}, with {len(files)} files ({size / 1000:.0f} kB)"
    if not dry and ended:
        if not confirmed(what, yes):
            ended, files, size = [], [], 0
        for f in files:
            f.unlink(missing_ok=True)
        for s in ended:
            wire.forget(s["session"])
    return {"removed": ended, "files": len(files), "bytes": size}, lambda r: text.cleaned(r, dry), 0

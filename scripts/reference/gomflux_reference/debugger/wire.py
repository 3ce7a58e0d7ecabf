"""The folder of sessions, and the messages between a session and its commands: lines of JSON through a Unix socket.

    NAME.lock    locked by the process of the session as long as it lives
    NAME.sock    its socket
    NAME.json    its status as last known, written at the start and at the end
"""

import fcntl
import json
import os
import re
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

PROG = "gomflux-reference debug"
SIDE = "reference"
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,31}")
ENDED = ("finished", "failed", "killed", "terminated")
TERMINATED = "terminated"
STATES = ("starting", "loading", "running", "stopped", *ENDED)
KINDS = ("lock", "sock", "json", "tmp")
NOT_BEGUN = "stopped before the run begins"  # where a breakpoint names nothing of the loaded model
LISTEN_WAIT, END_WAIT = 10, 2  # seconds: until a new session listens, until one ends that no longer answers
LOCK_WAIT = 0.3  # seconds in which another process may look at a lock
LINE = 1 << 20  # bytes of a request
CONNECTIONS, IDLE = 64, 600  # clients at once; seconds
PATH = 103 if sys.platform == "darwin" else 107  # bytes of a socket's path


class Refused(Exception):
    """An error of one line, with its exit code: 1 for a failure, 2 for invalid input."""

    def __init__(self, message: str, code: int = 2):
        super().__init__(message)
        self.code = code


def folder() -> Path:
    """Makes the folder of sessions if it is missing, and refuses one that others could have made or can read."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        path = Path(runtime, "gomflux-debug")
    else:
        path = Path(tempfile.gettempdir(), f"gomflux-debug-{os.geteuid()}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    info, problem = path.lstat(), ""
    if stat.S_ISLNK(info.st_mode):
        problem = "expected a folder, found a symbolic link"
    elif not stat.S_ISDIR(info.st_mode):
        problem = "expected a folder, found a file"
    elif stat.S_IMODE(info.st_mode) != 0o700:
        problem = f"mode {stat.S_IMODE(info.st_mode):04o}, expected 0700"
    elif info.st_uid != os.geteuid():
        problem = f"it belongs to user {info.st_uid}, expected {os.geteuid()}"
    if problem:
        raise Refused(f"folder of sockets {path}: {problem} (remove it, or set XDG_RUNTIME_DIR to another folder)", 1)
    return path


def file_of(name: str, kind: str) -> Path:
    return folder() / f"{name}.{kind}"


def check_name(name: str):
    if not NAME.fullmatch(name):
        raise Refused(
            f"session name {name!r}: expected at most 32 letters, digits, '-', '_' and '.', and no '.' at the beginning"
        )


def socket_of(name: str) -> Path:
    path = file_of(name, "sock")
    if (size := len(os.fsencode(path))) > PATH:
        raise Refused(
            f"socket {path}: its path has {size} bytes, but the system allows {PATH} "
            "(set XDG_RUNTIME_DIR to a folder with a shorter path)", 1,
        )  # fmt: skip
    return path


def take(name: str, wait: float = 0):
    """Locks the name of a session for this process. Returns the lock, or None if another process has it."""
    path, end = file_of(name, "lock"), time.monotonic() + wait
    while True:
        held = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "w")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            if time.monotonic() >= end:
                return None
            time.sleep(0.005)
            continue
        with suppress(FileNotFoundError):
            if os.fstat(held.fileno()).st_ino == os.stat(path).st_ino:
                return held
        held.close()  # of a session that has just ended


def lives(name: str) -> bool:
    """Reports whether a process has the lock of a session."""
    if not file_of(name, "lock").exists():
        return False
    if held := take(name):
        held.close()
    return not held


def reserve(name: str | None):
    """Locks a name, or the first number that no session has, and removes what a session of that name has left. Returns both."""
    if name:
        check_name(name)
        if not (held := take(name, LOCK_WAIT)):
            raise Refused(f"session {name}: a session of this name is running ({PROG} sessions lists all)")
    else:
        n = 1
        while file_of(str(n), "json").exists() or not (held := take(str(n))):  # its log can still be read, or it lives
            n += 1
        name = str(n)
    try:
        socket_of(name)
        remove(name, "sock", "json", "tmp")
    except BaseException:
        remove(name, "lock")
        raise
    return name, held


def remove(name: str, *kinds: str):
    for kind in kinds:
        file_of(name, kind).unlink(missing_ok=True)


def write_status(name: str, status: dict):
    """Replaces NAME.json. The caller has the lock."""
    new = file_of(name, "tmp")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as f:
        f.write(json.dumps(status, ensure_ascii=False) + "\n")
    new.rename(file_of(name, "json"))


def read_status(name: str) -> dict | None:
    try:
        status = json.loads(file_of(name, "json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(status, dict) or status.get("state") not in STATES or status.get("session") != name:
        return None
    return status


def known() -> dict[str, dict]:
    """The last known status of every session by name. Those whose process is gone are put in order."""
    names = {f.stem for f in folder().iterdir() if f.suffix[1:] in KINDS and NAME.fullmatch(f.stem)}
    found = {name: look(name) for name in sorted(names, key=lambda n: (not n.isdecimal(), n.isdecimal() and int(n), n))}
    return {name: status for name, status in found.items() if status}


def look(name: str) -> dict | None:
    """The last known status of a session, or None. If its process was killed, only NAME.json stays."""
    status = read_status(name)
    if status and status["state"] in ENDED and not file_of(name, "lock").exists():
        return status
    if not (held := take(name)):
        return read_status(name) or {"session": name, "side": "", "state": "starting", "command": []}
    with held:
        status = read_status(name)
        if not status and file_of(name, "json").exists():
            status = {"session": name, "side": "", "state": "killed", "error": "its status is damaged", "command": []}
            write_status(name, status)
        elif status and status["state"] not in ENDED:
            status = {k: v for k, v in status.items() if k not in ("stop", "progress")} | {"state": "killed"}
            write_status(name, status)
        remove(name, "sock", "tmp", "lock")
    return status


def forget(name: str):
    """Removes NAME.json of a session that has ended, unless a new one has taken the name."""
    if held := take(name):
        with held:
            remove(name, *KINDS)


def belongs(status: dict) -> bool:
    """Reports whether a session was started in the working directory or in a folder above it."""
    return not (start := status.get("folder")) or Path.cwd().is_relative_to(start)


def choose(name: str | None) -> dict:
    """The last known status of the session that a command is for: the only live one of this folder, or the last that
    has ended."""
    if name:
        check_name(name)
        if status := any(file_of(name, kind).exists() for kind in KINDS) and look(name):
            return status
        there = ", ".join(known())
        raise Refused(f"no session {name}" + (f" (there are: {there})" if there else ""))
    own = {n: s for n, s in known().items() if s.get("side") in (SIDE, "", None)}
    others = len(own)
    own = {n: s for n, s in own.items() if belongs(s)}
    ended = sorted((n for n, s in own.items() if s["state"] in ENDED), key=lambda n: own[n].get("began", ""))
    live = [n for n in own if n not in ended]
    if len(live) > 1:
        raise Refused(f"{len(live)} sessions are running: {', '.join(live)} (choose one with --session)")
    if live or ended:
        return own[(live or ended)[-1]]
    if others:
        raise Refused(f"no session of this folder ({others} of others: {PROG} sessions --user lists them; {PROG} start begins one)")
    raise Refused(f"no session ({PROG} start begins one)")


def over(status: dict) -> Refused:
    """The error of a command for a session that has ended."""
    name, program = status["session"], PROG if status.get("side") != "gomflux" else "gomflux debug"
    how = {"finished": " has finished", "failed": f" has failed: {status.get('error', '')}", "terminated": " was terminated"}
    return Refused(f"session {name}{how.get(status['state'], ': its process was killed')} ({program} start begins another)")


def call(name: str, command: str, arguments: dict | None = None, wait: float | None = None) -> dict:
    """Sends a command to a session. Returns the result."""
    request = {"command": command} | ({"arguments": arguments} if arguments else {})
    line = json.dumps(request, ensure_ascii=False).encode() + b"\n"
    if len(line) > LINE:
        raise Refused(f"{command}: {len(line)} bytes of arguments, expected at most {LINE}")
    with connected(name) as s:
        s.settimeout(wait)
        try:
            with suppress(BrokenPipeError):  # the answer may say why
                s.sendall(line)
            with s.makefile("rb") as answers:
                answer = answers.readline()
        except OSError as e:
            raise Refused(f"session {name}: {e.strerror or e}", 1) from e
    if not answer.endswith(b"\n"):
        raise lost(name)
    try:
        answer = json.loads(answer)
        if answer["ok"]:
            return answer.get("result", {})
        raise Refused(answer["error"], answer.get("code", 1))
    except (ValueError, KeyError, TypeError) as e:
        raise Refused(f"session {name}: its answer is damaged: {e}", 1) from None


def connected(name: str) -> socket.socket:
    """Connects to a session. If it has only begun, this waits until it listens."""
    end = time.monotonic() + LISTEN_WAIT
    while True:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.connect(str(socket_of(name)))
            return s
        except (FileNotFoundError, ConnectionRefusedError):
            s.close()
        status = look(name)
        if not status:
            raise Refused(f"no session {name}")
        if status["state"] in ENDED:
            raise over(status)
        if time.monotonic() > end:
            raise Refused(f"session {name} does not answer", 1)
        time.sleep(0.01)


def lost(name: str) -> Refused:
    """The error for a session that has closed the connection."""
    end = time.monotonic() + END_WAIT
    while time.monotonic() < end:
        if not (status := look(name)):
            return Refused(f"no session {name}: it has ended")
        if status["state"] in ENDED:
            return over(status)
        time.sleep(0.01)
    return Refused(f"session {name} has closed the connection", 1)


class Server:
    """Answers requests through a session's socket, each connection in a thread."""

    def __init__(self, name: str, answer):
        """answer takes a command and its arguments, and returns the answer."""
        self.path, self.answer = socket_of(name), answer
        self.path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self.socket.bind(str(self.path))
        finally:
            os.umask(before)
        self.socket.listen(CONNECTIONS)
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        self.answering, self.changed = 0, threading.Condition()
        threading.Thread(target=self._accept, daemon=True, name="debugger").start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            if user_of(connection) not in (None, os.getuid()):
                connection.close()
            elif not self.free.acquire(blocking=False):
                with suppress(OSError), connection:
                    connection.sendall(line_of(refused(f"the session has {CONNECTIONS} connections already", 1)))
            else:
                threading.Thread(target=self._serve, args=(connection,), daemon=True, name="debugger").start()

    def _serve(self, connection):
        try:
            with suppress(OSError), connection, connection.makefile("rb") as lines:
                connection.settimeout(IDLE)
                while line := lines.readline(LINE + 1):
                    with self.changed:
                        self.answering += 1
                    try:
                        answer, valid = self._answered(line)
                        connection.sendall(line_of(answer))
                    finally:
                        with self.changed:
                            self.answering -= 1
                            self.changed.notify_all()
                    if not valid:
                        return
        finally:
            self.free.release()

    def _answered(self, line: bytes) -> tuple[dict, bool]:
        if len(line) > LINE:
            return refused(f"the request is longer than {LINE} bytes"), False
        try:
            request = json.loads(line)
            command, arguments = request["command"], request.get("arguments") or {}
            if not isinstance(command, str) or not isinstance(arguments, dict):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return refused('invalid request: expected a line of JSON such as {"command": "status"}'), False
        return self.answer(command, arguments), True

    def close(self, wait: float = 2):
        """Takes no more connections, and waits until the last answers are written."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        with self.changed:
            self.changed.wait_for(lambda: not self.answering, wait)


def refused(error: str, code: int = 2) -> dict:
    return {"ok": False, "error": error, "code": code}


def line_of(answer: dict) -> bytes:
    return json.dumps(answer, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def user_of(connection) -> int | None:
    """The user of a socket's other end; None where the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    if sys.platform == "darwin":
        data = connection.getsockopt(0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED: struct xucred
        return struct.unpack("2I", data[:8])[1]
    return None

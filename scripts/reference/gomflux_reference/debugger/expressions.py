"""Python at a stop: expressions and lines, their time limit, and their values as text."""

import ast
import ctypes
import io
import json
import linecache
import math
import signal
import struct
import sys
import threading
import traceback
from contextlib import contextmanager, redirect_stdout

from .wire import Refused

SECONDS = 5  # that an expression may take
PRINTED = 1 << 20  # characters that an expression may print
LARGEST = 1 << 30  # bytes of a value
SHORT = 200  # characters of a value that is no tensor
TEXT = 20_000  # of a value's text
SOURCE = "<expression>"


class Endless(BaseException):
    """Ends an expression that takes too long. Its handlers of ordinary errors do not catch this."""


def parsed(source: str):
    """The code of a condition."""
    try:
        return compile(source.strip(), SOURCE, "eval")
    except (SyntaxError, ValueError) as e:
        raise Refused(f"{source}: {problem(e)}") from None


def truth(code, names: dict) -> bool:
    """Evaluates a condition."""
    with errors(), limit():
        value = eval(code, names)
    if type(value).__module__ in ("torch", "numpy") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, bool):
        raise Refused(f"expected True or False, got {text(value)}")
    return value


def run(source: str, names: dict) -> tuple[dict, dict]:
    """Runs lines of Python. Returns the value of the last one if it is an expression, and the names afterwards."""
    source = source.strip("\n").rstrip()
    try:
        tree = ast.parse(source, SOURCE)
        last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        first, last = compile(tree, SOURCE, "exec"), last and compile(last, SOURCE, "eval")
    except (SyntaxError, ValueError, RecursionError) as e:
        raise Refused(problem(e, "\n" in source)) from None
    linecache.cache[SOURCE] = (len(source), None, source.splitlines(True), SOURCE)
    names, printed, value = dict(names), Printed(), None
    with errors("\n" in source), redirect_stdout(printed), limit():
        exec(first, names)
        value = eval(last, names) if last else None
        if size_of(value) > LARGEST:
            raise Refused(f"a value of {size_of(value) / 1e9:.1f} GB: at most 1 GB", 1)
        found = {"text": text(value)}
        if value is not None:
            found["value"] = as_json(value)
    if lines := printed.getvalue().splitlines():
        found["output"] = lines
    names.pop("__builtins__", None)
    return found, names


class Printed(io.StringIO):
    def write(self, s: str) -> int:
        if self.tell() + len(s) > PRINTED:
            raise Refused(f"more than {PRINTED} characters printed", 1)
        return super().write(s)


@contextmanager
def errors(many: bool = False):
    """Reports what goes wrong in an expression, or in one of many lines."""
    try:
        yield
    except Endless:
        raise Refused(f"the expression takes longer than {SECONDS} s", 1) from None
    except Refused:
        raise
    except (Exception, SystemExit) as e:
        raise Refused(problem(e, many), 1) from None


def problem(e: BaseException, many: bool = False) -> str:
    words = " ".join(str(e.msg if isinstance(e, SyntaxError) else e).split())[:1000]
    lines = [t.lineno for t in traceback.extract_tb(e.__traceback__) if t.filename == SOURCE]
    line = e.lineno if isinstance(e, SyntaxError) else lines[-1] if lines else None
    at = f"line {line}: " if line and many else ""
    return f"{at}{type(e).__name__}: {words}" if words else f"{at}{type(e).__name__}"


@contextmanager
def limit(seconds: float = SECONDS):
    """Ends what takes too long, between two instructions of Python: a call of C code cannot be interrupted."""
    if threading.current_thread() is threading.main_thread():
        yield from by_signal(seconds)
    else:
        yield from by_exception(seconds)


def by_signal(seconds: float):
    armed = True

    def over(*_):
        if armed:
            raise Endless

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)  # again, should it be caught
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def by_exception(seconds: float):
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    me, done = ctypes.c_ulong(threading.get_ident()), threading.Event()

    def over():
        if not done.is_set():
            raise_in(me, ctypes.py_object(Endless))

    timer = threading.Timer(seconds, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        done.set()
        timer.cancel()


def is_tensor(x) -> bool:
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    return bool(torch and isinstance(x, torch.Tensor) or numpy and isinstance(x, numpy.ndarray))


def size_of(value, depth: int = 0) -> int:
    """The bytes of the tensors in a value."""
    if is_tensor(value):
        return value.nbytes
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (list, tuple, dict)) and depth < 4:
        return sum(size_of(v, depth + 1) for v in (value.values() if isinstance(value, dict) else value))
    return 0


def described(tensor) -> dict:
    """Shape, dtype, statistics and first values of a tensor."""
    if "torch" not in sys.modules:
        return {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    from .. import debug
    from ..record import kept

    t = debug.plain(tensor)
    return debug.summary(kept(t) if t.numel() else t)


def text(value) -> str:
    """A value as Python prints it, a tensor by its dtype, shape, statistics and first values."""
    if value is None:
        return ""
    written = tensor_text(described(value)) if is_tensor(value) and value.ndim else _text(value, 0)
    return written if len(written) <= TEXT else written[:TEXT] + "…"


def _text(value, depth: int) -> str:
    if value is None:
        return "None"
    if is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"tensor({dtype}, {of_many(tuple(value.shape), depth)})" if value.ndim else _text(value.item(), depth)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return shortest(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return f'"{str(value).removeprefix("torch.")}"'
    if type(value).__name__ == "Size" and type(value).__module__ == "torch":
        value = tuple(value)
    if depth < 8 and type(value) in (tuple, list, dict, set, frozenset):
        return of_many(value, depth)
    return short(value)


def shortest(x: float) -> str:
    """A number with as few digits as identify the float32 value, if it is one, or else the float64 value."""
    try:
        [single] = struct.unpack("f", struct.pack("f", x))
    except OverflowError:
        return repr(x)
    if single != x or x in (math.inf, -math.inf):
        return repr(x)
    digits = (f"{x:.{n}g}" for n in range(1, 10))
    return repr(float(next(d for d in digits if struct.unpack("f", struct.pack("f", float(d)))[0] == x)))


def of_many(value, depth: int) -> str:
    if not value:
        return repr(value)
    if isinstance(value, dict):
        items = [f"{_text(k, depth + 1)}: {_text(v, depth + 1)}" for k, v in list(value.items())[:1000]]
    else:
        items = [_text(v, depth + 1) for v in list(value)[:1000]]
    items += ["…"] * (len(value) > 1000)
    opened, closed = {tuple: "()", list: "[]"}.get(type(value), "{}")
    return opened + ", ".join(items) + ("," if type(value) is tuple and len(items) == 1 else "") + closed


def tensor_text(known: dict) -> str:
    line = f"tensor {known['dtype']} {of_many(tuple(known['shape']), 0)}"
    if "stats" not in known:
        return line
    stats = known["stats"]
    line += ": " + ", ".join(f"{k} {number(stats[k])}" for k in ("min", "max", "mean", "std"))
    line += "".join(f", {stats[k]} {word}" for k, word in (("nan", "NaN"), ("inf", "infinite")) if stats[k])
    return line + "; first " + ", ".join(number(x) for x in known["preview"])


def stats_text(stats: dict) -> str:
    line = "  ".join(f"{k} {number(stats[k])}" for k in ("min", "max", "mean", "std"))
    return line + "".join(f"  {k} {stats[k]}" for k in ("nan", "inf") if stats[k])


def number(x, digits: int = 6) -> str:
    return x if isinstance(x, str) else format(x, f".{digits}g")


def short(value) -> str:
    """A value that is no tensor, in at most a line."""
    written = brief(value)
    return written if len(written) <= SHORT else written[: SHORT - 1] + "…"


def brief(value, depth: int = 0) -> str:
    """A value's repr on one line, with tensors by their dtype and shape and modules by their class."""
    if is_tensor(value):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.nn.Module):
        return f"{type(value).__name__}(...)"
    if type(value) in (tuple, list) and depth < 4:
        items = [brief(v, depth + 1) for v in value[:50]]
        opened, closed = "()" if type(value) is tuple else "[]"
        return opened + ", ".join(items) + ("," if opened == "(" and len(items) == 1 else "") + closed
    if type(value) is dict and depth < 4:
        return "{" + ", ".join(f"{k!r}: {brief(v, depth + 1)}" for k, v in list(value.items())[:50]) + "}"
    try:
        return " ".join(repr(value).split())
    except Exception as e:
        return f"<{type(value).__name__}, whose repr fails: {type(e).__name__}>"


def as_json(value, depth: int = 0):
    """A value as JSON, with tensors described."""
    if is_tensor(value):
        return described(value) if value.ndim else as_json(value.item())
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value[:TEXT]
    if isinstance(value, (list, tuple)) and depth < 8:
        return [as_json(v, depth + 1) for v in value[:1000]]
    if isinstance(value, dict) and depth < 8:
        return {str(k): as_json(v, depth + 1) for k, v in list(value.items())[:1000]}
    return _text(value, 1)

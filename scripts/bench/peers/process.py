"""Runs one measurement in a process of its own."""

import json
import math
import subprocess
import sys

from .cases import Case, Unsupported

UNSUPPORTED = 3  # exit code of a process whose engine cannot run the case
KEYS = ("first_s", "median_s", "min_s", "max_s")


class Failed(Exception):
    """A process has failed. The message is one line."""


def run(words: list, limit: float | None = None) -> str:
    """Runs a command and returns its output. A failure has the last line of its errors."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {limit:.0f} s") from None
    except OSError as e:
        raise Failed(f"{words[0]}: {e.strerror}") from e
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        status = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise (Unsupported if done.returncode == UNSUPPORTED else Failed)(lines[-1] if lines else status)
    return done.stdout.decode(errors="replace")


def measure(engine: str, case: Case, part: str, device: str | None, repeats: int, limit: float | None) -> dict:
    """Measures a part of a case with mflux or diffusers."""
    words = [sys.executable, "-m", __package__, "measure", "--engine", engine, "--part", part, *case.arguments()]
    words += ["--repeats", str(repeats)] + (["--device", device] if device else [])
    return parse(run(words, limit))


def parse(text: str) -> dict:
    """Returns the measurement on the last line of a process's output."""
    lines = text.strip().splitlines()
    try:
        measured = json.loads(lines[-1])
        if not all(isinstance(measured[k], (int, float)) and math.isfinite(measured[k]) for k in KEYS):
            raise ValueError("a time is not a number")
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise Failed(f"printed no measurement: {type(e).__name__}: {e}") from e
    return measured

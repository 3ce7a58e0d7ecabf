"""Breakpoints at tensors and at lines of files, and watches."""

import fnmatch
import os
import re
from dataclasses import dataclass

from .wire import Refused

STEP = re.compile(r"[@#]-?[0-9]+")  # and the call, in a name
# The fields of a request, with their types.
FIELDS = {
    "glob": str, "step": int, "call": int, "hit": int, "negative": bool, "if": str, "once": bool, "file": str, "line": int,
    "watch": bool,
}  # fmt: skip


@dataclass
class Breakpoint:
    number: int
    asked: dict  # the request's fields, as in protocol.BreakArguments
    hits: int = 0
    code: object = None  # the compiled condition

    @property
    def at_line(self) -> bool:
        return "file" in self.asked

    def matches(self, name: str, step: int, call: int, negative: bool) -> bool:
        asked = self.asked
        if asked.get("step", step) != step or asked.get("call", call) != call:
            return False
        return negative >= asked.get("negative", False) and matches(asked["glob"], name)

    def as_json(self) -> dict:
        return {"number": self.number, **self.asked, "hits": self.hits}


def matches(glob: str, name: str) -> bool:
    """Reports whether a glob matches a tensor's name. One without a step and a call matches all of them."""
    if fnmatch.fnmatchcase(name, glob):
        return True
    return "@" not in glob and "#" not in glob and fnmatch.fnmatchcase(STEP.sub("", name), glob)


def checked(arguments: dict) -> dict:
    """The fields of a request, or an error."""
    asked = {}
    for key, value in arguments.items():
        if key == "differs" and not value:
            continue
        if key == "differs":
            raise Refused("differs: only a replay of gomflux compares tensors (gomflux debug start -- parity run)")
        if key not in FIELDS:
            raise Refused(f"arguments: no field {key} (fields: {', '.join(FIELDS)})")
        kind = FIELDS[key]
        if not isinstance(value, kind) or kind is int and isinstance(value, bool):
            raise Refused(f"{key} {value!r}: must be a {'whole number' if kind is int else kind.__name__}")
        if value or key in ("step", "call"):
            asked[key] = value
    for key, least, words in (
        ("hit", 0, "1 or more"), ("call", 0, "0 or more"), ("step", -1, "0 or more, or -1 outside the denoising loop"),
    ):  # fmt: skip
        if asked.get(key, 0) < least:
            raise Refused(f"{key} {asked[key]}: must be {words}")
    if not asked.get("file") and not asked.get("glob"):
        raise Refused("the pattern of a tensor's name is missing (such as 'transformer.layers.0')")
    if "glob" in asked:
        check_glob(asked["glob"])
    wrong = [k for k in ("glob", "step", "call", "negative", "watch") if k in asked] if "file" in asked else []
    if wrong:
        raise Refused(f"{asked['file']}: a line of a file has no {wrong[0].replace('watch', 'tensor to watch')}")
    if asked.get("watch") and asked.get("once"):
        raise Refused("watch: nothing stops, so it does not go with once")
    return asked


def check_glob(glob):
    if not isinstance(glob, str):
        raise Refused(f"{glob!r}: must be a pattern of names (such as 'transformer.layers.*')")
    if glob.startswith("!"):
        raise Refused(f"{glob}: a breakpoint names tensors, it does not leave them out")
    if glob.count("[") > glob.count("]") or glob.endswith("\\"):
        raise Refused(f'"{glob}" is not a pattern of names (such as \'transformer.layers.*\')')


def parse_place(text: str) -> dict:
    """The fields for GLOB or FILE:LINE. The file becomes absolute if it is there."""
    file, colon, line = text.rpartition(":")
    if not colon or not line.isdecimal() or not file.endswith(".py"):
        return {"glob": text}
    return {"file": os.path.abspath(file) if os.path.isfile(file) else file, "line": int(line)}

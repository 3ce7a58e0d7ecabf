"""prune: copies what a generation executes of diffusers and transformers into a folder, for reading.

The generation runs in a process of its own that notes what is called from the first import of the two packages on; the
copy is made; and the same runs once more with the copy, whose tensors have to be the same.
"""

import ast
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import types
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from .files import index_file, read_json, write_json
from .sources import FUNCTIONS, first_line
from .tracing import Observer

PACKAGES = ("diffusers", "transformers")
SHARED = ["torch", "torch._dynamo"]  # what both processes begin with; diffusers imports the second
NOTES = "PRUNED.md"
GUARD = "gomflux_pruned"  # a module of the copy, see guard_text


def make(out: Path, **run):
    """Writes the copy into the folder out, which must be new or empty. run are arguments of dump.pipeline."""
    out = Path(os.path.abspath(out))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SystemExit(f"{out}: expected a new or empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    with tempfile.TemporaryDirectory() as scratch:
        print("observing the generation", file=sys.stderr)
        seen = generate(Path(scratch) / "installed", run)
        try:
            pruned = copied(seen, partial)
            print("repeating it with the copy", file=sys.stderr)
            verify(Path(scratch), seen, partial, run)
            (partial / NOTES).write_text(notes(pruned, seen, run), encoding="utf-8")
            partial.rename(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    for package in pruned:
        print(package.summary())
    print(f"{seen['tensors']} tensors are the same, bit for bit: {out / NOTES}")


def generate(dump: Path, run: dict, copy: Path | None = None) -> dict:
    """Runs the generation in another process, and dumps it there. Without a copy what it calls is observed. Returns what
    the process has seen."""
    dump.mkdir()
    result, log = dump / "result.json", dump / "stderr"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SHARED)
    process = context.Process(target=child, args=(run | {"out": dump}, copy, result, log))
    process.start()
    try:
        process.join()
    finally:
        process.kill()
        process.join()
    if process.exitcode:
        said = log.read_text(encoding="utf-8") if log.exists() else ""
        lines = [line for line in said.splitlines() if line.strip()] or [f"exit code {process.exitcode}"]
        raise SystemExit(f"the copy does not work, and is removed: {lines[-1]}" if copy else lines[-1])
    return read_json(result)


def child(run: dict, copy: Path | None, result: Path, log: Path):
    """The other process: a generation as dump records it."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.dont_write_bytecode = True
    if copy:
        sys.path.insert(0, str(copy))
    folders = {package: str(Path(find_spec(package).origin).parent) for package in PACKAGES}
    observer = Observer(folders)
    with nullcontext() if copy else observer.calls():
        order = recorded(run)
    codes = observer.noted()
    found = {
        "folders": folders,
        "files": sorted({c.co_filename for c in codes if c.co_name == "<module>"}),
        "called": sorted({(c.co_filename, c.co_firstlineno, c.co_name) for c in codes if c.co_name != "<module>"}),
        "lazy": {} if copy else lazy_names(folders),
        "order": order,
    }
    write_json(result, found, None)


def recorded(run: dict) -> list[str]:
    """Dumps the generation. Returns the names of its tensors in the order in which they were computed."""
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    only_family_of(run["model"])
    from . import dump, record

    order, store = [], record.Recorder._store

    def stored(self, name, tensor):
        order.append(name)
        store(self, name, tensor)

    record.Recorder._store = stored
    dump.pipeline(**run)
    return order


def only_family_of(model: str):
    """Takes the place of the modules of other families, so that their pipelines need not be in the copy."""
    try:
        pipeline = read_json(index_file(Path(model))).get("_class_name", "")
    except (OSError, ValueError):  # on the hub, or damaged
        return
    modules = {f.stem: f.read_text(encoding="utf-8") for f in (Path(__file__).parent / "families").glob("[a-z]*.py")}
    families = {name for name, text in modules.items() if re.search(r"^FAMILIES = ", text, re.MULTILINE)}
    for name in families - {name for name in families if re.search(rf"\b{pipeline}\b", modules[name])}:
        sys.modules[f"{__package__}.families.{name}"] = types.SimpleNamespace(FAMILIES={})


def lazy_names(folders: dict) -> dict:
    """What the packages import when it is asked for, as name -> file."""
    found = {}
    for module in list(sys.modules.values()):
        if type(module).__name__ != "_LazyModule" or module.__name__.split(".")[0] not in folders:
            continue
        for name, target in [*module._class_to_module.items(), *((m, m) for m in module._modules)]:
            if file := file_of(f"{module.__name__}.{target}", folders):
                found[f"{module.__name__}.{name}"] = file
    return found


def file_of(module: str, folders: dict) -> str | None:
    package, _, rest = module.partition(".")
    path = Path(folders[package], *rest.split("."))
    candidates = (path / "__init__.py", path.with_name(path.name + ".py"))
    return next((str(c) for c in candidates if c.is_file()), None)


@dataclass
class Copy:
    """A package in the copy, next to the whole one."""

    package: str
    files: list = field(default_factory=list)  # (path, lines, lines before, functions, functions before)
    all_files: int = 0
    all_lines: int = 0

    def summary(self) -> str:
        lines = sum(f[1] for f in self.files)
        return f"{self.package}: {len(self.files):,} of {self.all_files:,} files, {lines:,} of {self.all_lines:,} lines"


def copied(seen: dict, to: Path) -> list[Copy]:
    """Copies the files that were executed, with the functions that were called."""
    kept, called = set(seen["files"]), {}
    for file, line, name in seen["called"]:
        called.setdefault(file, set()).add((line, name))
    result, gone = [], []
    for package, folder in seen["folders"].items():
        made = Copy(package)
        for file in sorted(Path(folder).rglob("*.py")):
            text = file.read_bytes()
            made.all_files += 1
            made.all_lines += lines_in(text)
            path = Path(package, file.relative_to(folder))
            if str(file) not in kept:
                gone.append(str(path))
                continue
            new, before, functions = reduced(text, called.get(str(file), set()), module_of(path))
            if path == Path(package, "utils", "import_utils.py"):
                new += f"\n\nimport {GUARD}\n\n{GUARD}.guard(_LazyModule)\n".encode()
            target = to / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(new)
            made.files.append((str(path), lines_in(new), lines_in(text), functions, before))
        result.append(made)
    names = {name: relative(file, seen["folders"]) for name, file in seen["lazy"].items() if file not in kept}
    write_json(to / f"{GUARD}.json", {"names": names, "files": gone}, None)
    (to / f"{GUARD}.py").write_text(GUARD_TEXT, encoding="utf-8")
    return result


def relative(file: str, folders: dict) -> str:
    package, folder = next((p, f) for p, f in folders.items() if Path(file).is_relative_to(f))
    return str(Path(package, Path(file).relative_to(folder)))


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def lines_in(text: bytes) -> int:
    return text.count(b"\n")


def reduced(text: bytes, called: set, module: str) -> tuple[bytes, int, int]:
    """Replaces the bodies of functions that were not called by an error. called are their first lines and names. Returns
    the new text, and the numbers of functions and of those that were called."""
    lines = text.splitlines(keepends=True)
    edits, count = [], [0, 0]

    def visit(node, name: str, documented: bool):
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
                visit(inner, name, documented)
                continue
            qualified, decorated = f"{name}.{inner.name}", bool(inner.decorator_list)
            if isinstance(inner, ast.ClassDef):
                visit(inner, qualified, decorated)
                continue
            count[0] += 1
            if (first_line(inner), inner.name) in called:
                count[1] += 1
                visit(inner, qualified, False)
            elif not stays(inner):
                edits.append((*span(inner, documented or decorated), error(qualified)))

    visit(ast.parse(text), module, False)
    for (first, start), (last, end), new in sorted(edits, reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:start] + new.encode() + lines[last - 1][end:]]
    return b"".join(lines), *count


def stays(function) -> bool:
    """Reports whether a function is left as it is although it was not called: one that has no code, one that only raises
    an error, and one that torch.jit compiles, which nobody sees called."""
    if any("jit" in ast.unparse(d) or "overload" in ast.unparse(d) for d in function.decorator_list):
        return True
    body = function.body[has_docstring(function) :]
    return all(isinstance(s, ast.Raise) or isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in body)


def has_docstring(function) -> bool:
    return ast.get_docstring(function, clean=False) is not None


def span(function, documented: bool):
    """The place of a function's body in the text: lines from 1, columns in bytes. The docstring stays if a decorator, of
    the function or of its class, may read it."""
    body = function.body[1:] if documented and has_docstring(function) else function.body
    body = body or function.body
    first, last = body[0], body[-1]
    return (first_line(first), first.col_offset), (last.end_lineno, last.end_col_offset)


def error(name: str) -> str:
    return f'raise RuntimeError("{name} was not called in the profile: see {NOTES}")'


# A module of the copy: what was left out cannot be imported, and says so.
GUARD_TEXT = f'''"""Made by gomflux-reference prune: names what this copy does not have."""

import json
import sys
from pathlib import Path

with open(Path(__file__).with_suffix(".json"), encoding="utf-8") as f:
    GONE = json.load(f)
FILES = set(GONE["files"])


def missing(name, file):
    return ModuleNotFoundError(f"{{name}} is not in this copy: {{file}} was not executed in the profile (see {NOTES})")


class Finder:
    """Comes last of all finders."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        file = name.replace(".", "/")
        for file in (f"{{file}}.py", f"{{file}}/__init__.py"):
            if file in FILES:
                raise missing(name, file)


def guard(lazy):
    """Has a class of lazy modules raise an error for names of files that are not there."""
    get = lazy.__getattr__

    def __getattr__(self, name):
        full = f"{{self.__name__}}.{{name}}"
        if full in GONE["names"]:
            raise missing(full, GONE["names"][full])
        return get(self, name)

    lazy.__getattr__ = __getattr__


if Finder not in sys.meta_path:
    sys.meta_path.append(Finder)
'''


def verify(scratch: Path, seen: dict, copy: Path, run: dict):
    """Runs the generation with the copy, and compares every tensor."""
    found = generate(scratch / "pruned", run, copy)
    for package, folder in found["folders"].items():
        if not Path(folder).is_relative_to(copy):
            raise SystemExit(f"{package} was imported from {folder}, not from the copy")
    names = [tensors_of(scratch / name) for name in ("installed", "pruned")]
    for name in dict.fromkeys([*seen["order"], *found["order"]]):
        a, b = (tensors.get(name) for tensors in names)
        if a is None or b is None:
            raise SystemExit(f"the copy computes something else, and is removed: {name} is only in one of both runs")
        if different(a, b):
            raise SystemExit(f"the copy computes something else, and is removed: {name} differs first")
    seen["tensors"] = len(names[0])


def tensors_of(folder: Path) -> dict:
    """The tensors of a dump, as name -> (dtype, shape, file, first byte, bytes)."""
    settings, found = read_json(folder / "settings.json"), {}
    for file in settings["files"]:
        with open(folder / file, "rb") as f:
            start = 8 + int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(start - 8))
        for name, t in header.items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                found[name] = t["dtype"], t["shape"], folder / file, start + begin, end - begin
    return found | {alias: found[name] for alias, name in settings["aliases"].items()}


def different(a: tuple, b: tuple) -> bool:
    return a[:2] != b[:2] or bytes_of(*a[2:]) != bytes_of(*b[2:])


def bytes_of(file: Path, first: int, size: int) -> bytes:
    with open(file, "rb") as f:
        f.seek(first)
        return f.read(size)


def notes(packages: list[Copy], seen: dict, run: dict) -> str:
    from . import runs

    settings = {k: v for k, v in run.items() if v not in (None, (), [], False)}
    versions = ", ".join(f"{k} {v}" for k, v in runs.versions().items())
    lines = [
        "# What a generation executes", "",
        "Made by `gomflux-reference prune`, for reading: PYTHONPATH set to this folder takes these packages in the place "
        "of those that are installed. Functions that were not called in the profile raise an error, and files that were "
        "not executed are not there.", "",
        "The profile is one generation:", "", "```json", json.dumps(settings, indent=1, default=str), "```", "",
        f"with {versions}. Repeated with this copy, its {seen['tensors']} tensors were the same, bit for bit.", "",
    ]  # fmt: skip
    lines += [f"- {package.summary()}" for package in packages]
    for package in packages:
        lines += ["", f"## {package.package}", "", "| functions called | of | lines | of | file |", "|---|---|---|---|---|"]
        ordered = sorted(package.files, key=lambda f: (-f[3], f[0]))
        lines += [f"| {called} | {of} | {n} | {before} | `{path}` |" for path, n, before, called, of in ordered]
    return "\n".join(lines) + "\n"

"""For those who edit their reference script: save tensors, load those of the other side, log checkpoints.

    from gomflux_reference.debug import debug_checkpoint, debug_load, debug_save  # debug_show_all, debug_clear

    debug_save(latents, "latents.start")
    latents = debug_load("latents.start", like=latents)
    debug_checkpoint("after_latents", latents=latents, step=3)

Everything is in the run's folder (see runs.py), which the first call begins, in the files that gomflux reads and
writes: `gomflux tensors list` shows them, `--debug-load NAME=...` takes them.
"""

import atexit
import datetime
import difflib
import json
import math
import string
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from . import debugger, runs
from .files import code_context
from .record import leaves

RECORD = "gomflux"  # where the metadata of a tensor's file has what is known of it
PREVIEWED = 10  # values
SIDES = ("gomflux", runs.SIDE)
LONG = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip

_run, _hits = None, {}


def the_run() -> runs.Run:
    """This process's run."""
    global _run
    if _run is None:
        _run = runs.Run()
        _run.describe({"command": "script", "versions": runs.versions()})
        atexit.register(end)
    return _run


def end():
    """Ends this process's run: well, unless the interpreter has reported an exception that nobody caught."""
    _run.end(interrupted=hasattr(sys, "last_value"))


def use_run(run: runs.Run):
    """Makes this process's run one that has begun already, and that its owner ends."""
    global _run
    _run = _run or run


def debug_save(tensor, name: str, exit_after: bool = False) -> Path:
    """Saves a tensor (of PyTorch, NumPy or MLX). One that has a name for the second time is name#1, and so on."""
    file = save(tensor, name, location())
    if exit_after:
        print(f"ended after {name} was saved to {file}", file=sys.stderr)
        sys.exit(0)
    return file


def save(tensor, name: str, at: dict) -> Path:
    """debug_save of a tensor that was computed at a place."""
    run = the_run()
    _hits[name] = hit = _hits.get(name, 0) + 1
    full = name if hit == 1 else further(name, hit - 1)
    t = plain(tensor)
    known = {"name": full, "hit_count": hit, "timestamp": now(), "location": at, "point": point_of(full)}
    known |= summary(t)
    file = run.folder / "tensors" / (file_name(full) + ".safetensors")
    run.reserve(t.nbytes)
    save_file({full: t}, file, metadata={RECORD: json.dumps(known)})
    return file


def debug_load(
    name: str, like: torch.Tensor | None = None, cast: bool = False, root: Path | None = None
) -> torch.Tensor:
    """The tensor that either side's latest run has saved under a name, the newest if both have.

    With like, a tensor that it is to replace, its shape must be that one's, and so must its dtype unless a cast is
    asked for; it is on the same device then.
    """
    found = saved(root or current_root())
    if name not in found:
        raise not_saved(name, found)
    t = found[name].read()
    if like is None:
        return t
    if t.shape != like.shape:
        raise ValueError(f"{found[name].file}: {name} is {list(t.shape)}, expected {list(like.shape)}")
    if t.dtype != like.dtype and not cast:
        raise ValueError(f"{found[name].file}: {name} is {t.dtype}, expected {like.dtype} (cast=True converts it)")
    return t.to(like.device, like.dtype)


def debug_checkpoint(name: str, skip: bool = False, metadata: dict | None = None, **variables) -> Path:
    """Writes the values of variables to checkpoints/checkpoint_NAME_hit001.json, where the number counts the calls.

    Under the debugger (gomflux-reference debug start -- script.py) the run stops here then, unless skip is set.
    """
    run, key = the_run(), f"checkpoint {name}"
    _hits[key] = _hits.get(key, 0) + 1
    file = write_checkpoint(run.folder, run, name, _hits[key], location(), variables, metadata)
    if debugger.current and not skip:
        debugger.current.checkpoint(name, variables, caller())
    return file


def write_checkpoint(
    folder: Path, run: runs.Run | None, name: str, hit: int, at: dict, variables: dict, metadata: dict | None = None
) -> Path:
    text = {"checkpoint_name": name, "hit_count": hit, "timestamp": now()}
    text["location"] = at | {"file": Path(at["file"]).name}
    if context := code_context(at):
        text["code_context"] = context
    if metadata:
        text["metadata"] = metadata
    text["variables"] = {k: variable(v) for k, v in variables.items()}
    file = folder / "checkpoints" / f"checkpoint_{file_name(name)}_hit{hit:03d}.json"
    data = json.dumps(text, indent=1, ensure_ascii=False, default=str) + "\n"
    if run:
        run.reserve(len(data))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(data, encoding="utf-8")
    return file


def debug_show_all(root: Path | None = None) -> list[dict]:
    """Prints the tensors that both sides' latest runs have saved, with the bytes of all runs.

    It returns the tensors: gomflux's first, by name.
    """
    root = root or current_root()
    found = [about(name, at) for side in SIDES for name, at in sorted(saved(root, [side]).items())]
    if not found:
        print(f"no tensors in {root / 'runs' / 'latest'}")
    width = max((len(known["name"]) for known in found), default=0)
    for known in found:
        text = f"{known['dtype']} {known['shape']}"
        print(f"{known['name']:{width}}  {known['side']:9}  {text:28}  {readable(known['bytes'])}")
    print(f"{len(found)} tensors; {root} holds {readable(runs.size_of(root) if root.exists() else 0)} with all runs")
    return found


def debug_clear(name: str | None = None, confirm: bool = True, side: str = runs.SIDE, root: Path | None = None) -> dict:
    """Removes a tensor of a side's latest run, or all of them, after a question. Returns the files and their bytes.

    side is reference, gomflux or both. Earlier runs stay: `gomflux tensors clear --archive` removes them.
    """
    if side not in (*SIDES, "both"):
        raise ValueError(f"side {side}: expected {', '.join(SIDES)} or both")
    root = root or current_root()
    sides = SIDES if side == "both" else (side,)
    for one in sides:
        if runs.busy(root, one) and not (_run and _run.root == root and _run.side == one):
            raise RuntimeError(f"a run of {one} is in progress in {root}: its tensors cannot be removed until it ends")
    found = saved(root, sides)
    if name is not None:
        if name not in found:
            raise not_saved(name, found)
        if others := [n for n, at in found.items() if at.file == found[name].file and n != name]:
            raise ValueError(f"{name} is in {found[name].file}, with {len(others)} other names: nothing was removed")
    files = {at.file for n, at in found.items() if name in (None, n)}
    size = sum(file.stat().st_size for file in files)
    what = name or f"all {len(found)} tensors of the latest run of {' and '.join(sides)}"
    if confirm and files:
        try:
            answer = input(f"remove {what}, {readable(size)}? [y/N] ")
        except EOFError:
            raise RuntimeError(f"nobody to ask about {what}: nothing was removed (confirm=False does not ask)") from None
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return {"removed": 0, "bytes": 0}
    for file in files:
        file.unlink()
    print(f"{len(files)} files removed, {readable(size)}")
    return {"removed": len(files), "bytes": size}


def current_root() -> Path:
    return _run.root if _run else runs.default_root()


def not_saved(name: str, found: dict) -> FileNotFoundError:
    near = difflib.get_close_matches(name, found, 5, 0.3) or sorted(found)[:5]
    return FileNotFoundError(f"no tensor {name} is saved (near: {', '.join(near) or 'nothing'})")


def about(name: str, at: "Saved") -> dict:
    """What is known of a saved tensor without reading all of it."""
    if at.file.suffix == ".safetensors":
        with safe_open(at.file, "pt") as f:
            part = f.get_slice(at.key)
            shape, dtype = part.get_shape(), LONG.get(part.get_dtype(), part.get_dtype().lower())
    else:
        t = at.read()
        shape, dtype = list(t.shape), str(t.dtype).removeprefix("torch.")
    bits = 1 if dtype == "bool" else int("".join(c for c in dtype.partition("_")[0] if c.isdigit()) or 8)
    size = math.prod(shape) * max(8, bits) // 8
    return {"name": name, "side": at.side, "shape": shape, "dtype": dtype, "bytes": size, "file": str(at.file)}


def readable(n: int) -> str:
    return f"{n} bytes" if n < 1e4 else f"{n / 1e3:.0f} kB" if n < 1e7 else f"{n / 1e6:.0f} MB"


def convert(source: Path, out: Path | None = None):
    """Converts a file of torch.save to safetensors, without running code in it (weights_only)."""
    loaded = torch.load(source, map_location="cpu", weights_only=True)
    tensors = {key or source.stem: t.detach().clone().contiguous() for key, t in leaves(loaded)}
    if not tensors:
        raise SystemExit(f"{source}: no tensors in it")
    out = out or source.with_suffix(".safetensors")
    save_file(tensors, out)
    print(f"{out}: {len(tensors)} tensors")


@dataclass
class Saved:
    file: Path
    key: str
    side: str = ""

    def read(self) -> torch.Tensor:
        if self.file.suffix == ".safetensors":
            with safe_open(self.file, "pt") as f:
                return f.get_tensor(self.key)
        loaded = np.load(self.file, allow_pickle=False)
        return torch.from_numpy(loaded if self.file.suffix == ".npy" else loaded[self.key])


def saved(root: Path, sides=SIDES) -> dict[str, Saved]:
    """The tensors of sides' latest runs, by name; the newest of each."""
    found, times = {}, {}

    def add(name, file, key):
        if (time := file.stat().st_mtime_ns) >= times.get(name, 0):
            found[name], times[name] = Saved(file, key, side), time

    for side in sides:
        folder = root / "runs" / "latest" / side
        own = {}
        for file in (*folder.glob("*"), *(folder / "tensors").glob("*")):
            if not file.name.startswith("."):
                own |= {key: file for key in keys(file)}
        for key, file in own.items():
            add(key, file, key)
        try:  # dumps store equal tensors once
            aliases = json.loads((folder / "settings.json").read_text(encoding="utf-8")).get("aliases", {})
        except OSError:
            aliases = {}
        for name, key in aliases.items():
            if key in own:
                add(name, own[key], key)
    return found


def keys(file: Path) -> list[str]:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as f:
            return list(f.keys())
    if file.suffix == ".npz":
        return np.load(file, allow_pickle=False).files
    return [file.stem] if file.suffix == ".npy" else []


def plain(x) -> torch.Tensor:
    """A copy on the CPU."""
    if isinstance(x, torch.Tensor):
        x = torch.view_as_real(x) if x.is_complex() else x
        return x.detach().contiguous().to("cpu", copy=True)
    if type(x).__module__.startswith("mlx"):
        return of_mlx(x)
    return torch.from_numpy(np.array(x, order="C"))


def of_mlx(a) -> torch.Tensor:
    """A copy of MLX's array, of the same dtype."""
    import mlx.core as mx

    if a.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(a.astype(mx.float32))).bfloat16()
    return torch.from_numpy(np.array(a))


def is_tensor(x) -> bool:
    return isinstance(x, (torch.Tensor, np.ndarray)) or type(x).__module__.startswith("mlx")


def summary(t: torch.Tensor) -> dict:
    """Shape, dtype, the first values, and statistics of the finite ones."""
    v = (t.cpu() if t.device.type == "mps" else t).double().flatten()  # which has no float64
    nan = inf = 0
    found = statistics(v)
    if not math.isfinite(found[2]):  # a value that is not finite, or none at all
        nan, inf = torch.stack([v.isnan().count_nonzero(), v.isinf().count_nonzero()]).tolist()
        found = statistics(v[v.isfinite()])
    stats = dict(zip(("min", "max", "mean", "std"), found))
    return {
        "shape": list(t.shape),
        "dtype": str(t.dtype).removeprefix("torch."),
        "preview": [number(x) for x in v[:PREVIEWED].tolist()],
        "stats": {k: number(x) for k, x in stats.items()} | {"nan": nan, "inf": inf},
    }


def statistics(v: torch.Tensor) -> list[float]:
    """Minimum, maximum, mean and standard deviation."""
    if not v.numel():
        return [math.nan] * 4
    std, mean = torch.std_mean(v, correction=0)
    return torch.stack([*v.aminmax(), mean, std]).tolist()


def number(x):
    """Replaces values that are not finite, which JSON does not have."""
    x = float(x)
    if math.isnan(x):
        return "NaN"
    return x if math.isfinite(x) else "Infinity" if x > 0 else "-Infinity"


def variable(x):
    if not is_tensor(x):
        return {"type": type(x).__name__, "value": x}
    kind = "mlx.core.array" if type(x).__module__.startswith("mlx") else f"{type(x).__module__}.{type(x).__name__}"
    known = summary(plain(x)) | {"dtype": str(x.dtype)}
    return {"type": kind, **known}


def further(name: str, call: int) -> str:
    """NAME#CALL, before the point if there is one."""
    base, colon, point = name.partition(":")
    base, _, before = base.partition("#")
    return f"{base}#{int(before or 0) + call}{colon}{point}"


def point_of(name: str) -> str:
    point = name.partition(":")[2]
    return "input" if point.startswith("in.") else "output" if not point or point.startswith("out.") else "inner value"


def file_name(name: str) -> str:
    """What is unusual in a file's name is written as %3A for its bytes."""
    usual = string.ascii_letters + string.digits + "_-@#="
    text = name.encode()
    return "".join(
        chr(b) if chr(b) in usual or chr(b) == "." and i > 0 else f"%{b:02X}" for i, b in enumerate(text)
    )


def now() -> str:
    return datetime.datetime.now().isoformat(timespec="microseconds")


def caller():
    """The innermost frame outside of this file."""
    frame = sys._getframe()
    while frame.f_code.co_filename == __file__ and frame.f_back:
        frame = frame.f_back
    return frame


def location() -> dict:
    """The place outside of this file that called."""
    frame = caller()
    code = frame.f_code
    return {"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name}

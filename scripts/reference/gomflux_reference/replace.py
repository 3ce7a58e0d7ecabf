"""dump --load NAME=FILE[:KEY]: tensors that take the place of computed ones.

A name is one of record.py's; without a step and a call it means all of them. The file is a safetensors, .npy or .npz
file; without a key the tensor in it has the name that is replaced, or is the only one. NAME=SAVED and NAME alone mean a
tensor that either side's latest run has saved. Shape and dtype must be those of the tensor as it is recorded.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError

from . import debug, runs
from .record import near

# Values of the pipeline that can be replaced, besides what modules take and return.
VALUES = (
    "latents.init", "latents", "noise_pred", "prompt.embeds", "negative.embeds", "prompt.pooled_embeds",
    "negative.pooled_embeds", "vae.decode.in", "vae.decode.out",
)  # fmt: skip


class Replacements:
    def __init__(self, specs: list[str], root: Path | None):
        self.tensors, self.sources, self.used = {}, {}, set()
        for spec in specs:
            name, _, source = spec.partition("=")
            if not name or name in self.tensors:
                raise SystemExit(f"--load {spec}: expected NAME=FILE[:KEY], each name once")
            self.sources[name], self.tensors[name] = read(spec, name, source, root or runs.default_root())

    def __bool__(self):
        return bool(self.tensors)

    def check(self, modules):
        """Ends the program if a name is neither a module's nor a value's."""
        for name in self.tensors:
            if bare(name) not in modules and bare(name) not in VALUES:
                hint = near(bare(name), {*modules, *VALUES})
                raise SystemExit(f"--load {name}: no module or value of that name (near: {hint})")

    def inputs(self, module: str) -> bool:
        return any(bare(name) == module and ":in." in name for name in self.tensors)

    def outputs(self, module: str) -> bool:
        return any(bare(name) == module and ":in." not in name for name in self.tensors)

    def find(self, name: str) -> torch.Tensor | None:
        for candidate in (name, every(name)):
            if candidate in self.tensors:
                self.used.add(candidate)
                return self.tensors[candidate]
        return None

    def put(self, name: str, given: torch.Tensor, place: torch.Tensor):
        """Copies a tensor over the computed one."""
        place = torch.view_as_real(place) if place.is_complex() else place
        dtype = torch.float32 if place.dtype == torch.float64 else place.dtype
        if given.shape != place.shape or given.dtype != dtype:
            found, expected = described(given), described(place, dtype)
            source = self.sources[name if name in self.sources else every(name)]
            raise SystemExit(f"--load {name}: {source} is {found}, expected {expected}")
        place.copy_(given)

    def end(self, seen):
        """Ends the program if a tensor that was to be replaced was never computed."""
        for name in self.tensors:
            if name not in self.used:
                raise SystemExit(f"--load {name}: the run has no such tensor (near: {near(name, seen)})")


def bare(name: str) -> str:
    """A name without step, call and point."""
    return name.partition(":")[0].partition("@")[0].partition("#")[0]


def every(name: str) -> str:
    """A name for all steps and calls."""
    return bare(name) + "".join(name.partition(":")[1:])


def described(t: torch.Tensor, dtype: torch.dtype | None = None) -> str:
    return f"{str(dtype or t.dtype).removeprefix('torch.')} {list(t.shape)}"


def aliases_of(file: Path) -> dict:
    """The names of tensors that the dump of a file has under other ones, which have the same values."""
    for folder in (file.parent, file.parent.parent):
        if (settings := folder / "settings.json").is_file():
            return json.loads(settings.read_text(encoding="utf-8")).get("aliases", {})
    return {}


def read(spec: str, name: str, source: str, root: Path) -> tuple[str, torch.Tensor]:
    """A tensor and where it is from."""
    try:
        return find(name, source, root)
    except ValueError as e:
        raise SystemExit(f"--load {spec}: {e}") from e


def find(name: str, source: str, root: Path | None = None) -> tuple[str, torch.Tensor]:
    """A tensor that is to replace one with a name, and where it is from. The error is a ValueError."""
    colons = [i for i, c in enumerate(source) if c == ":"] + [len(source)]
    file = next((source[:i] for i in colons if i and Path(source[:i]).is_file()), None)
    try:
        if file:
            keys, aliases = debug.keys(Path(file)), aliases_of(Path(file))
            key = source[len(file) + 1 :] or (name if name in (*keys, *aliases) or len(keys) != 1 else keys[0])
            if (key := aliases.get(key, key)) not in keys:
                raise ValueError(f"{file} has no tensor {key} (near: {near(key, keys)})")
            return f"{Path(file).resolve()}:{key}", debug.Saved(Path(file), key).read()
        if Path(source).suffix in (".safetensors", ".npy", ".npz"):
            raise ValueError("no such file")
        found, wanted = debug.saved(root or runs.default_root()), source or name
        if wanted not in found:
            raise ValueError(f"no file, and no saved tensor {wanted} (near: {near(wanted, found)})")
        at = found[wanted]
        return f"{at.file.resolve()}:{at.key}", at.read()
    except (OSError, SafetensorError) as e:
        raise ValueError(str(e)) from e

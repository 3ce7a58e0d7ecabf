"""Records the inputs and outputs of modules, through PyTorch's forward hooks.

The name of a tensor is

    COMPONENT.PATH[@STEP][#CALL][:in.KEY | :out.KEY | :INNER]

PATH as named_modules() gives it (nothing for the component itself), STEP for components that run once per step, CALL
for the second and later calls within the step (or, without steps, within the run). The bare name is the module's
output, of several its first tensor; the others are :out.KEY. Inputs are :in.KEY, where KEY is the position or the
keyword, and goes on with .INDEX inside lists. Only tensors count. INNER values are those of attention (see inner.py).
"""

import fnmatch
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

INNER = ("q", "k", "v", "q.unrotated", "k.unrotated", "weights", "entropy")
COSTLY = ("weights", "entropy")

MEMORY = 256 << 20  # bytes


def leaves(value, key=""):
    """Yields (key, tensor) for all tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield key, value
        return
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return
    for k, v in items:
        yield from leaves(v, f"{key}.{k}" if key else str(k))


def still(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a video of one frame, [B, C, 1, H, W], as an image."""
    return tensor[:, :, 0] if tensor.dim() == 5 and tensor.shape[2] == 1 else tensor


class Taps:
    """Globs of names; one that starts with `!` takes names out.

    An inner value is meant only by a glob that has a point of its own after its last colon (`*:q`, `*:[qkv]*`), the
    costly ones only by one that spells them (`*:entropy`).
    """

    def __init__(self, globs):
        self.wanted = [g for g in globs if not g.startswith("!")]
        self.unwanted = [g[1:] for g in globs if g.startswith("!")]
        self.inner = [(name, point) for name, colon, point in (g.rpartition(":") for g in self.wanted) if colon]

    def __contains__(self, name: str) -> bool:
        def matches(globs):
            return any(fnmatch.fnmatchcase(name, g) for g in globs)

        base, _, point = name.rpartition(":")
        if point in INNER:
            wanted = any(self._means(p, point) and fnmatch.fnmatchcase(base, b) for b, p in self.inner)
        else:
            wanted = matches(self.wanted)
        return wanted and not matches(self.unwanted)

    @staticmethod
    def _means(glob: str, point: str) -> bool:
        return glob == point if point in COSTLY else fnmatch.fnmatchcase(point, glob)

    def any_inner(self) -> bool:
        return any(self._means(glob, point) for _, glob in self.inner for point in INNER)


class Recorder:
    """Keeps the tensors that taps name, and whatever is put, in files of a folder, or of a run's.

    Tensors go to disk as they come: memory is the number of bytes that are held before a file is written. With
    sample > 0, tensors with more values than that keep only that many, at random places that depend on the shape
    alone: NAME:positions (indices into the flattened tensor) and NAME:samples.
    """

    def __init__(self, out: Path | None, taps, sample: int = 0, memory: int = MEMORY, run=None):
        out, inside = (run.folder, "tensors") if run else (out, "")
        self.out, self.inside, self.run = out, inside, run
        self.taps, self.sample, self.memory = Taps(taps), sample, memory
        self.aliases, self.shapes, self.files = {}, {}, []
        self.step = 0
        self.calls = {}
        self.running = []  # names of the modules that are being called, the innermost last
        self.crop = {}  # component -> (padded, valid) number of tokens
        self._stored, self._held, self._size = {}, {}, 0
        folder = out / inside
        folder.mkdir(parents=True, exist_ok=True)
        (out / "settings.json").unlink(missing_ok=True)  # without it nobody takes an unfinished dump for a whole one
        for old in folder.glob("tensors*.safetensors"):
            old.unlink()

    def watch(self, component: str, module: torch.nn.Module, stepped: bool = False):
        for path, m in module.named_modules():
            name = f"{component}.{path}" if path else component
            m.register_forward_pre_hook(self._before(component, name, stepped), with_kwargs=True)
            m.register_forward_hook(self._after(component, name, stepped))

    def next_step(self):
        self.step += 1
        self.calls.clear()

    def _counted(self, name: str) -> str:
        self.calls[name] = self.calls.get(name, -1) + 1
        return self._name(name, False)

    def _name(self, name: str, stepped: bool) -> str:
        call = self.calls[name]
        return name + (f"@{self.step}" if stepped else "") + (f"#{call}" if call else "")

    def _before(self, component, name, stepped):
        def hook(module, args, kwargs):
            self.calls[name] = self.calls.get(name, -1) + 1
            full = self._name(name, stepped)
            self.running.append((component, full))
            for inputs in (list(args), kwargs):
                for key, tensor in leaves(inputs):
                    self._tap(component, f"{full}:in.{key}", tensor)

        return hook

    def _after(self, component, name, stepped):
        def hook(module, args, output):
            self.running.pop()
            for i, (key, tensor) in enumerate(leaves(output)):
                self._tap(component, self._name(name, stepped) + (f":out.{key}" if i else ""), tensor)

        return hook

    def _tap(self, component, name, tensor):
        if name in self.taps:
            self.put(name, self._cropped(component, tensor))

    def _cropped(self, component, tensor):
        """Without the rows of pad tokens, where the component has them: no valid row depends on them. Of autoencoders
        without the axis of frames."""
        if component == "vae":
            return still(tensor)
        padded, valid = self.crop.get(component, (None, None))
        if tensor.dim() == 4 and tensor.shape[1:] == (1, padded, padded):
            return tensor[:, :, :valid, :valid]
        if tensor.dim() > 1 and tensor.shape[1] == padded:
            return tensor[:, :valid]
        return tensor

    def put(self, name: str, tensor: torch.Tensor):
        """Keeps a copy: complex as [..., 2] (real, imaginary), float64 in float32, the rest as it is."""
        t = tensor.detach()
        if t.is_complex():
            t = torch.view_as_real(t)
        if t.dtype == torch.float64:
            t = t.float()
        t = t.contiguous().to("cpu", copy=True)
        if self.sample and t.numel() > self.sample:
            seed = int.from_bytes(hashlib.sha256(repr(list(t.shape)).encode()).digest()[:7], "big")
            at = torch.randint(t.numel(), (self.sample,), generator=torch.Generator().manual_seed(seed))
            self.shapes[name] = list(t.shape)
            self._store(f"{name}:positions", at.int())
            self._store(f"{name}:samples", t.flatten()[at])
        else:
            self._store(name, t)

    def put_next(self, name: str, tensor: torch.Tensor):
        """Keeps a value that a run may have several of."""
        self.put(self._counted(name), tensor)

    def _store(self, name, t):
        key = (t.dtype, t.shape, hashlib.sha256(t.view(-1).view(torch.uint8).numpy()).digest())
        first = self._stored.setdefault(key, name)
        if first != name:
            self.aliases[name] = first
            return
        need = t.nbytes + len(name) + 100
        if self._size + need > self.memory and self._held:
            self._write(f"tensors-{len(self.files) + 1}.safetensors")
        self._held[name] = t
        self._size += need

    def _write(self, name: str):
        file = self.out / self.inside / name
        if self.run:
            self.run.reserve(self._size)
        save_file(self._held, file)
        file.chmod(0o644)
        self.files.append(f"{self.inside}/{name}" if self.inside else name)
        self._held, self._size = {}, 0

    def finish(self, settings: dict):
        """Writes the remaining tensors, and settings.json."""
        self._write(f"tensors-{len(self.files) + 1}.safetensors" if self.files else "tensors.safetensors")
        settings = settings | {"files": self.files, "shapes": self.shapes, "aliases": self.aliases}
        text = json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
        (self.out / "settings.json").write_text(text, encoding="utf-8")

"""Records what modules receive and return, through PyTorch's forward hooks.

The name of a tensor is

    COMPONENT.PATH[@STEP][#CALL][:in.KEY | :out.KEY]

PATH as named_modules() gives it (nothing for the component itself), STEP for components that run once per step, CALL
for the second and later calls within the step (or, without steps, within the run). The bare name is the module's
output, of several its first tensor; the others are :out.KEY. Inputs are :in.KEY, where KEY is the position or the
keyword, and goes on with .INDEX inside lists. Only tensors count.
"""

import fnmatch
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

MAX_FILE = 950_000  # bytes


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


class Recorder:
    """taps are globs of names; one that starts with `!` takes names out. Pipeline tensors (`put`) are always kept.

    With sample > 0, tensors with more values than that keep only that many, at random places that depend on
    the shape alone: NAME:positions (indices into the flattened tensor) and NAME:samples.
    """

    def __init__(self, taps, sample: int = 0):
        self.wanted = [t for t in taps if not t.startswith("!")]
        self.unwanted = [t[1:] for t in taps if t.startswith("!")]
        self.sample = sample
        self.tensors, self.aliases, self.shapes = {}, {}, {}
        self.step = 0
        self.calls = {}
        self.crop = {}  # component -> (padded, valid) number of tokens
        self._stored = {}

    def watch(self, component: str, module: torch.nn.Module, stepped: bool = False):
        for path, m in module.named_modules():
            name = f"{component}.{path}" if path else component
            m.register_forward_pre_hook(self._before(component, name, stepped), with_kwargs=True)
            m.register_forward_hook(self._after(component, name, stepped))

    def next_step(self):
        self.step += 1
        self.calls.clear()

    def _name(self, name: str, stepped: bool) -> str:
        call = self.calls[name]
        return name + (f"@{self.step}" if stepped else "") + (f"#{call}" if call else "")

    def _before(self, component, name, stepped):
        def hook(module, args, kwargs):
            self.calls[name] = self.calls.get(name, -1) + 1
            for key, tensor in leaves(list(args)):
                self._tap(component, f"{self._name(name, stepped)}:in.{key}", tensor)
            for key, tensor in leaves(kwargs):
                self._tap(component, f"{self._name(name, stepped)}:in.{key}", tensor)

        return hook

    def _after(self, component, name, stepped):
        def hook(module, args, output):
            for i, (key, tensor) in enumerate(leaves(output)):
                self._tap(component, self._name(name, stepped) + (f":out.{key}" if i else ""), tensor)

        return hook

    def _tap(self, component, name, tensor):
        def matches(globs):
            return any(fnmatch.fnmatchcase(name, g) for g in globs)

        if matches(self.wanted) and not matches(self.unwanted):
            self.put(name, self._cropped(component, tensor))

    def _cropped(self, component, tensor):
        """Without the rows of pad tokens, where the component has them: no valid row depends on them."""
        padded, valid = self.crop.get(component, (None, None))
        if tensor.dim() == 4 and tensor.shape[1:] == (1, padded, padded):
            return tensor[:, :, :valid, :valid]
        if tensor.dim() > 1 and tensor.shape[1] == padded:
            return tensor[:, :valid]
        return tensor

    def put(self, name: str, tensor: torch.Tensor):
        """Keeps a copy: complex as [..., 2] (real, imaginary), floats in float32, the rest as it is."""
        t = tensor.detach()
        if t.is_complex():
            t = torch.view_as_real(t)
        if t.is_floating_point():
            t = t.float()
        t = t.contiguous().clone()
        if self.sample and t.numel() > self.sample:
            seed = int.from_bytes(hashlib.sha256(repr(list(t.shape)).encode()).digest()[:7], "big")
            at = torch.randint(t.numel(), (self.sample,), generator=torch.Generator().manual_seed(seed))
            self.shapes[name] = list(t.shape)
            self._store(f"{name}:positions", at.int())
            self._store(f"{name}:samples", t.flatten()[at])
        else:
            self._store(name, t)

    def _store(self, name, t):
        key = (t.dtype, t.shape, hashlib.sha256(t.view(-1).view(torch.uint8).numpy().tobytes()).digest())
        first = self._stored.setdefault(key, name)
        if first == name:
            self.tensors[name] = t
        else:
            self.aliases[name] = first

    def save(self, folder: Path, settings: dict):
        """Writes settings.json and the tensors, in files of at most MAX_FILE bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("tensors*.safetensors"):
            old.unlink()
        files, size = [{}], 0
        for name, t in self.tensors.items():
            need = t.nbytes + len(name) + 100
            if size + need > MAX_FILE and files[-1]:
                files.append({})
                size = 0
            files[-1][name] = t
            size += need
        names = ["tensors.safetensors"]
        if len(files) > 1:
            names = [f"tensors-{i}.safetensors" for i in range(1, len(files) + 1)]
        for name, tensors in zip(names, files):
            save_file(tensors, folder / name)
            (folder / name).chmod(0o644)
        settings = settings | {"files": names, "shapes": self.shapes, "aliases": self.aliases}
        text = json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
        (folder / "settings.json").write_text(text, encoding="utf-8")

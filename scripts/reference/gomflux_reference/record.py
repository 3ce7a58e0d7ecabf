"""Records the inputs and outputs of modules, through PyTorch's forward hooks.

The name of a tensor is

    COMPONENT.PATH[@STEP][#CALL][:in.KEY | :out.KEY | :INNER]

PATH as named_modules() gives it (nothing for the component itself), STEP for components that run once per step, CALL
for the second and later calls within the step (or, without steps, within the run). The bare name is the module's
output, of several its first tensor; the others are :out.KEY. Inputs are :in.KEY, where KEY is the position or the
keyword, and goes on with .INDEX inside lists. Only tensors count. INNER values are those of attention (see inner.py).
"""

import difflib
import fnmatch
import hashlib
import json
import sys
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from . import debugger
from .debugger.breakpoints import matches
from .files import MEMORY

INNER = ("q", "k", "v", "q.unrotated", "k.unrotated", "weights", "entropy")
COSTLY = ("weights", "entropy")


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


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as it is recorded: complex as [..., 2] (real, imaginary), float64 in float32, the rest as it is."""
    t = tensor.detach()
    if t.is_complex():
        t = torch.view_as_real(t)
    return t.float() if t.dtype == torch.float64 else t


def near(name: str, names) -> str:
    """A few names that are like one that is not there."""
    wanted, found = name.lower(), sorted(names)
    close = difflib.get_close_matches(wanted, found, 3, 0.5) or [n for n in found if wanted.strip("*!") in n][:3]
    return ", ".join(close or found[:3]) or "nothing"


def still(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a video of one frame, [B, C, 1, H, W], as an image."""
    return tensor[:, :, 0] if tensor.dim() == 5 and tensor.shape[2] == 1 else tensor


class Taps:
    """Globs of names; one that starts with `!` takes names out. One without `@` and `#` means all steps and calls.

    An inner value is meant only by a glob that has a point of its own after its last colon (`*:q`, `*:[qkv]*`), the
    costly ones only by one that spells them (`*:entropy`).
    """

    def __init__(self, globs):
        self.wanted = [g for g in globs if not g.startswith("!")]
        self.unwanted = [g[1:] for g in globs if g.startswith("!")]
        self.inner = [(name, point) for name, colon, point in (g.rpartition(":") for g in self.wanted) if colon]

    def __contains__(self, name: str) -> bool:
        base, _, point = name.rpartition(":")
        if point in INNER:
            wanted = any(self._means(p, point) and matches(b, base) for b, p in self.inner)
        else:
            wanted = any(matches(g, name) for g in self.wanted)
        return wanted and not any(matches(g, name) for g in self.unwanted)

    @staticmethod
    def _means(glob: str, point: str) -> bool:
        return glob == point if point in COSTLY else fnmatch.fnmatchcase(point, glob)

    def any_inner(self) -> bool:
        return any(self._means(glob, point) for _, glob in self.inner for point in INNER)

    def without_match(self, seen) -> list[str]:
        """The globs that match none of the names."""
        alone = {g: Taps([g]) for g in self.wanted}
        return [g for g, taps in alone.items() if g not in seen and not any(name in taps for name in seen)]


class Recorder:
    """Keeps the tensors that taps name, and whatever is put, in files of a folder, or of a run's (or see sender.py).

    Tensors go to disk as they come: memory is the number of bytes that are held before a file is written. With
    sample > 0, tensors of modules with more values than that keep only that many, at random places that depend on the
    shape alone: NAME:positions (indices into the flattened tensor) and NAME:samples. Values of the pipeline are kept
    whole, since a replay needs them, unless sample_all is set.

    observers are pairs of taps and what looks at the tensors that they name (see stats.py), which works without
    keeping any (keep). given replaces tensors as they are computed (see replace.py). Without a folder and a run
    only a debugger sees them.
    """

    def __init__(
        self, out: Path | None, taps, sample: int = 0, memory: int = MEMORY, run=None, sample_all: bool = False,
        keep: bool = True, given=None,
    ):  # fmt: skip
        out, inside = (run.folder, "tensors") if run else (out, "")
        self.out, self.inside, self.run = out, inside, run
        self.taps, self.sample, self.memory = Taps(taps), sample, memory
        self.sample_all, self.keep, self.given, self.observers = sample_all, keep, given, []
        self.aliases, self.shapes, self.files, self.seen = {}, {}, [], set()
        self.step = 0
        self.calls = {}
        self.running = []  # names of the modules that are being called, the innermost last
        self.modules = []  # the modules themselves
        self.crop = {}  # component -> (padded, valid) number of tokens
        self.names = set()  # of the modules that are watched
        self._stored, self._held, self._size = {}, {}, 0
        self.debugger = debugger.attach(self)
        self.unseen = bool(self.debugger and not out)  # by anyone else
        if not out:
            return  # nothing is kept
        if out is None:
            return
        folder = out / inside
        folder.mkdir(parents=True, exist_ok=True)
        (out / "settings.json").unlink(missing_ok=True)  # without it nobody takes an unfinished dump for a whole one
        for old in folder.glob("tensors*.safetensors"):
            old.unlink()

    def observe(self, taps: Taps, observer):
        self.observers.append((taps, observer))

    def any_inner(self) -> bool:
        return self.taps.any_inner() or any(taps.any_inner() for taps, _ in self.observers)

    def wants(self, name: str) -> bool:
        return name in self.taps or any(name in taps for taps, _ in self.observers)

    def watch(self, component: str, module: torch.nn.Module, stepped: bool = False, skipped: tuple[str, ...] = (), rename=str):
        """Records a component's modules, except those whose paths begin with one of skipped, or that rename returns None for."""
        for path, m in module.named_modules():
            if skipped and path.startswith(skipped) or (path := rename(path)) is None:
                continue
            name = f"{component}.{path}" if path else component
            self.names.add(name)
            m.register_forward_pre_hook(self.before(component, name, stepped), with_kwargs=True)
            m.register_forward_hook(self.after(component, name, stepped))

    def next_step(self):
        self.step += 1
        self.calls.clear()

    def _counted(self, name: str) -> str:
        self.calls[name] = self.calls.get(name, -1) + 1
        return self._name(name, False)

    def _name(self, name: str, stepped: bool) -> str:
        call = self.calls[name]
        return name + (f"@{self.step}" if stepped else "") + (f"#{call}" if call else "")

    @property
    def paused(self) -> bool:
        """Reports whether a debugger has stopped the run, so that modules which it calls are not the run's."""
        return self.debugger is not None and self.debugger.paused

    def before(self, component, name, stepped):
        def hook(module, args, kwargs):
            if self.paused:
                return None
            self.calls[name] = self.calls.get(name, -1) + 1
            full = self._name(name, stepped)
            self.running.append((component, full))
            self.modules.append(module)
            if self.given and self.given.inputs(name):
                args = changed(list(args), lambda key, t: self._replaced(component, f"{full}:in.{key}", t))
                kwargs = changed(kwargs, lambda key, t: self._replaced(component, f"{full}:in.{key}", t))
                args = tuple(args)
            if self.debugger:
                self.debugger.entered(component, name, full, stepped, module, args, kwargs)
            if self.unseen:
                return args, kwargs
            for inputs in (list(args), kwargs):
                for key, tensor in leaves(inputs):
                    self._tap(component, f"{full}:in.{key}", tensor, module)
            return args, kwargs

        return hook

    def after(self, component, name, stepped):
        def hook(module, args, output):
            if self.paused:
                return None
            self.running.pop()
            self.modules.pop()
            full = self._name(name, stepped)
            if self.unseen:
                self.seen.add(full)
                return self.debugger.left(output)
            # the first has no point, whatever its key
            points = {key: f":out.{key}" if i else "" for i, (key, _) in enumerate(leaves(output))}
            if self.given and self.given.outputs(name):
                output = changed(output, lambda key, t: self._replaced(component, full + points[key], t))
            if self.debugger:
                output = self.debugger.left(output)
            for key, tensor in leaves(output):
                self._tap(component, full + points[key], tensor, module)
            self.called(full)
            return output

        return hook

    def begin(self, settings: dict):
        """Is called before the pipeline, with what settings.json has of it."""

    def called(self, name: str):
        """Is called after each call of a module, and its tensors."""

    def _replaced(self, component, name, tensor):
        """The tensor, or a copy of it in which the part that is recorded is the one that was given."""
        given = self.given.find(name) if self.given else None
        if given is None:
            return tensor
        new = tensor.clone()
        self.given.put(name, given, self._cropped(component, new))
        return new

    def replaced(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A value of the pipeline, or the one that was given in its place."""
        tensor = self._replaced(None, name, tensor)
        return self.debugger.value(name, tensor) if self.debugger else tensor

    def _tap(self, component, name, tensor, module):
        self.seen.add(name)
        if self.wants(name):
            self.tapped(name, self._cropped(component, tensor), module)

    def tapped(self, name: str, tensor: torch.Tensor, module=None):
        """Keeps a tensor of a module that is wanted, and shows it to those who want it."""
        self.seen.add(name)
        self._show(name, tensor, module)
        if name in self.taps:
            self._keep(name, tensor, self.sample)

    def _show(self, name, tensor, module=None):
        for taps, observer in self.observers:
            if name not in taps or observer.failed:
                continue
            try:
                observer.put(name, kept(tensor), module)
            except OSError as e:  # the run goes on: its image and its tensors may be elsewhere
                observer.failed = f"--{observer.option}: {e.strerror} at {name}, and nothing more was written"
                print(observer.failed, file=sys.stderr)

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
        """Keeps a copy of a value of the pipeline, whether taps name it or not."""
        self.seen.add(name)
        if self.debugger:
            self.debugger.seen(name, tensor)
        self._show(name, tensor)
        self._keep(name, tensor, self.sample if self.sample_all else 0)

    def _keep(self, name: str, tensor: torch.Tensor, sample: int):
        if not self.keep:
            return
        t = kept(tensor).to("cpu").clone(memory_format=torch.contiguous_format)  # a single element may have stride 0
        if sample and t.numel() > sample:
            seed = int.from_bytes(hashlib.sha256(repr(list(t.shape)).encode()).digest()[:7], "big")
            at = torch.randint(t.numel(), (sample,), generator=torch.Generator().manual_seed(seed))
            self.shapes[name] = list(t.shape)
            self._store(f"{name}:positions", at.int())
            self._store(f"{name}:samples", t.flatten()[at])
        else:
            self._store(name, t)

    def put_early(self, name: str, tensor: torch.Tensor):
        """Is called with a value that is put later, when the pipeline uses it."""

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
        held, self._held, self._size = self._held, {}, 0
        try:
            save_file(held, file)
            file.chmod(0o644)
        except (OSError, SafetensorError) as e:
            file.unlink(missing_ok=True)
            raise SystemExit(f"{file}: {e}") from e
        self.files.append(f"{self.inside}/{name}" if self.inside else name)
        if self.run:
            self.run.add(self.contents())

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        """Writes what an interrupted run has computed, if its folder is a run's: others are then no dumps."""
        if error and self.run:
            with suppress(OSError, SystemExit):  # of a full disk, say, after which there is the first error to report
                self._write_rest()
                self.run.add(self.contents())

    def contents(self) -> dict:
        """What settings.json says of the tensors, and of what observers have written."""
        seen = [observer.settings() for _, observer in self.observers]
        found = {"files": self.files, "shapes": self.shapes, "aliases": self.aliases}
        return {k: v for settings in seen for k, v in settings.items()} | found

    def _write_rest(self):
        if self.keep:
            self._write(f"tensors-{len(self.files) + 1}.safetensors" if self.files else "tensors.safetensors")

    def finish(self, settings: dict):
        """Writes the remaining tensors, and settings.json. Statistics that could not be written are an error then."""
        self._write_rest()
        settings = settings | self.contents()
        text = json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
        (self.out / "settings.json").write_text(text, encoding="utf-8")
        if failed := next((o.failed for _, o in self.observers if o.failed), None):
            raise SystemExit(failed)


def changed(value, change, key=""):
    """Nested lists, tuples and dicts with changed tensors; the value itself where none has changed."""
    if isinstance(value, torch.Tensor):
        return change(key, value)
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return value
    new = {k: changed(v, change, f"{key}.{k}" if key else str(k)) for k, v in items}
    if all(new[k] is v for k, v in items):
        return value
    if type(value) is dict:
        return new
    if isinstance(value, dict):  # a ModelOutput, which is new in each call
        for k, v in new.items():
            value[k] = v
        return value
    return type(value)(*new.values()) if hasattr(value, "_fields") else type(value)(new.values())


class Dump:
    """What a recorder has written to a folder."""

    def __init__(self, folder: Path):
        self.settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        self.tensors = {}
        for file in self.settings["files"]:
            with safe_open(folder / file, "pt") as f:
                self.tensors |= {k: f.get_tensor(k) for k in f.keys()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[self.settings["aliases"].get(name, name)]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or name in self.settings["aliases"]

    def names(self) -> set[str]:
        return self.tensors.keys() | self.settings["aliases"].keys()

"""A reference that checks itself before it is believed.

Libraries change under a pipeline, and it then computes something else than it was made for, without an error. What is
looked for:

  - buffers that are set: non-persistent ones are in no file, so whoever makes a module without memory (on the meta
    device) has to compute them again. Rotary frequencies are compared with those of the config;
  - rotary tables, as layers get them: rotations, not the identity, different from position to position;
  - positions of images, which have rows and columns: of Qwen2.5-VL's tokens, and of FLUX's latents;
  - prompt embeddings: the hidden states of the layer, or of the final norm, that the pipeline was made for;
  - versions of the libraries (a warning only).

Hooks do this while a run lasts, so it costs nothing but a look at each kind of module, and a run is refused before
its first step is over.
"""

import inspect
import sys

import torch

from . import runs
from .families import NORMED, Family

# With these every family computes the same tensors as in models/testdata.
KNOWN_GOOD = {"diffusers": ("0.42.1",), "transformers": ("5.22.0", "5.23.0"), "torch": ("2.15.0",)}
TABLES = ("rotary", "freqs", "rope", "position_embeddings")  # in names of arguments
FLAT = 0.05  # how far the radii of a table's rotations may be apart; bfloat16 has them off by 0.01


class Checks:
    """The checks of one run. Problems end it, unless it is to be recorded nevertheless (unchecked)."""

    def __init__(self, pipe, family: Family, unchecked: bool = False):
        self.pipe, self.family, self.unchecked = pipe, family, unchecked
        self.problems = []
        self.looked_at = set()  # rotary tables, of which all layers get the same
        self.prompts = {}  # component -> (ids, grids of images, id of an image's token)
        self.states = {}  # what prompt embeddings may be: label -> tensors, one for each call
        self.norm = None
        for warning in versions():
            print(f"check: warning: {warning}", file=sys.stderr)
        for component, module in pipe.components.items():
            if isinstance(module, torch.nn.Module):
                self.report(buffers(component, module))

    def report(self, problems: list[str]):
        """Prints problems that are new, and ends the run because of them."""
        new = [p for p in problems if p not in self.problems]
        for problem in new:
            print(f"check: {problem}", file=sys.stderr)
        self.problems += new
        if new and not self.unchecked:
            raise SystemExit("the reference computes something else than the model was made for (--unchecked records it)")

    def watch(self, component: str, module: torch.nn.Module):
        """Looks at the first call of each module."""
        for path, m in module.named_modules():
            self._watch(component, f"{component}.{path}" if path else component, m)
        if component in list(self.family.text_encoders)[-1:]:
            self._watch_states(module)

    def _watch(self, component, name, module):
        def hook(module, args, kwargs):
            handle.remove()
            arguments = named(module, args, kwargs)
            self.report(tables(name, arguments, self.looked_at))
            positions = arguments.get("position_ids")
            if component in self.prompts and positions is not None and "Rotary" in type(module).__name__:
                if positions.shape[-1] == len(self.prompts[component][0]):  # a vision encoder has others, of patches
                    self.report(image_axes(name, positions, *self.prompts[component]))
            if isinstance(arguments.get("img_ids"), torch.Tensor):
                self.report(different(name, arguments["img_ids"]))

        handle = module.register_forward_pre_hook(hook, with_kwargs=True)

    def _watch_states(self, encoder):
        layers, self.norm = stack_of(encoder)
        if self.norm is None:
            return

        running = []  # pipelines may call its modules by themselves as well

        def keep(label):
            def hook(module, args, output):
                output = output[0] if isinstance(output, tuple) else output
                self.states.setdefault(label, []).append(output)

            return hook

        def keep_norm(module, args, output):
            if running:
                self.states.setdefault(len(layers), []).append(args[0])
                self.states.setdefault(NORMED, []).append(output)

        encoder.register_forward_pre_hook(lambda *_: running.append(True))
        encoder.register_forward_hook(lambda *_: running.clear())

        for label in self.family.embeddings(self.pipe):
            if label != NORMED and 0 < label < len(layers):
                layers[label - 1].register_forward_hook(keep(label))
        self.norm.register_forward_hook(keep_norm)

    def before_text_encoder(self, component: str, module, ids, kwargs):
        if kwargs.get("pixel_values") is None:
            self.prompts.pop(component, None)
            return
        merge = module.config.vision_config.spatial_merge_size
        grids = [(h // merge, w // merge) for _, h, w in kwargs["image_grid_thw"].tolist()]
        self.prompts[component] = ids[0], grids, module.config.image_token_id

    def embeddings(self, name: str, value: torch.Tensor):
        """Checks which hidden states prompt embeddings are."""
        if self.norm is None or not name.endswith(".embeds"):
            return
        value, expected = value.flatten(1), self.family.embeddings(self.pipe)
        width = next(iter(self.states.values()))[0].shape[-1]
        chunks = value.split(width, -1) if value.shape[-1] == len(expected) * width else ()
        found = [label_of(chunk, self.states, self.norm) for chunk in chunks]
        if found != list(expected):
            text = f"{name} are {', '.join(map(label, found)) or 'of another width'}"
            self.report([f"{text}, but {type(self.pipe).__name__} was made for {', '.join(map(label, expected))}"])


def named(module, args, kwargs) -> dict:
    """A call's arguments by their names."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    return dict(zip(names, args)) | kwargs


def versions() -> list[str]:
    found = runs.versions(tuple(KNOWN_GOOD))
    return [
        f"{package} {version} has not been tried (tried: {', '.join(KNOWN_GOOD[package])})"
        for package, version in found.items()
        if version.partition("+")[0] not in KNOWN_GOOD[package]
    ]


def buffers(component: str, module: torch.nn.Module) -> list[str]:
    """Problems of a component's buffers, and of the tensors that its modules have as plain attributes."""
    problems = []
    for path, m in module.named_modules():
        own = {k: v for k, v in (*m._buffers.items(), *vars(m).items()) if isinstance(v, torch.Tensor)}
        for key, b in own.items():
            name = ".".join(filter(None, (component, path, key)))
            saved = key in m._buffers and key not in m._non_persistent_buffers_set
            if b.is_meta:
                problems.append(f"{name}: is not set (it is on the meta device)")
            elif not (b.is_floating_point() or b.is_complex()):
                continue
            elif n := int(b.isnan().sum()):
                problems.append(f"{name}: {n} of {b.numel()} values are NaN")
            elif not saved and b.numel() > 1 and not b.any():
                problems.append(f"{name}: is not set (all {b.numel()} values are zero), and is in no file")
            elif key.endswith("inv_freq"):
                problems += frequencies(name, m, b)
    return problems


def frequencies(name: str, module, found: torch.Tensor) -> list[str]:
    """Compares rotary frequencies with those of the module's config."""
    expected = frequencies_of(module, found.numel())
    found = found.detach().float().cpu().flatten()
    if expected is None:
        if bool((found > 0).all()) and bool((found.diff() < 0).all()):
            return []
        return [f"{name}: {first(found)}, expected frequencies that fall and are above zero"]
    if expected.shape == found.shape and torch.allclose(found, expected, rtol=1e-2, atol=0):
        return []
    return [f"{name}: {first(found)}, expected {first(expected)} by the config"]


def frequencies_of(module, n: int) -> torch.Tensor | None:
    """The frequencies that a config asks for; None if it does not say."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = getattr(module, "config", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = getattr(module, "rope_type", None) or rope.get("rope_type", "default")
    compute = getattr(module, f"compute_{kind}_rope_parameters", None) or ROPE_INIT_FUNCTIONS.get(kind)
    if compute and config is not None:
        try:
            return compute(config)[0].float().cpu().flatten()
        except Exception:  # a config of another kind: custom code has configs of its own
            pass
    theta = rope.get("rope_theta") or getattr(config, "rope_theta", None) or getattr(module, "base", None)
    theta = theta or getattr(module, "theta", None)
    if kind != "default" or not isinstance(theta, (int, float)):
        return None
    return 1 / theta ** (torch.arange(n, dtype=torch.float64) / n).float()


def first(x: torch.Tensor) -> str:
    return "[" + ", ".join(f"{v:.4g}" for v in x[:4].tolist()) + (", ...]" if x.numel() > 4 else "]")


def tables(name: str, arguments: dict, looked_at: set) -> list[str]:
    """Problems of the rotary tables among a module's arguments: complex, or cosines and sines. Those that it has looked
    at are not looked at again."""
    problems = []
    image = arguments.get("hidden_states")
    single = isinstance(image, torch.Tensor) and image.dim() == 3 and image.shape[1] == 1
    for key, value in arguments.items():
        if not any(part in key for part in TABLES):
            continue
        values = value if isinstance(value, (tuple, list)) else (value,)
        if any(not isinstance(v, torch.Tensor) for v in values):
            continue
        if all(v.is_complex() for v in values):
            found = [(v.real, v.imag) for v in values]
        elif len(values) == 2 and values[0].shape == values[1].shape and values[0].is_floating_point():
            found = [tuple(values)]
        else:
            continue
        for cos, sin in found:
            which = cos.data_ptr(), cos.shape, cos.stride()
            if which in looked_at:
                continue
            looked_at.add(which)
            cos, sin = cos.float().flatten(0, -2), sin.float().flatten(0, -2)
            if single and identity(sin):
                continue  # the only token of an image is at the origin, where FLUX.1 has its text too
            if problem := wrong_table(cos, sin):
                problems.append(f"{name}: the rotary table {key} {problem}")
    return problems


def identity(sin: torch.Tensor) -> bool:
    return bool(sin.abs().max() < 1e-6)


def wrong_table(cos: torch.Tensor, sin: torch.Tensor) -> str:
    """What is wrong with a table [tokens, features]."""
    if not (cos.isfinite().all() and sin.isfinite().all()):
        return "has values that are not finite"
    real = (cos.abs() + sin.abs()).sum(-1) > 0  # rows of pads are zeros
    cos, sin = cos[real], sin[real]
    if len(cos) < 2:
        return "" if len(cos) or not len(real) else "is all zeros"
    if identity(sin):
        return "is the identity: it turns nothing"
    radius = (cos.square() + sin.square()).sqrt()
    if radius.max() - radius.min() > FLAT:
        return f"is no rotation: radii are {radius.min():.3g} to {radius.max():.3g}"
    if torch.equal(cos, cos[:1].expand_as(cos)) and torch.equal(sin, sin[:1].expand_as(sin)):
        return f"turns all {len(cos)} positions alike"
    return ""


def image_axes(name: str, positions: torch.Tensor, ids: torch.Tensor, grids: list, image_token: int) -> list[str]:
    """Checks that the tokens of each image have positions of as many rows and columns as the image."""
    cause = "transformers 5 counts them as text without mm_token_type_ids"
    if positions.dim() != 3 or positions.shape[0] != 3:
        return [f"{name}: positions of images are {list(positions.shape)}, expected three axes ({cause})"]
    at = positions[:, 0, (ids == image_token).to(positions.device)]
    problems, start = [], 0
    for i, (h, w) in enumerate(grids):
        part = at[:, start : start + h * w]
        start += h * w
        found = [len(axis.unique()) for axis in part]
        if found != [1, h, w]:
            problems.append(
                f"{name}: positions of image {i + 1} have {found[0]} frames, {found[1]} rows and {found[2]} columns, "
                f"expected 1, {h} and {w} ({cause})"
            )
    return problems


def different(name: str, ids: torch.Tensor) -> list[str]:
    """Checks that every token of the images has a position of its own."""
    ids = ids[0] if ids.dim() == 3 else ids
    n = len(ids.unique(dim=0))
    return [f"{name}: img_ids are {n} positions for {len(ids)} tokens of images"] if n < len(ids) else []


def stack_of(encoder) -> tuple:
    """The layers of a text encoder, and the norm after the last of them; (None, None) if it has no such thing."""
    for m in encoder.modules():
        for layers, norm in (("layers", "norm"), ("block", "final_layer_norm")):
            found = getattr(m, layers, None), getattr(m, norm, None)
            if isinstance(found[0], torch.nn.ModuleList) and found[1] is not None and hasattr(m, "embed_tokens"):
                return found
    return None, None


def label_of(rows: torch.Tensor, states: dict, norm):
    """Which hidden states rows are some of: the number of a layer, NORMED, or something else."""
    for label, tensors in states.items():
        if any(contains(t[0], rows) for t in tensors):
            return label
    twice = (type(norm).forward(norm, t) for t in states.get(NORMED, ()))  # without hooks
    return "normed twice" if any(contains(t[0], rows) for t in twice) else "something else"


def contains(all_rows: torch.Tensor, rows: torch.Tensor) -> bool:
    """Reports whether rows follow each other in all_rows."""
    if rows.shape[-1] != all_rows.shape[-1] or not len(rows):
        return False
    all_rows = all_rows.to(rows.dtype)
    starts = (all_rows == rows[0]).all(-1).nonzero().flatten().tolist()
    return any(torch.equal(all_rows[i : i + len(rows)], rows) for i in starts)


def label(which) -> str:
    return f"the output of layer {which}" if isinstance(which, int) else NAMES.get(which, which)


NAMES = {
    NORMED: "the last hidden states after the final norm",
    "normed twice": "the last hidden states after two final norms",
    "something else": "no hidden states of the text encoder",
}

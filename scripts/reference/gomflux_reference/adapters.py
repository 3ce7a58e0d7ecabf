"""LoRAs of a pipeline, as diffusers loads them (load_lora_weights and set_adapters)."""

import inspect
import random
import re
import warnings
from pathlib import Path
from unittest import mock

import diffusers
import torch
from diffusers.loaders import lora_conversion_utils, lora_pipeline
from diffusers.utils import logging
from safetensors.torch import save_file


def apply(pipe, loras: list[tuple[str, float]]):
    """Loads LoRAs, in files or folders, and activates them with their scales. One that does not fit is an error."""
    if not loras:
        return
    try:
        import peft  # noqa: F401
    except ModuleNotFoundError as e:
        raise SystemExit(f"{e} (LoRAs need scripts/reference/requirements-lora.txt)") from None
    if not hasattr(pipe, "load_lora_weights"):
        raise SystemExit(f"{type(pipe).__name__} does not load LoRAs")
    names = [f"lora{i}" for i in range(len(loras))]
    verbosity = logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's, of a second LoRA and of layers without a change
        logging.set_verbosity(logging.CRITICAL)  # what does not fit is reported here
        try:
            with mock.patch.object(lora_pipeline, "_convert_kohya_flux_lora_to_diffusers", narrow(pipe.transformer)):
                for name, (file, _) in zip(names, loras):
                    load(pipe, Path(file), name)
        finally:
            logging.set_verbosity(verbosity)
    pipe.set_adapters(names, [scale for _, scale in loras])


def load(pipe, file: Path, name: str):
    if not file.exists():
        raise SystemExit(f"{file}: no such LoRA")
    folder, more = (file.parent, {"weight_name": file.name}) if file.is_file() else (file, {})
    try:
        state = pipe.lora_state_dict(folder, local_files_only=True, **more)
    except Exception as e:  # whatever diffusers raises about files and names
        raise SystemExit(f"{file}: not a LoRA that diffusers reads for this model: {first_line(e)}") from e
    state = state[0] if isinstance(state, tuple) else state
    try:
        pipe.load_lora_weights(folder, adapter_name=name, local_files_only=True, **more)
    except Exception as e:  # whatever PEFT and diffusers raise about names and shapes
        raise SystemExit(f"{file}: does not fit the model: {first_line(e)}") from e
    changed = {
        f"{component}.{path}"
        for component in pipe._lora_loadable_modules
        if isinstance(module := getattr(pipe, component, None), torch.nn.Module)
        for path, m in module.named_modules()
        if hasattr(m, "base_layer") and name in m.scaling
    }
    modules = {re.split(r"\.(?:lora|lokr|loha|hada)_?", key)[0] for key in state if not key.endswith("alpha")}
    # transformers 5 has no level text_model in CLIP any more
    if left := {m for m in modules if m not in changed and m.replace(".text_model.", ".", 1) not in changed}:
        raise SystemExit(f"{file}: does not fit the model, which has no module {some(left)}")


def some(names: set) -> str:
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def first_line(e: Exception) -> str:
    """The line of a long error that names a tensor, or else its first."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    return next((line for line in lines if line.startswith("size mismatch")), lines[0])[:300]


def inside(module: torch.nn.Module) -> tuple[str, ...]:
    """What the paths of modules begin with that LoRAs have added: a changed layer is recorded as a whole."""
    return tuple(f"{path}." for path, m in module.named_modules() if hasattr(m, "base_layer"))


def narrow(transformer):
    """diffusers' conversion, which has the widths of the published FLUX.1 in it, for another's."""
    original = lora_conversion_utils._convert_kohya_flux_lora_to_diffusers
    if not isinstance(transformer, diffusers.FluxTransformer2DModel):
        return original
    source, widths = inspect.getsource(original), "[3072, 3072, 3072, 12288]"
    assert widths in source
    scope = dict(vars(lora_conversion_utils))
    dim = transformer.inner_dim
    exec(source.replace(widths, str([dim, dim, dim, 4 * dim])), scope)
    return scope[original.__name__]


def draw(pipe, file: Path, r: random.Random):
    """Writes a random LoRA of a third of the transformer's linear layers, and at least four, in diffusers' names."""
    linears = [(path, m) for path, m in pipe.transformer.named_modules() if isinstance(m, torch.nn.Linear)]
    chosen = r.sample(linears, min(len(linears), max(4, len(linears) // 3)))
    generator = torch.Generator().manual_seed(r.getrandbits(31))
    tensors = {}
    for path, m in chosen:
        rank = r.randint(1, 4)
        tensors[f"transformer.{path}.lora_A.weight"] = torch.randn(rank, m.in_features, generator=generator)
        up = torch.randn(m.out_features, rank, generator=generator) * 0.3 / (rank * m.in_features) ** 0.5
        tensors[f"transformer.{path}.lora_B.weight"] = up
    save_file(tensors, file)

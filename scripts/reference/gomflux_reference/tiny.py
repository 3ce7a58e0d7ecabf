"""Small random pipelines of the real classes, in the two layouts that model folders have."""

import hashlib
import math
import re
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from . import modular, tokenizer
from .families import FAMILIES, Family
from .files import index_file, read_json, write_json

SMALL = 0.03
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def make(
    folder: Path,
    family_name: str,
    seed: int,
    kind: str,
    layout: str,
    shards: int,
    dtype: str,
    dims: dict,
    only=(),
    full=False,
    device="cpu",
):
    """Writes a pipeline (or only some of its components) to folder. The same arguments give the same bytes."""
    family = FAMILIES[family_name]
    dims = family.dims | (family.full if full else {}) | dims
    with torch.device(device):
        components = family.components(dims)
    for name, module in components.items():
        if isinstance(module, torch.nn.Module):
            fill(name, module, family, seed, kind)
            module.to(DTYPES[dtype])
    if folder.exists():
        shutil.rmtree(folder)
    if only:
        for name in only:
            components[name].save_pretrained(folder / name)
    else:
        if modular.is_modular(family.pipeline):
            modular.save(family, family_name, components, folder)
        else:
            family.pipeline(**components).save_pretrained(folder)
        if more := family.model_index(dims):
            index = index_file(folder)
            write_json(index, read_json(index) | more)
    if layout == "hub":
        to_hub(folder, components, family)
    if shards > 1:
        for name in ("transformer", *family.text_encoders):
            for file in (folder / name).glob("*.safetensors"):
                split(file, shards)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


def fill(component: str, module: torch.nn.Module, family: Family, seed: int, kind: str):
    """Draws all weights of module so that activations stay near 1 and no parameter is without effect."""
    digest = hashlib.sha256(f"{seed}/{component}".encode()).digest()
    device = next(module.parameters()).device
    random = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    with torch.no_grad():
        for path, p in sorted(module.named_parameters()):
            name = f"{component}.{path}"
            n = torch.randn(p.shape, generator=random, device=device)
            if path.endswith("_pad_token"):
                value = n
            elif path.endswith("bias"):
                value = 0.1 * n * gain(family.biases, name)
            elif p.dim() == 1 or path.endswith("gamma"):
                value = 0.2 * n
                if not any(re.search(pattern, name) for pattern in family.minus_one):
                    value += 1
            else:
                value = n / math.sqrt(p[0].numel())
            if p.dim() > 1:
                value *= gain(family.gains, name)
            if kind == "small-activations" and any(re.search(pattern, name) for pattern in family.small):
                value *= SMALL
            p.copy_(value)
        for path, b in sorted(module.named_buffers()):
            if path.endswith("running_mean"):
                b.copy_(0.3 * torch.randn(b.shape, generator=random, device=device))
            elif path.endswith("running_var"):
                b.copy_(0.5 + 2 * torch.rand(b.shape, generator=random, device=device))


def gain(gains: dict, name: str) -> float:
    return next((g for pattern, g in gains.items() if re.search(pattern, name)), 1)


def split(file: Path, count: int):
    """Replaces one safetensors file by `count` shards and their index."""
    tensors = load_file(file)
    total = sum(t.nbytes for t in tensors.values())
    shards, done = [{} for _ in range(count)], 0
    for name, tensor in sorted(tensors.items()):
        shards[min(count - 1, done * count // total)][name] = tensor
        done += tensor.nbytes
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        name = f"{file.stem}-{i:05d}-of-{count:05d}.safetensors"
        save_file(shard, file.with_name(name), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    file.unlink()
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(Path(f"{file}.index.json"), index)


def to_hub(folder: Path, components: dict, family: Family):
    """Renames what transformers 5 saves to the names and keys of transformers 4, as the hub's models have them."""
    if (index := index_file(folder)).exists():
        write_json(index, read_json(index) | {"_diffusers_version": "0.36.0"})
    for name, component in components.items():
        if not (folder / name).exists():
            continue
        if isinstance(component, transformers.PreTrainedModel):
            model_files(folder / name, component)
        elif isinstance(component, transformers.PreTrainedTokenizerBase):
            tokenizer.to_transformers4(folder / name, fast=name not in family.bare_tokenizers)
        elif isinstance(component, transformers.ProcessorMixin):
            tokenizer.to_transformers4(folder / name)
            processor_files(folder / name)


# What is published, by what model_index.json says: its architecture, and what its tensors' names begin with.
PUBLISHED = {"Qwen3Model": ("Qwen3ForCausalLM", "model."), "CLIPTextModel": ("CLIPTextModel", "text_model.")}


def model_files(folder: Path, module: transformers.PreTrainedModel):
    config = read_json(folder / "config.json")
    architecture, prefix = PUBLISHED.get(type(module).__name__, (type(module).__name__, ""))
    if prefix:
        file = folder / "model.safetensors"
        save_file({prefix + k: v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    rotary(config)
    text = config.get("text_config")
    if text:
        rotary(text)
        config["vision_config"].pop("rope_parameters", None)
    if text and type(module).__name__ == "Qwen2_5_VLForConditionalGeneration":  # its text_config is there twice
        config = {k: v for k, v in text.items() if k != "model_type"} | config
        vision = config["vision_config"]
        vision |= {"in_chans": vision.pop("in_channels"), "model_type": config["model_type"]}
        for part in (text, vision):
            part["torch_dtype"] = config["dtype"]
    config |= {
        "architectures": [architecture],
        "torch_dtype": config.pop("dtype"),
        "transformers_version": "4.51.0",
    }
    write_json(folder / "config.json", dict(sorted(config.items())))


def rotary(config: dict):
    """Writes the rotary embedding's settings of transformers 5 as transformers 4 did, but for YaRN: models that have it
    need version 5."""
    if config.get("rope_parameters", {}).get("rope_type") == "yarn" or not (rope := config.pop("rope_parameters", None)):
        return
    section = rope.get("mrope_section")
    scaling = {"mrope_section": section, "rope_type": "default", "type": "default"} if section else None
    if rope.get("mrope_interleaved"):
        scaling["mrope_interleaved"] = True
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    for key in ("layer_types", "pad_token_id"):
        config.pop(key, None)


def processor_files(folder: Path):
    """Splits a processor that transformers 5 saved into the files of transformers 4."""
    config = read_json(folder / "processor_config.json")
    for key, name in (("image_processor", "preprocessor_config"), ("video_processor", "video_preprocessor_config")):
        if not (part := config.pop(key, None)):
            continue
        part |= {"processor_class": config["processor_class"]}
        if "shortest_edge" in part["size"]:
            part |= {"min_pixels": part["size"]["shortest_edge"], "max_pixels": part["size"]["longest_edge"]}
        write_json(folder / f"{name}.json", dict(sorted(part.items())))
    if "image_token" in config:  # as Pixtral's, which has more than Qwen's
        write_json(folder / "processor_config.json", config)
    else:
        (folder / "processor_config.json").unlink()

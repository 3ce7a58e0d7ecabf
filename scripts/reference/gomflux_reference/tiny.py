"""Small random pipelines of the real classes, in the two layouts that model folders have."""

import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .families import FAMILIES, Family

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
    with torch.device(device):
        components = family.build(family.dims | (family.full if full else {}) | dims)
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
        family.pipeline(**components).save_pretrained(folder)
    if layout == "hub":
        to_hub(folder, components)
    if shards > 1:
        for name in ("transformer", "text_encoder"):
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
                value = 0.1 * n
            elif p.dim() == 1:
                value = 1 + 0.2 * n
            else:
                value = n / math.sqrt(p[0].numel())
            if p.dim() > 1:
                value *= next((g for pattern, g in family.gains.items() if re.search(pattern, name)), 1)
            if kind == "small-activations" and any(re.search(pattern, name) for pattern in family.small):
                value *= SMALL
            p.copy_(value)


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


def to_hub(folder: Path, components: dict):
    """Turns what transformers 5 has saved into the names and keys of transformers 4, which the hub's models have."""
    if (index := folder / "model_index.json").exists():
        write_json(index, read_json(index) | {"_diffusers_version": "0.36.0"})
    if (folder / "text_encoder").exists():
        causal_lm_files(folder / "text_encoder")
    if (folder / "tokenizer").exists():
        tokenizer_files(folder / "tokenizer", components["tokenizer"])


def causal_lm_files(folder: Path):
    """A Qwen3ForCausalLM with tied embeddings, although model_index.json goes on to say Qwen3Model."""
    file = folder / "model.safetensors"
    save_file({f"model.{k}": v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    config = read_json(folder / "config.json")
    rope = config.pop("rope_parameters")
    config |= {
        "architectures": ["Qwen3ForCausalLM"],
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None,
        "torch_dtype": config.pop("dtype"),
        "transformers_version": "4.51.0",
    }
    for key in ("layer_types", "pad_token_id"):
        config.pop(key, None)
    write_json(folder / "config.json", dict(sorted(config.items())))


def tokenizer_files(folder: Path, tokenizer):
    backend = read_json(folder / "tokenizer.json")
    vocab, merges = backend["model"]["vocab"], [" ".join(m) for m in backend["model"]["merges"]]
    added = backend["added_tokens"]
    backend["model"]["merges"] = merges
    write_json(folder / "tokenizer.json", backend)
    write_json(folder / "vocab.json", vocab, indent=None)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    write_json(folder / "added_tokens.json", {t["content"]: t["id"] for t in added})

    def entry(content):
        return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}

    special = [t["content"] for t in added if t["special"]]
    extra = [t for t in special if t != tokenizer.pad_token]
    write_json(
        folder / "special_tokens_map.json",
        {
            "additional_special_tokens": extra,
            "eos_token": entry(tokenizer.eos_token),
            "pad_token": entry(tokenizer.pad_token),
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {str(t["id"]): entry(t["content"]) | {"special": t["special"]} for t in added},
            "additional_special_tokens": extra,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": tokenizer.eos_token,
            "errors": "replace",
            "model_max_length": tokenizer.model_max_length,
            "pad_token": tokenizer.pad_token,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value, indent: int | None = 2):
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")

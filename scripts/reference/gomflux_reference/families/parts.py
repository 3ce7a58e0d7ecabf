"""What several families do alike in their pipelines."""

import math
import random
from pathlib import Path

import diffusers
import torch

from .. import tokenizer
from ..files import index_file, read_json
from .text_encoders import QWEN_VL_SPECIAL


def option(pipe, name: str, otherwise=None):
    """Returns an option in the index of the model's folder.

    Small models name there what are constants, or arguments of a call, in diffusers.
    """
    file = index_file(Path(pipe.config["_name_or_path"]))
    return (read_json(file).get(name) if file.exists() else None) or otherwise


def by_size(d: dict, **more) -> diffusers.FlowMatchEulerDiscreteScheduler:
    """Returns a scheduler that can shift by the image's size, as FLUX's do, whether its config asks for it or not."""
    return diffusers.FlowMatchEulerDiscreteScheduler(
        shift=d["shift"], base_shift=d["base_shift"], max_shift=d["max_shift"], **more
    )


def qwen_scheduler(d: dict, use_dynamic_shifting=True) -> diffusers.FlowMatchEulerDiscreteScheduler:
    """Returns a scheduler as Qwen's, which may stretch sigmas so that the last one is shift_terminal (0 for not)."""
    more = dict(max_image_seq_len=8192, shift_terminal=d["shift_terminal"] or None)
    return by_size(d, use_dynamic_shifting=use_dynamic_shifting, **more)


def draw_shift(r: random.Random) -> dict:
    """Returns random dimensions for by_size."""
    return dict(shift=r.choice((1.0, 3.0)), base_shift=r.uniform(0.3, 0.7), max_shift=r.uniform(0.8, 1.4))


def attention(d: dict) -> dict:
    """Returns the arguments that most transformers have for their layers, and for rotary embeddings of all of a head."""
    return dict(
        num_layers=d["layers"],
        attention_head_dim=sum(d["axes_dims"]),
        num_attention_heads=d["heads"],
        axes_dims_rope=list(d["axes_dims"]),
    )


def rounds_sinusoids(size: int) -> bool:
    """Tells whether torch rounds the frequencies of so many sinusoids correctly, as gomflux does."""
    exponents = -math.log(10000) * torch.arange(size // 2, dtype=torch.float32) / (size // 2)
    return bool((exponents.exp() == exponents.double().exp().float()).all())


def draw_attention(r: random.Random, heads: int | None = None, layers: int = 3) -> dict:
    """Returns random dimensions for attention, with so many layers at most."""
    return dict(
        heads=heads or r.randint(1, 4),
        axes_dims=tuple(2 * r.randint(1, 4) for _ in range(3)),
        layers=r.randint(1, layers),
    )


def true_cfg(pipe, guidance, negative) -> dict:
    """Returns the arguments for guidance of pipelines whose guidance_scale is another one."""
    return {"true_cfg_scale": guidance, "negative_prompt": negative}


def guider(pipe, guidance, negative) -> dict:
    """Returns the arguments of modular pipelines, whose guidance is a component. Another class of guiders may take its place."""
    if getattr(pipe, "guider", None) is not None:
        pipe.guider.guidance_scale = guidance
    return {"negative_prompt": negative} if negative is not None else {}


def check_layers(d: dict, name: str):
    """Refuses numbers of hidden states that a text encoder does not have before its final norm."""
    if not 0 < min(d[name]) <= max(d[name]) < d["text_layers"]:
        raise SystemExit(f"{name.replace('_', '-')} are {d[name]}, expected 1 to {d['text_layers'] - 1}")


def qwen_prompt_templates() -> list[tuple[str, int]]:
    """Returns the template before images and prompt, and how many of its tokens Qwen-Image's pipelines drop."""
    pipes = diffusers.QwenImagePipeline(*[None] * 5), diffusers.QwenImageEditPlusPipeline(*[None] * 6)
    return [(p.prompt_template_encode.split("{}")[0], p.prompt_template_encode_start_idx) for p in pipes]


def qwen_tokenizer(merges: int):
    """A tokenizer to which each word of the templates is one token: the pipelines count on their number."""
    templates = qwen_prompt_templates()
    tok = tokenizer.train(merges, [text for text, _ in templates] * 40 + tokenizer.CORPUS, QWEN_VL_SPECIAL)
    for text, dropped in templates:
        if (n := len(tok(text).input_ids)) != dropped:
            raise SystemExit(f"{merges} merges are too few: a template has {n} tokens, expected {dropped}")
    return tok


def latents(pipe, height: int, width: int) -> tuple:
    """Returns the shape of latents whose sides are even, for patches of 2x2 of them."""
    config, scale = pipe.vae.config, 2 * pipe.vae_scale_factor
    channels = config.z_dim if "z_dim" in config else config.latent_channels
    return 1, channels, 2 * (height // scale), 2 * (width // scale)


def patch_latents(pipe, height: int, width: int) -> tuple:
    """Returns the shape of latents that are patches of 2x2 already."""
    scale = 2 * pipe.vae_scale_factor
    return 1, pipe.transformer.config.in_channels, height // scale, width // scale


def unpack_patch_latents(pipe, x, height: int, width: int):
    """Returns the tokens of such latents as pictures."""
    return x.mT.reshape(1, -1, *patch_latents(pipe, height, width)[2:])


def pack(pipe, x):
    """Packs latents by the method that diffusers' pipelines with patches of 2x2 have."""
    return pipe._pack_latents(x, *x.shape)


def whole_patches(pipe, width: int, height: int) -> tuple:
    """Returns a size rounded down to whole patches."""
    patch = 2 * pipe.vae_scale_factor
    return width // patch * patch, height // patch * patch

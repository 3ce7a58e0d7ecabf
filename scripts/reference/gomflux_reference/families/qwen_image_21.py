"""Qwen-Image-2.1: a block-causal transformer of one stream, Qwen3-VL before its final norm, an autoencoder with alpha.

The same pipeline edits: its pictures are in the prompt, for the text encoder and, as latents, for the transformer.
"""

import dataclasses
import functools
import random

import diffusers

from .. import schedules, tokenizer
from . import Family, autoencoders, parts, text_encoders


def transformer(d: dict) -> diffusers.QwenImage21Transformer2DModel:
    z = d["latent_channels"]
    return diffusers.QwenImage21Transformer2DModel(
        in_channels=z,
        out_channels=z,
        **parts.attention(d),
        context_in_dim=d["text_hidden"],
        mlp_ratio=int(d["mlp_ratio"]),
        eps=d["norm_eps"],
        causal_condition=bool(d["causal_condition"]),
    )


def build(d: dict) -> dict:
    tok = tokenizer.train(d["merges"], special=text_encoders.QWEN_VL_SPECIAL)
    tok.chat_template = None
    return {
        "scheduler": parts.qwen_scheduler(d, use_dynamic_shifting=bool(d["dynamic_shift"])),
        "text_encoder": text_encoders.qwen3_vl(d, tok),
        "processor": text_encoders.qwen3_vl_processor(d, tok),
        "sample_sigmas": list(d["sample_sigmas"]) if "sample_sigmas" in d else None,
    }


def draw(r: random.Random, turbo: bool = False) -> dict:
    more = {}
    if turbo:
        more["sample_sigmas"] = (1.0, *sorted((round(r.uniform(0.2, 0.98), 4) for _ in range(2)), reverse=True))
    return dict(
        **parts.draw_attention(r),
        mlp_ratio=r.randint(1, 4),
        norm_eps=r.choice((1e-6, 1e-5)),
        causal_condition=r.choice((0, 1, 1, 1)),
        **text_encoders.draw_qwen3(r, r.randint(3, 4)),
        **text_encoders.draw_qwen3_vision(r, layers=r.randint(2, 3)),
        min_pixels=r.choice((1024, 256)),
        output_resolution=r.randint(40, 110),
        **autoencoders.draw_qwen_image_21(r),
        **parts.draw_shift(r),
        dynamic_shift=0 if turbo else 1,
        shift_terminal=0.0 if turbo else r.choice((0.0, 0.02, r.uniform(0.01, 0.1))),
        **more,
    ) | {"vision_patch": 16, "shift": 1.0}  # 4 latents for each of the text encoder's tokens


TEXT = Family(
    pipeline=diffusers.QwenImage21Pipeline,
    dims=dict(
        heads=3, axes_dims=(4, 6, 6), layers=2, mlp_ratio=3, norm_eps=1e-6, causal_condition=1,
        **text_encoders.QWEN3_VL, min_pixels=1024, output_resolution=80, **autoencoders.QWEN_IMAGE_21,
        dynamic_shift=1, shift=1.0, base_shift=0.5, max_shift=0.9, shift_terminal=0.02,
    ),
    full=dict(
        heads=32, axes_dims=(16, 56, 56), layers=32,
        **text_encoders.QWEN3_VL_8B, min_pixels=65536, output_resolution=1024, **autoencoders.QWEN_IMAGE_21_64,
    ),
    build=build,
    transformer=transformer,
    autoencoder=autoencoders.qwen_image_21,
    draw=draw,
    latents=parts.latents,
    arguments=parts.true_cfg,
    embeddings=lambda pipe: (pipe.text_encoder.config.text_config.num_hidden_layers,),
    guidance=lambda r: 1.0 if r.random() < 0.5 else round(r.uniform(1.5, 5), 2),
    matches=lambda pipe: not pipe.config.sample_sigmas,
    pack=lambda pipe, x: x.flatten(2).mT,
    unpack=lambda pipe, x, height, width: pipe._unpack_latents(x, height, width, pipe.vae_scale_factor)[:, :, 0],
    options={"output_resolution": "output_resolution"},  # the side of the area that pictures are resized to
    negative_prompt=True,
    references=(0, 1, 2, 3),
    reference_sides=(24, 140),
    transparent=True,
    schedulers=(schedules.LINEAR,),
    untapped=("vae*:in.*.*",),  # the caches of convolutions over time
    gains={
        **text_encoders.QWEN_VL_GAINS,
        r"^transformer\.(modulation\.1|norm_out\.linear)\.weight$": 0.7,
    },
    biases=autoencoders.QWEN_IMAGE_BIASES,
    small=(
        r"^transformer\.(img_in|txt_in\.out_layer)\.",
        r"^transformer\..*\.(to_[qk]|to_out\.0|img_mlp\.out)\.",
        r"^text_encoder\..*\.linear_fc2\.",
        text_encoders.SMALL_QWEN_VL,
        *autoencoders.SMALL_QWEN_IMAGE,
    ),
)  # fmt: skip

TURBO = dataclasses.replace(
    TEXT,
    dims=TEXT.dims | dict(sample_sigmas=(1.0, 0.95, 0.4), dynamic_shift=0, shift_terminal=0.0),
    draw=functools.partial(draw, turbo=True),
    guidance=lambda r: 1.0,
    steps=(3, 3),  # as many as it has sigmas
    matches=lambda pipe: bool(pipe.config.sample_sigmas),
)

FAMILIES = {"qwen-image-2.1": TEXT, "qwen-image-2.1-turbo": TURBO}

"""FLUX.3 klein: blocks of text, image and references by themselves, then joint ones, and stacked layers of a Qwen3-VL.

It is a modular pipeline. The base model has guidance. The distilled one is a flow map, whose transformer takes the
timestep that a step leads to as well. The autoencoder is that of FLUX.2.
"""

import dataclasses
import functools
import random

import diffusers

from .. import tokenizer
from . import Family, TextEncoder, all_rows, autoencoders, parts, text_encoders

# The published models' hidden states are an argument's default. Smaller ones name theirs in the index.
OUT_LAYERS = "text_encoder_out_layers"
PUBLISHED_OUT_LAYERS = (4, 8, 12, 16, 20, 24, 28, 32)


def transformer(d: dict, flow_map: bool) -> diffusers.Flux3Transformer2DModel:
    return diffusers.Flux3Transformer2DModel(
        in_channels=4 * d["latent_channels"],
        cond_in_channels=4 * d["latent_channels"],
        **parts.attention(d),
        num_single_layers=d["single_layers"],
        joint_attention_dim=len(d["out_layers"]) * d["text_hidden"],
        timestep_channels=d["time_dim"],
        mlp_ratio=d["mlp_ratio"],
        rope_theta=d["rope_theta"],
        eps=d["norm_eps"],
        flow_map=flow_map,
    )


def build(d: dict) -> dict:
    parts.check_layers(d, "out_layers")
    tok = tokenizer.train(d["merges"], special=text_encoders.QWEN_VL_SPECIAL)
    processor = text_encoders.qwen3_vl_processor(d | {"min_pixels": 1024}, tok)
    processor.chat_template = tok.chat_template = text_encoders.QWEN3_VL_USER_CHAT
    return {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=d["shift"]),
        "text_encoder": text_encoders.qwen3_vl(d, tok),
        "tokenizer": processor,
    }


def draw(r: random.Random) -> dict:
    text_layers = r.randint(4, 6)
    return dict(
        heads=r.randint(1, 4),
        axes_dims=tuple(2 * r.randint(1, 3) for _ in range(4)),
        layers=r.randint(1, 2),
        single_layers=r.randint(1, 3),
        time_dim=256,  # torch rounds the sinusoids of other sizes differently
        mlp_ratio=r.choice((2.0, 2.5, 3.0)),
        rope_theta=r.randint(100, 20000),
        norm_eps=r.choice((1e-6, 1e-5)),
        **text_encoders.draw_qwen3(r, text_layers),
        **text_encoders.draw_qwen3_vision(r, layers=1),
        out_layers=tuple(sorted(r.sample(range(1, text_layers), 3))),
        **autoencoders.draw_kl_flux2(r),
        shift=r.choice((6.93, 1.0, 3.0)),
    )


def embeddings(state) -> list:
    """Returns the values of each prompt."""
    found = (state.prompt_embeds, getattr(state, "negative_prompt_embeds", None))
    return [{"embeds": embeds[0]} for embeds in found if embeds is not None]


DISTILLED = Family(
    pipeline=diffusers.Flux3DistilledModularPipeline,
    without=("prompt_upsampler",),
    dims=dict(
        heads=3, axes_dims=(2, 4, 6, 4), layers=2, single_layers=2, time_dim=256, mlp_ratio=3.0, rope_theta=2000,
        norm_eps=1e-6, **text_encoders.QWEN3_VL | text_encoders.UNUSED_VISION | dict(text_layers=5), out_layers=(1, 2, 4),
        **autoencoders.KL_FLUX2, shift=6.93,
    ),
    full=dict(
        heads=24, axes_dims=(32, 32, 32, 32), layers=5, single_layers=28,
        **text_encoders.QWEN3_4B, out_layers=PUBLISHED_OUT_LAYERS, **autoencoders.KL_FLUX2_32,
    ),
    build=build,
    transformer=functools.partial(transformer, flow_map=True),
    autoencoder=autoencoders.kl_flux2,
    draw=draw,
    latents=parts.patch_latents,
    arguments=parts.guider,
    encodings={"text_encoder": embeddings},
    states={"vae_encoder.image_conditioning": lambda state: {"latents.reference": state.image_cond_latents}},
    embeddings=lambda pipe: tuple(parts.option(pipe, OUT_LAYERS, PUBLISHED_OUT_LAYERS)),
    guidance=lambda r: 1.0,
    unpack=parts.unpack_patch_latents,
    options={OUT_LAYERS: "out_layers"},
    references=(0, 1, 2),
    text_encoders={"text_encoder": TextEncoder(kept=all_rows)},
    gains={
        r"^text_encoder\..*\.[qk]_proj\.weight$": 1.5,
        r"^transformer\.(\w+_modulations\.\w+|norm_out)\.linear\.weight$": 0.7,
    },
    small=(
        r"^transformer\.(x_embedders\.\w+|context_embedder)\.",
        r"^transformer\..*\.(to_[qk]|to_out\.0|linear_out)\.",
        text_encoders.SMALL_QWEN_VL,
        *autoencoders.SMALL_KL,
    ),
)  # fmt: skip

BASE = dataclasses.replace(
    DISTILLED,
    pipeline=diffusers.Flux3ModularPipeline,
    transformer=functools.partial(transformer, flow_map=False),
    guidance=lambda r: 1.0 if r.random() < 0.2 else round(r.uniform(1.5, 5), 2),
    negative_prompt=True,
)

FAMILIES = {"flux3-klein": DISTILLED, "flux3-klein-base": BASE}

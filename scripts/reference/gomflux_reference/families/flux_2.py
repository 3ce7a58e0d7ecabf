"""FLUX.2: a transformer of two streams, then one, layers of a Qwen3, an autoencoder with batch-norm statistics.

Of klein, the distilled model knows no guidance, the base one does, and the KV one looks at the pictures that it edits
once. The transformer of dev takes the guidance, and its text encoder is a Mistral 3.
"""

import dataclasses
import functools
import random

import diffusers
import transformers
from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE

from .. import tokenizer
from . import Family, TextEncoder, all_rows, autoencoders, parts, text_encoders

# The published models' hidden states are an argument's default. Smaller ones name theirs in model_index.json.
OUT_LAYERS = "text_encoder_out_layers"
OUT_LAYERS_OF_KLEIN = (9, 18, 27)
OUT_LAYERS_OF_DEV = (10, 20, 30)


def transformer(d: dict, guidance_embeds=False) -> diffusers.Flux2Transformer2DModel:
    return diffusers.Flux2Transformer2DModel(
        in_channels=4 * d["latent_channels"],
        **parts.attention(d),
        num_single_layers=d["single_layers"],
        joint_attention_dim=len(d["out_layers"]) * d["text_hidden"],
        mlp_ratio=d["mlp_ratio"],
        rope_theta=d["rope_theta"],
        eps=d["norm_eps"],
        guidance_embeds=guidance_embeds,
    )


def build(d: dict, **more) -> dict:
    parts.check_layers(d, "out_layers")
    tok = tokenizer.train(d["merges"])
    return {
        "scheduler": parts.by_size(d, use_dynamic_shifting=True),
        "text_encoder": transformers.Qwen3ForCausalLM(text_encoders.qwen3_config(d, tok)),
        "tokenizer": tok,
        **more,
    }


def draw(r: random.Random) -> dict:
    text_layers = r.randint(4, 6)
    return dict(
        heads=r.randint(1, 4),
        axes_dims=tuple(2 * r.randint(1, 3) for _ in range(4)),
        layers=r.randint(1, 2),
        single_layers=r.randint(1, 3),
        mlp_ratio=r.choice((2.0, 2.5, 3.0)),
        rope_theta=r.randint(100, 20000),
        norm_eps=r.choice((1e-6, 1e-5)),
        **text_encoders.draw_qwen3(r, text_layers),
        out_layers=tuple(sorted(r.sample(range(1, text_layers), 3))),
        **autoencoders.draw_kl_flux2(r),
        **parts.draw_shift(r),
    )


DISTILLED = Family(
    pipeline=diffusers.Flux2KleinPipeline,
    inpaint_pipeline=diffusers.Flux2KleinInpaintPipeline,
    inpaint_references=(0, 1),
    inpaint_size=parts.whole_patches,
    inpaint_resized=True,
    inpaint_pastes=False,  # it cuts out the middle of its result instead of scaling it
    dims=dict(
        heads=3, axes_dims=(2, 4, 6, 4), layers=2, single_layers=2, mlp_ratio=3.0, rope_theta=2000, norm_eps=1e-6,
        **text_encoders.QWEN3 | dict(text_layers=5), out_layers=(1, 2, 4),
        **autoencoders.KL_FLUX2, shift=3.0, base_shift=0.5, max_shift=1.15,
    ),
    full=dict(
        heads=24, axes_dims=(32, 32, 32, 32), layers=5, single_layers=20,
        **text_encoders.QWEN3_4B, out_layers=OUT_LAYERS_OF_KLEIN, **autoencoders.KL_FLUX2_32,
    ),
    build=functools.partial(build, is_distilled=True),
    transformer=transformer,
    autoencoder=autoencoders.kl_flux2,
    draw=draw,
    latents=parts.patch_latents,
    arguments=lambda pipe, guidance, negative: {"guidance_scale": guidance},
    embeddings=lambda pipe: tuple(parts.option(pipe, OUT_LAYERS, OUT_LAYERS_OF_KLEIN)),
    guidance=lambda r: 1.0,
    matches=lambda pipe: pipe.config.is_distilled,
    unpack=parts.unpack_patch_latents,
    options={OUT_LAYERS: "out_layers"},
    references=(0, 1, 2),  # of sides of 64 at least; what is no multiple of the latents' patches is cropped
    text_encoders={"text_encoder": TextEncoder(kept=all_rows)},
    gains={
        r"^text_encoder\..*\.[qk]_proj\.weight$": 1.5,
        r"^transformer\.(\w+_modulation\w*|norm_out)\.linear\.weight$": 0.7,
    },
    small=(
        r"^transformer\.(x_embedder|context_embedder)\.",
        r"^transformer\..*\.(to_[qk]|add_[qk]_proj|to_out\.0|to_add_out|linear_out|to_qkv_mlp_proj)\.",
        text_encoders.SMALL_QWEN3,
        *autoencoders.SMALL_KL,
    ),
)  # fmt: skip

BASE = dataclasses.replace(
    DISTILLED,
    build=functools.partial(build, is_distilled=False),
    guidance=lambda r: 1.0 if r.random() < 0.2 else round(r.uniform(1.5, 5), 2),
    matches=lambda pipe: not DISTILLED.matches(pipe),
)

KV = dataclasses.replace(
    DISTILLED,
    pipeline=diffusers.Flux2KleinKVPipeline,
    build=build,
    arguments=lambda pipe, guidance, negative: {},
    inpaint_pipeline=None,
    matches=lambda pipe: True,
)



def build_dev(d: dict) -> dict:
    parts.check_layers(d, "out_layers")
    # the system message would have over a hundred tokens otherwise
    tok = tokenizer.train_mistral(d["merges"], [SYSTEM_MESSAGE] * 8 + tokenizer.CORPUS, d["padding_side"])
    return {
        "scheduler": parts.by_size(d, use_dynamic_shifting=True),
        "text_encoder": text_encoders.mistral3(d, tok),
        "tokenizer": text_encoders.pixtral_processor(tok),
    }


DEV = dataclasses.replace(
    DISTILLED,
    pipeline=diffusers.Flux2Pipeline,
    inpaint_pipeline=None,
    dims=DISTILLED.dims | text_encoders.MISTRAL | dict(padding_side="left"),
    full=DISTILLED.full
    | text_encoders.MISTRAL_24B
    | dict(heads=48, layers=8, single_layers=48, out_layers=OUT_LAYERS_OF_DEV),
    build=build_dev,
    transformer=functools.partial(transformer, guidance_embeds=True),
    draw=lambda r: draw(r) | dict(padding_side=r.choice(("left", "left", "right"))),
    embeddings=lambda pipe: tuple(parts.option(pipe, OUT_LAYERS, OUT_LAYERS_OF_DEV)),
    guidance=lambda r: round(r.uniform(0, 6), 2),
    matches=lambda pipe: True,
)

FAMILIES = {"flux2-klein": DISTILLED, "flux2-klein-base": BASE, "flux2-klein-kv": KV, "flux2-dev": DEV}

"""FLUX.2-klein: a transformer of two streams, then one, layers of a Qwen3, an autoencoder with batch-norm statistics.

The distilled model knows no guidance, the base one does, and the KV one looks at the pictures that it edits once.
"""

import dataclasses
import functools
import json
import random
from pathlib import Path

import diffusers
import transformers

from .. import tokenizer
from . import Family, TextEncoder, all_rows, parts

# The published models' hidden states are an argument's default. Smaller ones name theirs in model_index.json.
OUT_LAYERS = "text_encoder_out_layers"


def transformer(d: dict) -> diffusers.Flux2Transformer2DModel:
    return diffusers.Flux2Transformer2DModel(
        in_channels=4 * d["latent_channels"],
        num_layers=d["layers"],
        num_single_layers=d["single_layers"],
        attention_head_dim=sum(d["axes_dims"]),
        num_attention_heads=d["heads"],
        joint_attention_dim=len(d["out_layers"]) * d["text_hidden"],
        mlp_ratio=d["mlp_ratio"],
        axes_dims_rope=d["axes_dims"],
        rope_theta=d["rope_theta"],
        eps=d["norm_eps"],
        guidance_embeds=False,
    )


def autoencoder(d: dict) -> diffusers.AutoencoderKLFlux2:
    return diffusers.AutoencoderKLFlux2(
        **parts.vae_config(d),
        decoder_block_out_channels=d["vae_decoder_channels"],
        batch_norm_eps=d["batch_norm_eps"],
        sample_size=64,
    )


def build(d: dict, **more) -> dict:
    if not 0 < min(d["out_layers"]) <= max(d["out_layers"]) < d["text_layers"]:
        raise SystemExit(f"out-layers are {d['out_layers']}, expected 1 to {d['text_layers'] - 1}")
    tok = tokenizer.train(d["merges"])
    return {
        "scheduler": parts.by_size(d, use_dynamic_shifting=True),
        "vae": autoencoder(d),
        "text_encoder": transformers.Qwen3ForCausalLM(parts.qwen3_config(d, tok)),
        "tokenizer": tok,
        "transformer": transformer(d),
        **more,
    }


def draw(r: random.Random) -> dict:
    text_layers = r.randint(4, 6)
    vae = parts.draw_vae(r, r.randint(3, 4))
    return dict(
        heads=r.randint(1, 4),
        axes_dims=tuple(2 * r.randint(1, 3) for _ in range(4)),
        layers=r.randint(1, 2),
        single_layers=r.randint(1, 3),
        mlp_ratio=r.choice((2.0, 2.5, 3.0)),
        rope_theta=r.randint(100, 20000),
        norm_eps=r.choice((1e-6, 1e-5)),
        **parts.draw_qwen3(r, text_layers),
        out_layers=tuple(sorted(r.sample(range(1, text_layers), 3))),
        **vae,
        vae_decoder_channels=parts.draw_channels(r, vae["vae_norm_groups"], len(vae["vae_channels"])),
        batch_norm_eps=r.choice((1e-4, 1e-3)),
        shift=r.choice((1.0, 3.0)),
        base_shift=r.uniform(0.3, 0.7),
        max_shift=r.uniform(0.9, 1.4),
    )


def latents(pipe, height: int, width: int) -> tuple:
    scale = 2 * pipe.vae_scale_factor
    return 1, pipe.transformer.config.in_channels, height // scale, width // scale


def unpack(pipe, x, height: int, width: int):
    return x.mT.reshape(1, -1, *latents(pipe, height, width)[2:])


def arguments(pipe, guidance, negative) -> dict:
    index = Path(pipe.config["_name_or_path"], "model_index.json")
    layers = json.loads(index.read_text(encoding="utf-8")).get(OUT_LAYERS) if index.exists() else None
    return {OUT_LAYERS: tuple(layers)} if layers else {}


def embeddings(pipe) -> tuple:
    return arguments(pipe, None, None).get(OUT_LAYERS, (9, 18, 27))


def guided(pipe, guidance, negative) -> dict:
    return {"guidance_scale": guidance} | arguments(pipe, guidance, negative)


DISTILLED = Family(
    pipeline=diffusers.Flux2KleinPipeline,
    image_pipeline=None,
    inpaint_pipeline=diffusers.Flux2KleinInpaintPipeline,
    inpaint_references=(0, 1),
    inpaint_size=parts.whole_patches,
    inpaint_resized=True,
    inpaint_pastes=False,  # it cuts out the middle of its result instead of scaling it
    dims=dict(
        heads=3, axes_dims=(2, 4, 6, 4), layers=2, single_layers=2, mlp_ratio=3.0, rope_theta=2000, norm_eps=1e-6,
        text_hidden=32, text_intermediate=48, text_layers=5, text_heads=4, text_kv_heads=2, text_head_dim=16,
        text_rope_theta=1e6, text_norm_eps=1e-6, merges=300, out_layers=(1, 2, 4),
        vae_channels=(8, 16, 16), vae_decoder_channels=(8, 12, 16), vae_layers_per_block=1, vae_norm_groups=4,
        latent_channels=4, batch_norm_eps=1e-4, shift=3.0, base_shift=0.5, max_shift=1.15,
    ),
    full=dict(
        heads=24, axes_dims=(32, 32, 32, 32), layers=5, single_layers=20,
        text_hidden=2560, text_intermediate=9728, text_layers=36, text_heads=32, text_kv_heads=8, text_head_dim=128,
        out_layers=(9, 18, 27),
        vae_channels=(128, 256, 512, 512), vae_decoder_channels=(128, 256, 512, 512), vae_layers_per_block=2,
        vae_norm_groups=32, latent_channels=32,
    ),
    build=functools.partial(build, is_distilled=True),
    transformer=transformer,
    autoencoder=autoencoder,
    draw=draw,
    latents=latents,
    prompts=lambda args, kwargs: [{"embeds": kwargs["encoder_hidden_states"][0]}],
    arguments=guided,
    embeddings=embeddings,
    guidance=lambda r: 1.0,
    matches=lambda pipe: pipe.config.is_distilled,
    unpack=unpack,
    index=lambda d: {OUT_LAYERS: list(d["out_layers"])},
    references=(0, 1, 2),  # of sides of 64 at least; what is no multiple of the latents' patches is cropped
    text_encoders={"text_encoder": TextEncoder(kept=all_rows)},
    gains={
        r"^text_encoder\..*\.[qk]_proj\.weight$": 1.5,
        r"^transformer\.(\w+_modulation\w*|norm_out)\.linear\.weight$": 0.7,
    },
    small=(
        r"^transformer\.(x_embedder|context_embedder)\.",
        r"^transformer\..*\.(to_[qk]|add_[qk]_proj|to_out\.0|to_add_out|linear_out|to_qkv_mlp_proj)\.",
        parts.SMALL_QWEN3,
        *parts.SMALL_VAE,
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
    arguments=arguments,
    inpaint_pipeline=None,
    matches=lambda pipe: True,
)

FAMILIES = {"flux2-klein": DISTILLED, "flux2-klein-base": BASE, "flux2-klein-kv": KV}

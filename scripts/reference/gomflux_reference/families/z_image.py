"""Z-Image: a transformer of one stream over image and caption, Qwen3 as its text encoder, FLUX.1's autoencoder."""

import random

import diffusers
import transformers

from .. import schedules, tokenizer
from . import Family, autoencoders, parts, text_encoders


def transformer(d: dict) -> diffusers.ZImageTransformer2DModel:
    return diffusers.ZImageTransformer2DModel(
        in_channels=d["latent_channels"],
        dim=d["dim"],
        n_heads=d["heads"],
        n_kv_heads=d["heads"],
        n_layers=d["layers"],
        n_refiner_layers=d["refiner_layers"],
        norm_eps=d["norm_eps"],
        cap_feat_dim=d["text_hidden"],
        rope_theta=d["rope_theta"],
        axes_dims=list(d["axes_dims"]),
        axes_lens=list(d["axes_lens"]),
    )


def build(d: dict) -> dict:
    if d["dim"] != d["heads"] * sum(d["axes_dims"]):
        raise SystemExit(f"dim {d['dim']} is not heads {d['heads']} x the sum of axes-dims {sum(d['axes_dims'])}")
    tok = tokenizer.train(d["merges"])
    return {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=d["shift"]),
        "text_encoder": transformers.Qwen3Model(text_encoders.qwen3_config(d, tok)),
        "tokenizer": tok,
    }


def draw(r: random.Random) -> dict:
    attention = parts.draw_attention(r)
    return dict(
        **attention,
        dim=attention["heads"] * sum(attention["axes_dims"]),
        axes_lens=(r.randint(600, 2000), r.randint(64, 200), r.randint(64, 200)),
        refiner_layers=r.randint(1, 2),
        rope_theta=r.uniform(50, 1000),
        norm_eps=r.choice((1e-6, 1e-5, 3e-5)),
        **text_encoders.draw_qwen3(r, r.randint(2, 4)),
        **autoencoders.draw_kl(r, r.randint(2, 4)),
        **autoencoders.draw_scaling(r),
        shift=r.choice((1.0, 3.0, 6.0)),
    )


def latents(pipe, height: int, width: int) -> tuple:
    scale = pipe.vae_scale_factor
    return 1, pipe.transformer.config.in_channels, height // scale, width // scale


FAMILY = Family(
    pipeline=diffusers.ZImagePipeline,
    image_pipeline=diffusers.ZImageImg2ImgPipeline,
    inpaint_pipeline=diffusers.ZImageInpaintPipeline,
    inpaint_resized=True,
    dims=dict(
        dim=48, heads=3, axes_dims=(4, 6, 6), axes_lens=(1536, 128, 128), layers=2, refiner_layers=1,
        rope_theta=256.0, norm_eps=1e-5,
        **text_encoders.QWEN3, **autoencoders.KL_SCALED, shift=3.0,
    ),
    full=dict(
        dim=3840, heads=30, axes_dims=(32, 48, 48), axes_lens=(1536, 512, 512), layers=30, refiner_layers=2,
        **text_encoders.QWEN3_4B, **autoencoders.KL_16,
    ),
    build=build,
    transformer=transformer,
    autoencoder=autoencoders.kl,
    gains={
        r"^(transformer|text_encoder)\..*\.(to_[qk]|[qk]_proj)\.weight$": 1.5,
        r"\.adaLN_modulation\.": 0.7,
        r"_pad_token$": 0.5,
    },
    small=(
        r"^transformer\.(all_x_embedder|cap_embedder\.1|\w+_pad_token)",
        r"^transformer\..*\.((attention|ffn)_norm2|to_[qk])\.weight$",
        text_encoders.SMALL_QWEN3,
        *autoencoders.SMALL_KL,
    ),
    draw=draw,
    latents=latents,
    prompts=lambda args, kwargs: [{"embeds": embeds} for embeds in args[2]],
    encodings={"_encode_prompt": lambda result: {"embeds": result[0]}},
    guidance=lambda r: r.choice((0.0, round(r.uniform(0.5, 5), 2))),
    one_batch=True,
    negative_prompt=True,
    cfg={
        "cfg_normalization": lambda r: r.choice((1.0, round(r.uniform(0.5, 1.2), 2))),
        "cfg_truncation": lambda r: round(r.uniform(0.1, 0.9), 2),
    },
    schedulers=(schedules.HEUN, schedules.LINEAR),
    embeddings=lambda pipe: (pipe.text_encoder.config.num_hidden_layers - 1,),
    unrotated={"transformer": ("norm_q", "norm_k")},
)  # fmt: skip

FAMILIES = {"z-image": FAMILY}

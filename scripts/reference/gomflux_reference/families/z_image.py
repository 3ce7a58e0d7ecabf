"""Z-Image: a transformer of one stream over image and caption, Qwen3 as its text encoder, FLUX.1's autoencoder."""

import random

import diffusers
import transformers

from .. import schedules, tokenizer
from . import Family, parts


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
        "vae": parts.autoencoder_kl(d),
        "text_encoder": transformers.Qwen3Model(parts.qwen3_config(d, tok)),
        "tokenizer": tok,
        "transformer": transformer(d),
    }


def draw(r: random.Random) -> dict:
    heads, axes = r.randint(1, 4), tuple(2 * r.randint(1, 4) for _ in range(3))
    return dict(
        heads=heads,
        axes_dims=axes,
        dim=heads * sum(axes),
        axes_lens=(r.randint(600, 2000), r.randint(64, 200), r.randint(64, 200)),
        layers=r.randint(1, 3),
        refiner_layers=r.randint(1, 2),
        rope_theta=r.uniform(50, 1000),
        norm_eps=r.choice((1e-6, 1e-5, 3e-5)),
        **parts.draw_qwen3(r, r.randint(2, 4)),
        **parts.draw_vae(r, r.randint(2, 4)),
        **parts.draw_scaling(r),
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
        text_hidden=32, text_intermediate=48, text_layers=3, text_heads=4, text_kv_heads=2, text_head_dim=16,
        text_rope_theta=1e6, text_norm_eps=1e-6, merges=300,
        vae_channels=(8, 16, 16), vae_layers_per_block=1, vae_norm_groups=4, latent_channels=4,
        scaling_factor=0.3611, shift_factor=0.1159, shift=3.0,
    ),
    full=dict(
        dim=3840, heads=30, axes_dims=(32, 48, 48), axes_lens=(1536, 512, 512), layers=30, refiner_layers=2,
        text_hidden=2560, text_intermediate=9728, text_layers=36, text_heads=32, text_kv_heads=8, text_head_dim=128,
        vae_channels=(128, 256, 512, 512), vae_layers_per_block=2, vae_norm_groups=32, latent_channels=16,
    ),
    build=build,
    transformer=transformer,
    autoencoder=parts.autoencoder_kl,
    gains={
        r"^(transformer|text_encoder)\..*\.(to_[qk]|[qk]_proj)\.weight$": 1.5,
        r"\.adaLN_modulation\.": 0.7,
        r"_pad_token$": 0.5,
    },
    small=(
        r"^transformer\.(all_x_embedder|cap_embedder\.1|\w+_pad_token)",
        r"^transformer\..*\.((attention|ffn)_norm2|to_[qk])\.weight$",
        parts.SMALL_QWEN3,
        *parts.SMALL_VAE,
    ),
    draw=draw,
    latents=latents,
    prompts=lambda args, kwargs: [{"embeds": embeds} for embeds in args[2]],
    encodings={"_encode_prompt": lambda result: {"embeds": result[0]}},
    arguments=lambda pipe, guidance, negative: {"guidance_scale": guidance, "negative_prompt": negative},
    guidance=lambda r: r.choice((0.0, round(r.uniform(0.5, 5), 2))),
    one_batch=True,
    negative_prompt=True,
    schedulers=(schedules.HEUN, schedules.LINEAR),
    embeddings=lambda pipe: (pipe.text_encoder.config.num_hidden_layers - 1,),
    unrotated={"transformer": ("norm_q", "norm_k")},
)  # fmt: skip

FAMILIES = {"z-image": FAMILY}

"""Z-Image: a transformer of one stream over image and caption, Qwen3 as its text encoder, FLUX.1's autoencoder."""

import random

import diffusers
import transformers

from .. import tokenizer
from . import Family, autoencoder_kl


def build(d: dict) -> dict:
    if d["dim"] != d["heads"] * sum(d["axes_dims"]):
        raise SystemExit(f"dim {d['dim']} is not heads {d['heads']} x the sum of axes-dims {sum(d['axes_dims'])}")
    tok = tokenizer.train(d["merges"])
    return {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=d["shift"]),
        "vae": autoencoder_kl(d),
        "text_encoder": transformers.Qwen3Model(
            transformers.Qwen3Config(
                # More rows than tokens, as the published models have.
                vocab_size=-(-(len(tok) + 1) // 32) * 32,
                hidden_size=d["text_hidden"],
                intermediate_size=d["text_intermediate"],
                num_hidden_layers=d["text_layers"],
                num_attention_heads=d["text_heads"],
                num_key_value_heads=d["text_kv_heads"],
                head_dim=d["text_head_dim"],
                rms_norm_eps=d["text_norm_eps"],
                rope_parameters={"rope_type": "default", "rope_theta": d["text_rope_theta"]},
                max_position_embeddings=4096,
                tie_word_embeddings=True,
                bos_token_id=tok.pad_token_id,
                eos_token_id=tok.eos_token_id,
            )
        ),
        "tokenizer": tok,
        "transformer": diffusers.ZImageTransformer2DModel(
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
        ),
    }


def draw(r: random.Random) -> dict:
    heads, axes = r.randint(1, 4), tuple(2 * r.randint(1, 4) for _ in range(3))
    groups, levels = r.randint(1, 4), r.randint(2, 4)
    channels = sorted(groups * r.randint(1, 4) for _ in range(levels))
    kv_heads = r.randint(1, 3)
    text_layers = r.randint(2, 4)
    return dict(
        heads=heads,
        axes_dims=axes,
        dim=heads * sum(axes),
        axes_lens=(r.randint(600, 2000), r.randint(64, 200), r.randint(64, 200)),
        layers=r.randint(1, 3),
        refiner_layers=r.randint(1, 2),
        rope_theta=r.uniform(50, 1000),
        norm_eps=r.choice((1e-6, 1e-5, 3e-5)),
        text_hidden=4 * r.randint(4, 14),
        text_intermediate=8 * r.randint(4, 12),
        text_layers=text_layers,
        text_heads=kv_heads * r.randint(1, 3),
        text_kv_heads=kv_heads,
        text_head_dim=2 * r.randint(3, 10),
        text_rope_theta=10 ** r.uniform(4, 6.5),
        text_norm_eps=r.choice((1e-6, 2e-6, 1e-5)),
        merges=r.randint(150, 400),
        vae_channels=tuple(channels),
        vae_layers_per_block=r.randint(1, 2),
        vae_norm_groups=groups,
        latent_channels=2 * r.randint(2, 5),
        scaling_factor=r.uniform(0.2, 1.2),
        shift_factor=r.uniform(-0.3, 0.3),
        shift=r.choice((1.0, 3.0, 6.0)),
    )


def latents(pipe, height: int, width: int) -> tuple:
    scale = pipe.vae_scale_factor
    return 1, pipe.transformer.config.in_channels, height // scale, width // scale


FAMILY = Family(
    pipeline=diffusers.ZImagePipeline,
    image_pipeline=diffusers.ZImageImg2ImgPipeline,
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
    gains={
        r"^(transformer|text_encoder)\..*\.(to_[qk]|[qk]_proj)\.weight$": 1.5,
        r"\.adaLN_modulation\.": 0.7,
        r"_pad_token$": 0.5,
    },
    # Whatever writes to the stream that a norm reads: left at 1, that norm's epsilon could not be seen.
    small=(
        r"^transformer\.(all_x_embedder|cap_embedder\.1|\w+_pad_token)",
        r"^transformer\..*\.((attention|ffn)_norm2|to_[qk])\.weight$",
        r"^text_encoder\..*\.?(embed_tokens|[qk]_proj|o_proj|down_proj)\.weight$",
        r"^vae\..*\.(conv_in|conv1|conv2|to_out\.0|to_[qk])\.",
        r"^vae\..*\.(upsamplers|downsamplers)\.0\.conv\.bias$",
        r"^vae\..*\.conv_shortcut\.bias$",
    ),
    draw=draw,
    latents=latents,
    embeds=lambda pipe, args, kwargs: args[2],
    unrotated={"transformer": ("norm_q", "norm_k")},
)  # fmt: skip

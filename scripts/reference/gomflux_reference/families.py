"""What differs between model families: dimensions, classes, and how random weights are drawn.

A new family is a new entry in FAMILIES.
"""

from dataclasses import dataclass, field
from typing import Callable

import diffusers
import transformers

from . import tokenizer


@dataclass(frozen=True)
class Family:
    pipeline: type
    image_pipeline: type  # picture to picture
    dims: dict  # command-line flags of `tiny` and their defaults
    full: dict  # the same, where the published model has more
    build: Callable[[dict], dict]  # dims -> components by name, with any weights
    stepped: tuple = ("transformer",)  # components that run once per step
    gains: dict = field(default_factory=dict)  # pattern -> gain of the weights it matches (else 1)
    small: tuple = ()  # what the small-activations kind scales down


def autoencoder_kl(d: dict) -> diffusers.AutoencoderKL:
    levels = len(d["vae_channels"])
    return diffusers.AutoencoderKL(
        block_out_channels=d["vae_channels"],
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=d["vae_layers_per_block"],
        latent_channels=d["latent_channels"],
        norm_num_groups=d["vae_norm_groups"],
        sample_size=64,
        scaling_factor=d["scaling_factor"],
        shift_factor=d["shift_factor"],
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def z_image(d: dict) -> dict:
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


FAMILIES = {
    "z-image": Family(
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
        build=z_image,
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
    ),
}  # fmt: skip

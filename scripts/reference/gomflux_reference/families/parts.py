"""What several families have: autoencoders, text encoders, and random dimensions for them."""

import random

import diffusers
import transformers

# Of the small-activations kind. Whatever writes to the stream that a norm reads: left at 1, that norm's epsilon could
# not be seen.
SMALL_VAE = (
    r"^vae\..*\.(conv_in|conv1|conv2|to_out\.0|to_[qk])\.",
    r"^vae\..*\.(upsamplers|downsamplers)\.0\.conv\.bias$",
    r"^vae\..*\.conv_shortcut\.bias$",
)
SMALL_QWEN3 = r"^text_encoder\..*\.?(embed_tokens|[qk]_proj|o_proj|down_proj)\.weight$"


def vae_config(d: dict) -> dict:
    levels = len(d["vae_channels"])
    return dict(
        block_out_channels=d["vae_channels"],
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=d["vae_layers_per_block"],
        latent_channels=d["latent_channels"],
        norm_num_groups=d["vae_norm_groups"],
    )


def autoencoder_kl(d: dict) -> diffusers.AutoencoderKL:
    return diffusers.AutoencoderKL(
        **vae_config(d),
        sample_size=64,
        scaling_factor=d["scaling_factor"],
        shift_factor=d["shift_factor"],
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def draw_channels(r: random.Random, groups: int, levels: int) -> tuple:
    return tuple(sorted(groups * r.randint(1, 4) for _ in range(levels)))


def draw_vae(r: random.Random, levels: int) -> dict:
    groups = r.randint(1, 4)
    return dict(
        vae_channels=draw_channels(r, groups, levels),
        vae_layers_per_block=r.randint(1, 2),
        vae_norm_groups=groups,
        latent_channels=2 * r.randint(2, 5),
    )


def draw_scaling(r: random.Random) -> dict:
    return dict(scaling_factor=r.uniform(0.2, 1.2), shift_factor=r.uniform(-0.3, 0.3))


def qwen3_config(d: dict, tokenizer) -> transformers.Qwen3Config:
    return transformers.Qwen3Config(
        # More rows than tokens, as the published models have.
        vocab_size=-(-(len(tokenizer) + 1) // 32) * 32,
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
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def draw_qwen3(r: random.Random, layers: int) -> dict:
    kv_heads = r.randint(1, 3)
    return dict(
        text_hidden=4 * r.randint(4, 14),
        text_intermediate=8 * r.randint(4, 12),
        text_layers=layers,
        text_heads=kv_heads * r.randint(1, 3),
        text_kv_heads=kv_heads,
        text_head_dim=2 * r.randint(3, 10),
        text_rope_theta=10 ** r.uniform(4, 6.5),
        text_norm_eps=r.choice((1e-6, 2e-6, 1e-5)),
        merges=r.randint(150, 400),
    )


def whole_patches(pipe, width: int, height: int) -> tuple:
    """Returns a size rounded down to whole patches."""
    patch = 2 * pipe.vae_scale_factor
    return width // patch * patch, height // patch * patch


def by_size(d: dict, **more) -> diffusers.FlowMatchEulerDiscreteScheduler:
    """Returns a scheduler that can shift by the image's size, as FLUX's do, whether its config asks for it or not."""
    return diffusers.FlowMatchEulerDiscreteScheduler(
        shift=d["shift"], base_shift=d["base_shift"], max_shift=d["max_shift"], **more
    )

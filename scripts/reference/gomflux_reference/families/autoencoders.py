"""Autoencoders: small ones of some dimensions, random dimensions, and those of published ones."""

import math
import random

import diffusers

# Of the small-activations kind. Whatever writes to the stream that a norm reads: left at 1, that norm's epsilon could
# not be seen.
SMALL_KL = (
    r"^vae\..*\.(conv_in|conv1|conv2|to_out\.0|to_[qk])\.",
    r"^vae\..*\.(upsamplers|downsamplers)\.0\.conv\.bias$",
    r"^vae\..*\.conv_shortcut\.bias$",
)
SMALL_QWEN_IMAGE = (
    r"^vae\..*\.(conv_in|conv1|conv2|proj)\.",
    r"^vae\..*\.(conv_shortcut|resample\.1)\.bias$",
)

# Gains for Qwen-Image's: norms over channels are ill-conditioned where all of them are nearly zero, and two of three
# frames are zeros.
QWEN_IMAGE_BIASES = {r"^vae\.(?!decoder\.conv_out)": 7.0}
QWEN_IMAGE_GAINS = {r"^vae\..*(conv_in|conv_out|conv[12])\.weight$": math.sqrt(3)}

# Dimensions of small autoencoders, and of the published ones.
KL = dict(vae_channels=(8, 16, 16), vae_layers_per_block=1, vae_norm_groups=4, latent_channels=4)
KL_SCALED = KL | dict(scaling_factor=0.3611, shift_factor=0.1159)
KL_16 = dict(vae_channels=(128, 256, 512, 512), vae_layers_per_block=2, vae_norm_groups=32, latent_channels=16)
QWEN_IMAGE = dict(
    vae_channels=(8, 16, 16, 24), vae_layers_per_block=1,
    latents_mean=(-0.7571, 0.1075, 1.5508, 0.4134), latents_std=(2.8184, 1.4541, 0.7083, 2.6052),
)  # fmt: skip
QWEN_IMAGE_16 = dict(
    vae_channels=(96, 192, 384, 384), vae_layers_per_block=2,
    latents_mean=(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
                  -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    latents_std=(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652,
                 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)  # fmt: skip
KL_FLUX2 = KL | dict(vae_decoder_channels=(8, 12, 16), batch_norm_eps=1e-4)
KL_FLUX2_32 = KL_16 | dict(latent_channels=32, vae_decoder_channels=(128, 256, 512, 512))
QWEN_IMAGE_21 = dict(vae_channels=(4, 8, 8, 16, 16), vae_decoder_base=6, vae_layers_per_block=1, latent_channels=6)
QWEN_IMAGE_21_64 = dict(
    vae_channels=(96, 192, 384, 768, 768), vae_decoder_base=144, vae_layers_per_block=2, latent_channels=64
)


def kl_config(d: dict) -> dict:
    levels = len(d["vae_channels"])
    return dict(
        block_out_channels=d["vae_channels"],
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=d["vae_layers_per_block"],
        latent_channels=d["latent_channels"],
        norm_num_groups=d["vae_norm_groups"],
    )


def kl(d: dict) -> diffusers.AutoencoderKL:
    return diffusers.AutoencoderKL(
        **kl_config(d),
        sample_size=64,
        scaling_factor=d["scaling_factor"],
        shift_factor=d["shift_factor"],
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def kl_flux2(d: dict) -> diffusers.AutoencoderKLFlux2:
    return diffusers.AutoencoderKLFlux2(
        **kl_config(d),
        decoder_block_out_channels=d["vae_decoder_channels"],
        batch_norm_eps=d["batch_norm_eps"],
        sample_size=64,
    )


def draw_channels(r: random.Random, groups: int, levels: int) -> tuple:
    # With one or two channels in a group the norms amplify rounding: diffusers' own float32 was off by up to 7e-5
    # from float64 (L2, encoder at 512x512), with three or more by up to 1.4e-5.
    return tuple(sorted(groups * r.randint(3, 6) for _ in range(levels)))


def draw_kl(r: random.Random, levels: int) -> dict:
    groups = r.randint(1, 4)
    return dict(
        vae_channels=draw_channels(r, groups, levels),
        vae_layers_per_block=r.randint(1, 2),
        vae_norm_groups=groups,
        latent_channels=2 * r.randint(2, 5),
    )


def draw_kl_flux2(r: random.Random) -> dict:
    d = draw_kl(r, r.randint(3, 4))
    return d | dict(
        vae_decoder_channels=draw_channels(r, d["vae_norm_groups"], len(d["vae_channels"])),
        batch_norm_eps=r.choice((1e-4, 1e-3)),
    )


def draw_scaling(r: random.Random) -> dict:
    return dict(scaling_factor=r.uniform(0.2, 1.2), shift_factor=r.uniform(-0.3, 0.3))


def qwen_image(d: dict) -> diffusers.AutoencoderKLQwenImage:
    if len(d["latents_mean"]) != len(d["latents_std"]):
        raise SystemExit(f"latents-mean has {len(d['latents_mean'])} values, and latents-std {len(d['latents_std'])}")
    base = math.gcd(*d["vae_channels"])
    return diffusers.AutoencoderKLQwenImage(
        base_dim=base,
        z_dim=len(d["latents_mean"]),
        dim_mult=[c // base for c in d["vae_channels"]],
        num_res_blocks=d["vae_layers_per_block"],
        temperal_downsample=[level > 0 for level in range(len(d["vae_channels"]) - 1)],
        input_channels=d.get("image_channels", 3),
        latents_mean=list(d["latents_mean"]),
        latents_std=list(d["latents_std"]),
    )


def draw_qwen_image(r: random.Random, image_channels: int = 3) -> dict:
    base, mults = r.randint(8, 12), sorted(r.randint(1, 3) for _ in range(r.randint(3, 4)))
    channels = r.randint(image_channels + 1, image_channels + 4)  # a picture the pipelines take for latents of as many channels
    return dict(
        vae_channels=tuple(base * m for m in mults),
        vae_layers_per_block=r.randint(1, 2),
        latents_mean=tuple(round(r.uniform(-1.5, 1.5), 4) for _ in range(channels)),
        latents_std=tuple(round(r.uniform(0.5, 3), 4) for _ in range(channels)),
    )


def qwen_image_21(d: dict) -> diffusers.AutoencoderKLQwenImage21:
    r, base = random.Random(d["latent_channels"]), math.gcd(*d["vae_channels"])
    return diffusers.AutoencoderKLQwenImage21(
        base_dim=base,
        decoder_base_dim=d["vae_decoder_base"],
        z_dim=d["latent_channels"],
        dim_mult=[c // base for c in d["vae_channels"]],
        num_res_blocks=d["vae_layers_per_block"],
        latents_mean=[round(r.uniform(-2, 2), 4) for _ in range(d["latent_channels"])],
        latents_std=[round(r.uniform(1, 4), 4) for _ in range(d["latent_channels"])],
    )


def draw_qwen_image_21(r: random.Random) -> dict:
    channels = [2 * r.randint(2, 5)]
    for _ in range(3):
        channels.append(channels[-1] * r.choice((1, 1, 2)))
    return dict(
        vae_channels=(*channels, channels[-1]),
        vae_decoder_base=2 * r.randint(2, 5),
        vae_layers_per_block=r.randint(1, 2),
        latent_channels=r.randint(5, 12),
    )

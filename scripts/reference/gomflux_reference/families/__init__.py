"""What differs between model families. A new one is a module here that makes a FAMILY, and a name in FAMILIES."""

import importlib
from dataclasses import dataclass, field
from typing import Callable

import diffusers


@dataclass(frozen=True)
class Family:
    pipeline: type
    image_pipeline: type | None  # picture to picture
    dims: dict  # command-line flags of `tiny` and their defaults
    full: dict  # the same, where the published model has more
    build: Callable[[dict], dict]  # dims -> components by name, with any weights
    draw: Callable  # random.Random -> dims, all of them other than in dims, of a model that is quick to run
    latents: Callable  # pipe, height, width -> shape of the `latents` argument
    embeds: Callable  # pipe, positional and keyword arguments of the transformer -> its encoded prompts, in order
    arguments: Callable = lambda guidance: {"guidance_scale": guidance}  # of the pipeline's call
    stepped: tuple = ("transformer",)  # components that run once per step
    text_encoders: dict = field(default_factory=lambda: {"text_encoder": ""})  # and what ends their prompts' names
    unrotated: dict = field(default_factory=dict)  # see inner.observe
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


FAMILIES = {
    name: importlib.import_module(f"{__name__}.{name.replace('-', '_').replace('.', '_')}").FAMILY
    for name in ("z-image",)
}


def family_of(pipe) -> str:
    """The name of a pipeline's family."""
    for name, family in FAMILIES.items():
        if type(pipe) in (family.pipeline, family.image_pipeline):
            return name
    known = ", ".join(f.pipeline.__name__ for f in FAMILIES.values())
    raise SystemExit(f"{type(pipe).__name__} is not supported; these pipelines are: {known}")

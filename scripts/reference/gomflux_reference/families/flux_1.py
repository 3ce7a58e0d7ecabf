"""FLUX.1: a transformer of two streams, then one, CLIP and T5 as its text encoders, an autoencoder without quant convs.

schnell is distilled to few steps, dev has the guidance as an input, and a schedule that is shifted by the size.
Kontext is dev with an image to edit, whose tokens follow those of the image that is made. Fill is dev whose tokens have
the channels of the masked image and of the mask too.
"""

import dataclasses
import functools
import random
import sys
from contextlib import contextmanager
from unittest import mock

import diffusers
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

from .. import schedules
from . import Family, TextEncoder, all_rows, autoencoders, parts, text_encoders


def transformer(d: dict, guided: bool, fills: bool = False) -> diffusers.FluxTransformer2DModel:
    latents = 4 * d["latent_channels"]  # of a token
    mask = 4 * 4 ** (len(d["vae_channels"]) - 1)
    return diffusers.FluxTransformer2DModel(
        in_channels=2 * latents + mask if fills else latents,
        out_channels=latents if fills else None,
        **parts.attention(d),
        num_single_layers=d["single_layers"],
        joint_attention_dim=d["t5_hidden"],
        pooled_projection_dim=d["clip_hidden"],
        guidance_embeds=guided,
    )


def build(d: dict, guided: bool) -> dict:
    return {
        "scheduler": parts.by_size(d, use_dynamic_shifting=guided),
        **text_encoders.clip_and_t5(d),
    }


def draw(r: random.Random) -> dict:
    clip_heads, buckets = r.randint(1, 4), r.choice((8, 16, 32))
    return dict(
        **parts.draw_attention(r, layers=2),
        single_layers=r.randint(1, 3),
        **text_encoders.draw_clip_and_t5(r, clip_heads, buckets),
        **autoencoders.draw_kl(r, r.randint(2, 4)),
        **autoencoders.draw_scaling(r),
        **parts.draw_shift(r),
    )


def to_first_end(config, ids, mask) -> int:
    """CLIP's rows up to its first end token, which it pads with: no later one is seen by the row that is used."""
    end = ids.max() if config.eos_token_id == 2 else config.eos_token_id
    return int((ids[0] == end).int().argmax()) + 1


def before_pads(config, ids, mask) -> int:
    return int((ids != config.pad_token_id).sum())


def prompts(args, kwargs) -> list:
    return [{"embeds": kwargs["encoder_hidden_states"][0], "pooled_embeds": kwargs["pooled_projections"][0]}]


DEV = Family(
    pipeline=diffusers.FluxPipeline,
    image_pipeline=diffusers.FluxImg2ImgPipeline,
    inpaint_pipeline=diffusers.FluxInpaintPipeline,
    dims=dict(
        heads=3, axes_dims=(4, 6, 6), layers=2, single_layers=2,
        **text_encoders.CLIP_T5, **autoencoders.KL_SCALED, shift=3.0, base_shift=0.5, max_shift=1.15,
    ),
    full=dict(
        heads=24, axes_dims=(16, 56, 56), layers=19, single_layers=38,
        **text_encoders.CLIP_L_T5_XXL, **autoencoders.KL_16,
    ),
    build=functools.partial(build, guided=True),
    transformer=functools.partial(transformer, guided=True),
    autoencoder=autoencoders.kl,
    draw=draw,
    latents=parts.latents,
    prompts=prompts,
    encodings={
        "_get_clip_prompt_embeds": lambda result: {"pooled_embeds": result[0]},
        "_get_t5_prompt_embeds": lambda result: {"embeds": result[0]},
    },
    guidance=lambda r: round(r.uniform(1, 5), 2),
    negative_prompt=True,
    cfg={"true_cfg_scale": lambda r: round(r.uniform(1.2, 4), 2)},
    matches=lambda pipe: pipe.transformer.config.guidance_embeds,
    pack=parts.pack,
    unpack=lambda pipe, x, height, width: pipe._unpack_latents(x, height, width, pipe.vae_scale_factor),
    schedulers=(schedules.LINEAR,),
    text_encoders={
        "text_encoder": TextEncoder(valid=to_first_end),
        "text_encoder_2": TextEncoder("_2", valid=before_pads, kept=all_rows),
    },
    bare_tokenizers=("tokenizer",),
    gains={
        r"^text_encoder\..*\.[qk]_proj\.weight$": 1.5,
        r"^text_encoder_2\..*\.q\.weight$": 0.3,  # T5 does not scale its scores
        r"^transformer\..*\.(norm\d?|norm1_context|norm_out)\.linear\.weight$": 0.7,
    },
    small=(
        r"^transformer\.(x_embedder|context_embedder)\.",
        r"^transformer\..*\.(to_[qk]|add_[qk]_proj|to_out\.0|to_add_out|net\.2)\.",
        r"^transformer\.single.*\.proj_out\.",
        r"^text_encoder\..*(embedding\.weight|\.out_proj\.\w+|\.fc2\.\w+)$",
        r"^text_encoder_2\..*(shared|\.o|\.wo)\.weight$",
        *autoencoders.SMALL_KL,
    ),
)  # fmt: skip

SCHNELL = dataclasses.replace(
    DEV,
    dims=DEV.dims | {"shift": 1.0},
    build=functools.partial(build, guided=False),
    transformer=functools.partial(transformer, guided=False),
    guidance=lambda r: 0.0,
    matches=lambda pipe: not DEV.matches(pipe),
    schedulers=(schedules.HEUN, schedules.LINEAR),
)

# The pipeline's code lists the sizes that the image to edit may be resized to, each of about a megapixel. Small models
# name smaller ones in model_index.json, all widths and heights in a row.
PREFERRED = "preferred_sizes"


@contextmanager
def kontext(pipe):
    """Makes the pipeline choose among the model's own preferred sizes, and keep the height and width of its call."""
    cls, sizes = type(pipe), preferred_sizes(pipe)
    with (
        mock.patch.object(cls, "__call__", functools.partialmethod(keep_size, cls.__call__)),
        mock.patch.object(sys.modules[cls.__module__], "PREFERRED_KONTEXT_RESOLUTIONS", sizes),
    ):
        yield


def preferred_sizes(pipe) -> list:
    own = parts.option(pipe, PREFERRED)
    return list(zip(own[::2], own[1::2])) if own else PREFERRED_KONTEXT_RESOLUTIONS


def inpaint_size(pipe, width: int, height: int) -> tuple:
    """Returns the preferred size whose ratio is nearest to that of a size in whole patches."""
    width, height = parts.whole_patches(pipe, width, height)
    _, *chosen = min((abs(width / height - w / h), w, h) for w, h in preferred_sizes(pipe))
    return parts.whole_patches(pipe, *chosen)


def keep_size(pipe, call, **arguments):
    """Calls a pipeline that would bring any height and width to a megapixel, unless told another area."""
    return call(pipe, max_area=arguments["height"] * arguments["width"], **arguments)


def draw_kontext(r: random.Random) -> dict:
    return draw(r) | {PREFERRED: tuple(r.randint(24, 110) for _ in range(2 * r.randint(2, 6)))}


KONTEXT = dataclasses.replace(
    DEV,
    pipeline=diffusers.FluxKontextPipeline,
    image_pipeline=None,
    inpaint_pipeline=diffusers.FluxKontextInpaintPipeline,
    inpaint_references=(0, 1),
    inpaint_size=inpaint_size,
    inpaint_pastes=False,
    dims=DEV.dims | {PREFERRED: (56, 100, 68, 84, 76, 76, 84, 68, 100, 56)},
    full=DEV.full | {PREFERRED: tuple(side for size in PREFERRED_KONTEXT_RESOLUTIONS for side in size)},
    draw=draw_kontext,
    matches=lambda pipe: True,
    running=kontext,
    index=lambda d: {PREFERRED: list(d[PREFERRED])},
    references=(1,),
    reference_sides=(24, 140),
)

FILL = dataclasses.replace(
    DEV,
    pipeline=diffusers.FluxFillPipeline,
    image_pipeline=None,
    inpaint_pipeline=diffusers.FluxFillPipeline,
    fills=True,
    transformer=functools.partial(transformer, guided=True, fills=True),
    arguments=lambda pipe, guidance, negative: {"guidance_scale": guidance},
    guidance=lambda r: round(r.uniform(5, 40), 2),
    negative_prompt=False,
    cfg={},
    schedulers=(),  # inpainting is recorded with a model's own
    matches=lambda pipe: True,
)

FAMILIES = {"flux1-schnell": SCHNELL, "flux1-dev": DEV, "flux1-kontext": KONTEXT, "flux1-fill": FILL}

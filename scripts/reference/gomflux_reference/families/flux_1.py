"""FLUX.1: a transformer of two streams, then one, CLIP and T5 as its text encoders, an autoencoder without quant convs.

schnell is distilled to few steps, dev has the guidance as an input, and a schedule that is shifted by the size.
Kontext is dev with an image to edit, whose tokens follow those of the image that is made. Fill is dev whose tokens have
the channels of the masked image and of the mask too.
"""

import dataclasses
import functools
import json
import random
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import diffusers
import transformers
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

from .. import schedules, tokenizer
from . import Family, TextEncoder, all_rows, parts


def transformer(d: dict, guided: bool, fills: bool = False) -> diffusers.FluxTransformer2DModel:
    latents = 4 * d["latent_channels"]  # of a token
    mask = 4 * 4 ** (len(d["vae_channels"]) - 1)
    return diffusers.FluxTransformer2DModel(
        in_channels=2 * latents + mask if fills else latents,
        out_channels=latents if fills else None,
        num_layers=d["layers"],
        num_single_layers=d["single_layers"],
        attention_head_dim=sum(d["axes_dims"]),
        num_attention_heads=d["heads"],
        joint_attention_dim=d["t5_hidden"],
        pooled_projection_dim=d["clip_hidden"],
        guidance_embeds=guided,
        axes_dims_rope=d["axes_dims"],
    )


def build(d: dict, guided: bool, fills: bool = False) -> dict:
    clip, t5 = tokenizer.train_clip(d["clip_merges"]), tokenizer.train_t5(d["t5_pieces"])
    return {
        "scheduler": parts.by_size(d, use_dynamic_shifting=guided),
        "vae": parts.autoencoder_kl(d),
        "text_encoder": transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=len(clip),
                hidden_size=d["clip_hidden"],
                intermediate_size=d["clip_intermediate"],
                num_hidden_layers=d["clip_layers"],
                num_attention_heads=d["clip_heads"],
                layer_norm_eps=d["clip_norm_eps"],
                projection_dim=d["clip_hidden"],
                # as published, although the tokenizer has other ids: 2 stands for the row of the highest id
                bos_token_id=0,
                eos_token_id=2,
                pad_token_id=1,
            )
        ),
        "tokenizer": clip,
        "text_encoder_2": transformers.T5EncoderModel(
            transformers.T5Config(
                vocab_size=-(-(len(t5) + 1) // 32) * 32,
                d_model=d["t5_hidden"],
                d_kv=d["t5_head_dim"],
                d_ff=d["t5_intermediate"],
                num_layers=d["t5_layers"],
                num_heads=d["t5_heads"],
                relative_attention_num_buckets=d["t5_buckets"],
                relative_attention_max_distance=d["t5_max_distance"],
                layer_norm_epsilon=d["t5_norm_eps"],
                feed_forward_proj="gated-gelu",
                is_encoder_decoder=False,
                use_cache=False,
            )
        ),
        "tokenizer_2": t5,
        "transformer": transformer(d, guided, fills),
    }


def draw(r: random.Random) -> dict:
    clip_heads, buckets = r.randint(1, 4), r.choice((8, 16, 32))
    return dict(
        heads=r.randint(1, 4),
        axes_dims=tuple(2 * r.randint(1, 4) for _ in range(3)),
        layers=r.randint(1, 2),
        single_layers=r.randint(1, 3),
        clip_hidden=clip_heads * 2 * r.randint(3, 8),
        clip_intermediate=8 * r.randint(3, 10),
        clip_layers=r.randint(1, 3),
        clip_heads=clip_heads,
        clip_norm_eps=r.choice((1e-5, 3e-5)),
        clip_merges=r.randint(100, 300),
        t5_hidden=4 * r.randint(4, 14),
        t5_intermediate=8 * r.randint(3, 10),
        t5_layers=r.randint(1, 3),
        t5_heads=r.randint(1, 4),
        t5_head_dim=2 * r.randint(2, 9),
        t5_buckets=buckets,
        t5_max_distance=buckets * r.randint(2, 4),
        t5_norm_eps=r.choice((1e-6, 1e-5)),
        t5_pieces=r.randint(100, 400),
        **parts.draw_vae(r, r.randint(2, 4)),
        **parts.draw_scaling(r),
        shift=r.choice((1.0, 3.0)),
        base_shift=r.uniform(0.3, 0.7),
        max_shift=r.uniform(0.9, 1.4),
    )


def latents(pipe, height: int, width: int) -> tuple:
    scale = 2 * pipe.vae_scale_factor
    return 1, pipe.vae.config.latent_channels, 2 * (height // scale), 2 * (width // scale)


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
        clip_hidden=24, clip_intermediate=40, clip_layers=3, clip_heads=3, clip_norm_eps=1e-5, clip_merges=200,
        t5_hidden=32, t5_intermediate=48, t5_layers=3, t5_heads=4, t5_head_dim=10, t5_buckets=32, t5_max_distance=128,
        t5_norm_eps=1e-6, t5_pieces=300,
        vae_channels=(8, 16, 16), vae_layers_per_block=1, vae_norm_groups=4, latent_channels=4,
        scaling_factor=0.3611, shift_factor=0.1159, shift=3.0, base_shift=0.5, max_shift=1.15,
    ),
    full=dict(
        heads=24, axes_dims=(16, 56, 56), layers=19, single_layers=38,
        clip_hidden=768, clip_intermediate=3072, clip_layers=12, clip_heads=12,
        t5_hidden=4096, t5_intermediate=10240, t5_layers=24, t5_heads=64, t5_head_dim=64,
        vae_channels=(128, 256, 512, 512), vae_layers_per_block=2, vae_norm_groups=32, latent_channels=16,
    ),
    build=functools.partial(build, guided=True),
    transformer=functools.partial(transformer, guided=True),
    autoencoder=parts.autoencoder_kl,
    draw=draw,
    latents=latents,
    prompts=prompts,
    encodings={
        "_get_clip_prompt_embeds": lambda result: {"pooled_embeds": result[0]},
        "_get_t5_prompt_embeds": lambda result: {"embeds": result[0]},
    },
    arguments=lambda pipe, guidance, negative: {"guidance_scale": guidance},
    guidance=lambda r: round(r.uniform(1, 5), 2),
    matches=lambda pipe: pipe.transformer.config.guidance_embeds,
    pack=lambda pipe, x: pipe._pack_latents(x, *x.shape),
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
        *parts.SMALL_VAE,
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
    file = Path(pipe.config["_name_or_path"], "model_index.json")
    own = json.loads(file.read_text(encoding="utf-8")).get(PREFERRED) if file.exists() else None
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
    build=functools.partial(build, guided=True, fills=True),
    transformer=functools.partial(transformer, guided=True, fills=True),
    guidance=lambda r: round(r.uniform(5, 40), 2),
    schedulers=(),  # inpainting is recorded with a model's own
    matches=lambda pipe: True,
)

FAMILIES = {"flux1-schnell": SCHNELL, "flux1-dev": DEV, "flux1-kontext": KONTEXT, "flux1-fill": FILL}

"""Qwen-Image: a transformer of two streams, Qwen2.5-VL as its text encoder, and an autoencoder of videos for one frame.

The edit pipelines show their pictures to the text encoder as well: the first one a single picture, Plus several. The layered
one splits a picture into layers with alpha. Their latents, and those of the picture that they compose, are one below the other
here, and so are their images.
"""

import dataclasses
import functools
import math
import random
import sys
from contextlib import contextmanager
from unittest import mock

import diffusers
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint
from PIL import Image

from .. import schedules
from . import Family, autoencoders, parts, text_encoders

# What published models have the pipelines' code for, in pixels. Smaller ones say their own in model_index.json.
VAE_IMAGE_SIZE, CONDITION_IMAGE_SIZE = "vae_image_size", "condition_image_size"
AREAS = {VAE_IMAGE_SIZE: 1024 * 1024, CONDITION_IMAGE_SIZE: 384 * 384}


def transformer(d: dict, layered: bool = False) -> diffusers.QwenImageTransformer2DModel:
    z = len(d["latents_mean"])
    return diffusers.QwenImageTransformer2DModel(
        in_channels=4 * z,
        out_channels=z,
        **parts.attention(d),
        joint_attention_dim=text_encoders.qwen25_hidden(d),
        zero_cond_t=bool(d["zero_cond_t"]),
        use_additional_t_cond=layered,
        use_layer3d_rope=layered,
    )


def build(d: dict, edits: bool) -> dict:
    tok = parts.qwen_tokenizer(d["merges"])
    return {
        "scheduler": parts.qwen_scheduler(d),
        "text_encoder": text_encoders.qwen25_vl(d, tok),
        "tokenizer": tok,
    } | ({"processor": text_encoders.qwen2_vl_processor(d, tok)} if edits else {})


def draw(r: random.Random, zero_cond_t: tuple, image_channels: int = 3) -> dict:
    kv_heads, vision_layers, patch = r.randint(1, 3), r.randint(2, 4), r.choice((6, 8, 10, 14, 14, 14))
    lightning = dict(base_shift=math.log(3), max_shift=math.log(3), shift_terminal=0.0)
    return dict(
        **parts.draw_attention(r),
        zero_cond_t=r.choice(zero_cond_t),
        **text_encoders.draw_qwen25(r, kv_heads),
        **text_encoders.draw_qwen25_vision(r, vision_layers, patch),
        min_pixels=r.choice((3136, r.randint(2000, 9000))),
        max_pixels=r.choice((12845056, r.randint(9000, 12000))),
        vae_image_size=r.randint(40, 110) ** 2,
        condition_image_size=r.randint(40, 110) ** 2,
        **autoencoders.draw_qwen_image(r, image_channels),
        **parts.draw_shift(r),
        shift_terminal=round(r.uniform(0.01, 0.1), 3),
    ) | (lightning if r.random() < 0.2 else {})


def prepare(pipe):
    """Passes the types of tokens to the text encoder (mm_token_type_ids), which the pipelines forget.

    Without that transformers 5 counts positions along the prompt only, and not, as transformers 4 did and the models
    know it, over a picture's two axes.
    """

    def add_types(module, args, kwargs):
        if kwargs.get("pixel_values") is None:
            return None
        return args, kwargs | {"mm_token_type_ids": (kwargs["input_ids"] == module.config.image_token_id).long()}

    pipe.text_encoder.register_forward_pre_hook(add_types, with_kwargs=True)


@contextmanager
def running(pipe):
    """Makes the pipelines resize images to the areas in the model's own config."""
    module, areas = sys.modules[type(pipe).__module__], areas_of(pipe)
    calculate = module.calculate_dimensions
    with mock.patch.object(module, "calculate_dimensions", lambda area, ratio: calculate(areas.get(area, area), ratio)):
        yield


def areas_of(pipe) -> dict:
    """Returns the areas of the model's config by those of the pipelines' code."""
    return {usual: parts.option(pipe, name, usual) for name, usual in AREAS.items()}


def inpaint_size(pipe, width: int, height: int) -> tuple:
    """Returns a size of the area of edits."""
    area = areas_of(pipe)[AREAS[VAE_IMAGE_SIZE]]
    return parts.whole_patches(pipe, *pipeline_qwenimage_edit_inpaint.calculate_dimensions(area, width / height)[:2])


def without_effect(config) -> str:
    """Returns the modules that only lead to the text's stream after the last block, which is not used."""
    return rf"^transformer_blocks\.{config.num_layers - 1}\.(txt_mlp|attn\.(to_add_out|add_q_proj))\."


TEXT = Family(
    pipeline=diffusers.QwenImagePipeline,
    inpaint_pipeline=diffusers.QwenImageInpaintPipeline,
    dims=dict(
        heads=3, axes_dims=(4, 6, 6), layers=2, zero_cond_t=0,
        text_intermediate=48, text_layers=3, text_heads=4, text_kv_heads=2, text_mrope_section=(2, 3, 3),
        text_rope_theta=1e6, text_norm_eps=1e-6, merges=400,
        vision_heads=2, vision_head_dim=12, vision_intermediate=36, vision_layers=3, vision_full_layers=(1,),
        vision_patch=14, vision_window=56, min_pixels=3136, max_pixels=12845056,
        vae_image_size=80 * 80, condition_image_size=72 * 72,
        **autoencoders.QWEN_IMAGE, shift=1.0, base_shift=0.5, max_shift=0.9, shift_terminal=0.02,
    ),
    full=dict(
        heads=24, axes_dims=(16, 56, 56), layers=60,
        text_intermediate=18944, text_layers=28, text_heads=28, text_kv_heads=4, text_mrope_section=(16, 24, 24),
        vision_heads=16, vision_head_dim=80, vision_intermediate=3420, vision_layers=32,
        vision_full_layers=(7, 15, 23, 31), vision_window=112,
        vae_image_size=1024 * 1024, condition_image_size=384 * 384,
        **autoencoders.QWEN_IMAGE_16,
    ),
    build=functools.partial(build, edits=False),
    transformer=transformer,
    autoencoder=autoencoders.qwen_image,
    draw=functools.partial(draw, zero_cond_t=(0,)),
    latents=parts.latents,
    arguments=parts.true_cfg,
    guidance=lambda r: 1.0 if r.random() < 0.2 else round(r.uniform(1.5, 5), 2),
    prepare=prepare,
    pack=parts.pack,
    unpack=lambda pipe, x, height, width: pipe._unpack_latents(x, height, width, pipe.vae_scale_factor)[:, :, 0],
    negative_prompt=True,
    without_effect=without_effect,
    schedulers=(schedules.LINEAR,),
    bare_tokenizers=("tokenizer",),
    untapped=("vae*:in.*.*",),  # the caches of convolutions over time
    gains={
        **text_encoders.QWEN_VL_GAINS,
        r"^transformer\..*\.(img_mod\.1|txt_mod\.1|norm_out\.linear)\.weight$": 0.7,
        **autoencoders.QWEN_IMAGE_GAINS,
    },
    biases=autoencoders.QWEN_IMAGE_BIASES,
    small=(
        r"^transformer\.(img_in|txt_in)\.",
        r"^transformer\..*\.(to_[qk]|add_[qk]_proj|to_out\.0|to_add_out|net\.2)\.",
        text_encoders.SMALL_QWEN_VL,
        *autoencoders.SMALL_QWEN_IMAGE,
    ),
)  # fmt: skip

EDIT = dataclasses.replace(
    TEXT,
    pipeline=diffusers.QwenImageEditPipeline,
    inpaint_pipeline=diffusers.QwenImageEditInpaintPipeline,
    inpaint_size=inpaint_size,
    build=functools.partial(build, edits=True),
    index=lambda d: {VAE_IMAGE_SIZE: d[VAE_IMAGE_SIZE]},
    running=running,
    references=(1,),
    reference_sides=(24, 140),
)

PLUS = dataclasses.replace(
    EDIT,
    pipeline=diffusers.QwenImageEditPlusPipeline,
    inpaint_pipeline=None,
    draw=functools.partial(draw, zero_cond_t=(0, 1)),
    index=lambda d: {name: d[name] for name in AREAS},
    references=(1, 2, 3),
)


def draw_layered(r: random.Random) -> dict:
    return draw(r, (0,), 4) | dict(image_layers=r.randint(1, 3), resolution=r.randint(40, 110), image_channels=4)


def images(pipe) -> int:
    """Returns how many images the transformer makes: the layers, and what they compose."""
    return parts.option(pipe, "layers", 4) + 1


def latents_of_layers(pipe, height: int, width: int) -> tuple:
    _, c, h, w = parts.latents(pipe, height, width)
    return 1, c, images(pipe) * h, w


def pack_layers(pipe, x):
    b, c, h, w = x.shape
    n = images(pipe)
    x = x.reshape(b, c, n, h // n, w).transpose(1, 2)
    return pipe._pack_latents(x, b, c, h // n, w, n)


def unpack_layers(pipe, x, height: int, width: int):
    return pipe._unpack_latents(x, height, width, images(pipe) - 1, pipe.vae_scale_factor).flatten(2, 3)


@contextmanager
def running_layered(pipe):
    """Makes the pipeline work in the size that it is asked for, without a caption for an empty prompt, and return the layers in
    one image."""
    cls = type(pipe)
    module, call = sys.modules[cls.__module__], cls.__call__

    def sized(self, image, *args, height, width, **kwargs):
        with mock.patch.object(module, "calculate_dimensions", lambda area, ratio: (width, height)):
            result = call(self, image.convert("RGBA"), *args, **kwargs)
        result.images = [stacked(result.images[0])]
        return result

    with mock.patch.object(cls, "__call__", sized), mock.patch.object(cls, "get_image_caption", lambda *_, **__: ""):
        yield


def stacked(layers: list) -> Image.Image:
    """Returns images of one size one below the other."""
    width, height = layers[0].size
    image = Image.new(layers[0].mode, (width, len(layers) * height))
    for i, layer in enumerate(layers):
        image.paste(layer, (0, i * height))
    return image


def read_layers(pipe, file) -> Image.Image:
    return stacked([Image.open(file.with_stem(f"{file.stem}-{i}")) for i in range(1, images(pipe))])


LAYERED = dataclasses.replace(
    TEXT,
    pipeline=diffusers.QwenImageLayeredPipeline,
    inpaint_pipeline=None,
    dims=TEXT.dims | dict(
        image_layers=2, resolution=80, image_channels=4,
        latents_mean=(-0.7571, 0.1075, 1.5508, 0.4134, -0.2921), latents_std=(2.8184, 1.4541, 0.7083, 2.6052, 1.916),
    ),
    full=TEXT.full | dict(image_layers=4, resolution=640),
    build=functools.partial(build, edits=True),
    transformer=functools.partial(transformer, layered=True),
    draw=draw_layered,
    latents=latents_of_layers,
    pack=pack_layers,
    unpack=unpack_layers,
    index=lambda d: {"resolution": d["resolution"]},
    options={"layers": "image_layers"},
    running=running_layered,
    read=read_layers,
    references=(1,),
    reference_sides=(24, 140),
    transparent=True,
)  # fmt: skip

FAMILIES = {"qwen-image": TEXT, "qwen-image-edit": EDIT, "qwen-image-edit-plus": PLUS, "qwen-image-layered": LAYERED}

"""Krea 2: a transformer of one stream that fuses layers of a Qwen3-VL, and Qwen-Image's autoencoder.

The distilled model (Turbo) knows no guidance and shifts sigmas by a constant, the raw one by the image's size.
"""

import dataclasses
import functools
import random
from contextlib import contextmanager
from unittest import mock

import diffusers
import torch

from . import Family, autoencoders, parts, text_encoders


def transformer(d: dict) -> diffusers.Krea2Transformer2DModel:
    return diffusers.Krea2Transformer2DModel(
        in_channels=4 * len(d["latents_mean"]),
        **parts.attention(d),
        num_key_value_heads=d["kv_heads"],
        intermediate_size=d["intermediate"],
        timestep_embed_dim=d["time_dim"],
        text_hidden_dim=d["text_hidden"],
        num_text_layers=len(d["select_layers"]),
        text_num_attention_heads=d["fusion_heads"],
        text_num_key_value_heads=d["fusion_kv_heads"],
        text_intermediate_size=d["fusion_intermediate"],
        num_layerwise_text_blocks=d["layerwise_blocks"],
        num_refiner_text_blocks=d["refiner_blocks"],
        rope_theta=d["rope_theta"],
        norm_eps=d["norm_eps"],
    )


def build(d: dict, is_distilled: bool) -> dict:
    parts.check_layers(d, "select_layers")
    tok = parts.qwen_tokenizer(d["merges"])
    return {
        "scheduler": parts.by_size(d, use_dynamic_shifting=True, max_image_seq_len=6400),
        "text_encoder": text_encoders.qwen3_vl(d, tok).model,
        "tokenizer": tok,
        "text_encoder_select_layers": d["select_layers"],
        "is_distilled": is_distilled,
    }


def draw(r: random.Random) -> dict:
    text_layers, kv_heads, fusion_kv_heads = r.randint(3, 5), r.randint(1, 3), r.randint(1, 2)
    fusion_heads = fusion_kv_heads * r.randint(1, 2)
    return dict(
        **parts.draw_attention(r, heads=kv_heads * r.randint(1, 3)),
        kv_heads=kv_heads,
        intermediate=4 * r.randint(5, 20),
        time_dim=256,  # torch rounds the sinusoids of other sizes differently
        rope_theta=r.uniform(100, 5000),
        norm_eps=r.choice((1e-6, 1e-5, 3e-5)),
        **text_encoders.draw_qwen3(r, text_layers),
        **text_encoders.draw_qwen3_vision(r, layers=1),
        select_layers=tuple(sorted(r.sample(range(1, text_layers), r.randint(2, text_layers - 1)))),
        fusion_heads=fusion_heads,
        fusion_kv_heads=fusion_kv_heads,
        fusion_intermediate=4 * r.randint(4, 12),
        layerwise_blocks=r.randint(1, 2),
        refiner_blocks=r.randint(1, 2),
        **parts.draw_shift(r),
        **autoencoders.draw_qwen_image(r),
    ) | {"merges": r.randint(330, 500), "text_hidden": 4 * fusion_heads * r.randint(2, 4)}


@contextmanager
def running(pipe):
    """Leaves out the padding, which the pipeline hides from all other tokens: see selftest.unpadded."""
    tokenizer = type(pipe.tokenizer)
    call = tokenizer.__call__

    def unpadded(self, *args, **kwargs):
        return call(self, *args, **kwargs | {"padding": False})

    def own_length(module, args, kwargs):  # the pipeline has the positions for the prompt's length only
        image = kwargs["position_ids"][-kwargs["hidden_states"].shape[1] :]
        return args, kwargs | {"position_ids": torch.cat([image.new_zeros(kwargs["encoder_hidden_states"].shape[1], 3), image])}

    handle = pipe.transformer.register_forward_pre_hook(own_length, prepend=True, with_kwargs=True)
    try:
        with mock.patch.object(tokenizer, "__call__", unpadded):
            yield
    finally:
        handle.remove()


TURBO = Family(
    pipeline=diffusers.Krea2Pipeline,
    dims=dict(
        heads=4, kv_heads=2, axes_dims=(4, 6, 6), layers=2, intermediate=72, time_dim=32, rope_theta=1000.0, norm_eps=1e-5,
        **text_encoders.QWEN3_VL | text_encoders.UNUSED_VISION | dict(text_layers=4, merges=400),
        select_layers=(1, 2, 3), fusion_heads=2, fusion_kv_heads=2, fusion_intermediate=40, layerwise_blocks=1,
        refiner_blocks=1,
        **autoencoders.QWEN_IMAGE, shift=1.0, base_shift=0.5, max_shift=1.15,
    ),
    full=dict(
        heads=48, kv_heads=12, axes_dims=(32, 48, 48), layers=28, intermediate=16384, time_dim=256,
        **text_encoders.QWEN3_4B,
        select_layers=(2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35), fusion_heads=20, fusion_kv_heads=20,
        fusion_intermediate=6912, layerwise_blocks=2, refiner_blocks=2,
        **autoencoders.QWEN_IMAGE_16,
    ),
    build=functools.partial(build, is_distilled=True),
    transformer=transformer,
    autoencoder=autoencoders.qwen_image,
    draw=draw,
    latents=parts.latents,
    embeddings=lambda pipe: tuple(pipe.text_encoder_select_layers),
    guidance=lambda r: 0.0,
    matches=lambda pipe: pipe.config.is_distilled,
    running=running,
    pack=parts.pack,
    unpack=lambda pipe, x, height, width: pipe._unpack_latents(x, height, width)[:, :, 0],
    bare_tokenizers=("tokenizer",),
    # the mask of padding, and the caches of convolutions over time
    untapped=("transformer*:in.*attention_mask", "transformer*:in.3", "vae*:in.*.*"),
    gains={
        r"^transformer\..*\.to_[qk]\.weight$": 1.5, r"\.time_mod_proj\.weight$": 0.7,
        **text_encoders.QWEN_VL_GAINS, **autoencoders.QWEN_IMAGE_GAINS,
    },
    biases=autoencoders.QWEN_IMAGE_BIASES,
    minus_one=(r"^transformer\..*norm",),
    small=(
        r"^transformer\.(img_in|txt_in)\.", r"^transformer\..*\.(to_[qk]|to_out\.0|down)\.",
        text_encoders.SMALL_QWEN_VL, *autoencoders.SMALL_QWEN_IMAGE,
    ),
)  # fmt: skip

RAW = dataclasses.replace(
    TURBO,
    build=functools.partial(build, is_distilled=False),
    guidance=lambda r: r.choice((0.0, round(r.uniform(0.5, 5), 2))),
    matches=lambda pipe: not TURBO.matches(pipe),
    negative_prompt=True,
)

FAMILIES = {"krea-2": TURBO, "krea-2-raw": RAW}

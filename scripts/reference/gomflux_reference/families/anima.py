"""Anima: Cosmos' transformer for images, whose text T5's tokens and a Qwen3 make, and Qwen-Image's autoencoder.

It is a modular pipeline. Image-to-image is a choice of blocks of the same class.
"""

import random
import sys
from contextlib import contextmanager
from unittest import mock

import diffusers
import torch
import transformers

from .. import tokenizer
from . import Family, TextEncoder, autoencoders, parts, text_encoders


def transformer(d: dict) -> diffusers.CosmosTransformer3DModel:
    channels = len(d["latents_mean"])
    return diffusers.CosmosTransformer3DModel(
        in_channels=channels,
        out_channels=channels,
        num_attention_heads=d["heads"],
        attention_head_dim=d["head_dim"],
        num_layers=d["layers"],
        mlp_ratio=d["mlp_ratio"],
        text_embed_dim=d["text_dim"],
        adaln_lora_dim=d["adaln_dim"],
        rope_scale=list(d["rope_scale"]),
        extra_pos_embed_type=None,
    )


def build(d: dict) -> dict:
    tok, t5 = tokenizer.train(d["merges"]), tokenizer.train_t5(d["t5_pieces"])
    return {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=d["shift"]),
        "text_encoder": transformers.Qwen3Model(text_encoders.qwen3_config(d, tok)),
        "tokenizer": tok,
        "t5_tokenizer": t5,
        "text_conditioner": diffusers.AnimaTextConditioner(
            source_dim=d["text_hidden"],
            target_dim=d["text_dim"],
            model_dim=d["conditioner_dim"],
            num_layers=d["conditioner_layers"],
            num_attention_heads=d["conditioner_heads"],
            mlp_ratio=d["conditioner_mlp_ratio"],
            target_vocab_size=text_encoders.vocabulary(t5),
            min_sequence_length=d["min_length"],
        ),
    }


def draw(r: random.Random) -> dict:
    heads = r.randint(1, 3)
    return dict(
        heads=r.randint(1, 3),
        head_dim=2 * r.randint(9, 16),
        layers=r.randint(1, 3),
        mlp_ratio=r.choice((2.0, 2.5, 4.0)),
        text_dim=4 * r.randint(3, 9),
        adaln_dim=r.randint(4, 16),
        rope_scale=(r.choice((1.0, 2.0)), r.choice((1.0, 4.0)), r.choice((1.0, 3.0, 4.0))),
        conditioner_heads=heads,
        conditioner_dim=heads * 4 * r.randint(2, 5),
        conditioner_layers=r.randint(1, 2),
        conditioner_mlp_ratio=r.choice((2.0, 4.0)),
        min_length=r.randint(8, 60),
        t5_pieces=r.randint(100, 400),
        **text_encoders.draw_qwen3(r, r.randint(2, 3)),
        **autoencoders.draw_qwen_image(r),
        shift=r.choice((1.0, 3.0)),
    )


@contextmanager
def running(pipe):
    """Leaves out the text encoder for an empty prompt. The pipeline gives it a token, which it masks, and multiplies what
    comes of it by zero: see selftest.empty_prompt."""
    step = sys.modules["diffusers.modular_pipelines.anima.encoders"].AnimaTextEncoderStep
    inner = step._get_qwen_prompt_embeds

    def embeds(components, prompt, max_sequence_length, device, dtype):
        texts = [prompt] if isinstance(prompt, str) else prompt
        if any(texts):
            return inner(components, prompt, max_sequence_length, device, dtype)
        shape = len(texts), 1
        return torch.zeros(*shape, components.text_encoder.config.hidden_size, dtype=dtype), torch.zeros(shape, dtype=torch.long)

    with mock.patch.object(step, "_get_qwen_prompt_embeds", staticmethod(embeds)):
        yield


def prompts_of(state, positive: str) -> list:
    found = (getattr(state, positive, None), getattr(state, f"negative_{positive}", None))
    return [x[0] for x in found if x is not None]


def embeddings(state) -> list:
    return [{"embeds": x} for x in prompts_of(state, "prompt_embeds")]


FAMILY = Family(
    pipeline=diffusers.AnimaModularPipeline,
    image_pipeline=diffusers.AnimaModularPipeline,
    dims=dict(
        heads=2, head_dim=20, layers=2, mlp_ratio=4.0, text_dim=24, adaln_dim=8, rope_scale=(1.0, 4.0, 4.0),
        conditioner_heads=2, conditioner_dim=24, conditioner_layers=2, conditioner_mlp_ratio=4.0, min_length=24,
        t5_pieces=300, **text_encoders.QWEN3, **autoencoders.QWEN_IMAGE, shift=3.0,
    ),
    full=dict(
        heads=16, head_dim=128, layers=28, text_dim=1024, adaln_dim=256,
        conditioner_heads=16, conditioner_dim=1024, conditioner_layers=6, min_length=512,
        **text_encoders.QWEN3_06B, **autoencoders.QWEN_IMAGE_16,
    ),
    build=build,
    transformer=transformer,
    autoencoder=autoencoders.qwen_image,
    draw=draw,
    latents=parts.latents,
    pack=lambda pipe, x: x[:, :, None],
    unpack=lambda pipe, x, height, width: x[:, :, 0],
    arguments=parts.guider,
    encodings={
        "text_encoder": lambda state: [{"states": x} for x in prompts_of(state, "qwen_prompt_embeds")],
        "denoise.text2image.text_conditioning": embeddings,
        "denoise.img2img.text_conditioning": embeddings,
    },
    guidance=lambda r: 1.0 if r.random() < 0.2 else round(r.uniform(1.5, 5), 2),
    negative_prompt=True,
    running=running,
    text_encoders={
        "text_encoder": TextEncoder(), "text_conditioner": TextEncoder("_2", ids="target_input_ids"),
    },
    untapped=("vae*:in.*.*",),  # the caches of convolutions over time
    unrotated={"text_conditioner": ("q_norm", "k_norm")},
    gains={
        r"^(transformer|text_encoder|text_conditioner)\..*\.(to_[qk]|[qk]_proj)\.weight$": 1.5,
        r"^transformer\..*(t_embedder|norm\w+)\.linear_2\.weight$": 0.7,
        **autoencoders.QWEN_IMAGE_GAINS,
    },
    biases=autoencoders.QWEN_IMAGE_BIASES,
    small=(
        r"^transformer\.patch_embed\.", r"^transformer\..*\.(to_[qk]|to_out\.0|net\.2)\.",
        r"^text_conditioner\.(embed|in_proj|out_proj)\.", r"^text_conditioner\..*\.([qko]_proj|mlp\.2)\.",
        text_encoders.SMALL_QWEN3, *autoencoders.SMALL_QWEN_IMAGE,
    ),
)  # fmt: skip

FAMILIES = {"anima": FAMILY}

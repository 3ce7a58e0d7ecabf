"""Qwen-Image: a transformer of two streams, Qwen2.5-VL as its text encoder, and an autoencoder of videos for one frame.

The edit pipelines show their pictures to the text encoder as well: the first one a single picture, Plus several.
"""

import dataclasses
import functools
import json
import math
import random
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import diffusers
import transformers
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint

from .. import schedules, tokenizer
from . import Family, parts

# What published models have the pipelines' code for, in pixels. Smaller ones say their own in model_index.json.
VAE_IMAGE_SIZE, CONDITION_IMAGE_SIZE = "vae_image_size", "condition_image_size"
AREAS = {VAE_IMAGE_SIZE: 1024 * 1024, CONDITION_IMAGE_SIZE: 384 * 384}

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip


def prompt_templates() -> list[tuple[str, int]]:
    """Returns the template before images and prompt, and how many of its tokens the pipelines drop."""
    pipes = diffusers.QwenImagePipeline(*[None] * 5), diffusers.QwenImageEditPlusPipeline(*[None] * 6)
    return [(p.prompt_template_encode.split("{}")[0], p.prompt_template_encode_start_idx) for p in pipes]


def trained(merges: int):
    """A tokenizer to which each word of the templates is one token: the pipelines count on their number."""
    templates = prompt_templates()
    tok = tokenizer.train(merges, [text for text, _ in templates] * 40 + tokenizer.CORPUS, SPECIAL)
    for text, dropped in templates:
        if (n := len(tok(text).input_ids)) != dropped:
            raise SystemExit(f"{merges} merges are too few: a template has {n} tokens, expected {dropped}")
    return tok


def text_hidden(d: dict) -> int:
    return 2 * sum(d["text_mrope_section"]) * d["text_heads"]


def text_encoder(d: dict, tok) -> transformers.Qwen2_5_VLForConditionalGeneration:
    hidden = text_hidden(d)
    image, video, start, end = tok.convert_tokens_to_ids(
        ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(
            text_config=dict(
                # More rows than tokens, as the published models have.
                vocab_size=-(-(len(tok) + 1) // 32) * 32,
                hidden_size=hidden,
                intermediate_size=d["text_intermediate"],
                num_hidden_layers=d["text_layers"],
                num_attention_heads=d["text_heads"],
                num_key_value_heads=d["text_kv_heads"],
                rms_norm_eps=d["text_norm_eps"],
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": d["text_rope_theta"],
                    "mrope_section": list(d["text_mrope_section"]),
                },
                max_position_embeddings=128000,
                bos_token_id=tok.pad_token_id,
                eos_token_id=tok.eos_token_id,
            ),
            vision_config=dict(
                depth=d["vision_layers"],
                hidden_size=d["vision_heads"] * d["vision_head_dim"],
                intermediate_size=d["vision_intermediate"],
                num_heads=d["vision_heads"],
                out_hidden_size=hidden,
                patch_size=d["vision_patch"],
                window_size=d["vision_window"],
                fullatt_block_indexes=list(d["vision_full_layers"]),
                tokens_per_second=2,
            ),
            image_token_id=image,
            video_token_id=video,
            vision_start_token_id=start,
            vision_end_token_id=end,
            tie_word_embeddings=False,
        )
    )


def processor(d: dict, tok) -> transformers.Qwen2VLProcessor:
    pixels = dict(
        size={"shortest_edge": d["min_pixels"], "longest_edge": d["max_pixels"]}, patch_size=d["vision_patch"]
    )
    return transformers.Qwen2VLProcessor(
        transformers.Qwen2VLImageProcessor(**pixels), tok, transformers.Qwen2VLVideoProcessor(**pixels)
    )


def transformer(d: dict) -> diffusers.QwenImageTransformer2DModel:
    z = len(d["latents_mean"])
    return diffusers.QwenImageTransformer2DModel(
        in_channels=4 * z,
        out_channels=z,
        num_layers=d["layers"],
        attention_head_dim=sum(d["axes_dims"]),
        num_attention_heads=d["heads"],
        joint_attention_dim=text_hidden(d),
        axes_dims_rope=list(d["axes_dims"]),
        zero_cond_t=bool(d["zero_cond_t"]),
    )


def autoencoder(d: dict) -> diffusers.AutoencoderKLQwenImage:
    base = math.gcd(*d["vae_channels"])
    return diffusers.AutoencoderKLQwenImage(
        base_dim=base,
        z_dim=len(d["latents_mean"]),
        dim_mult=[c // base for c in d["vae_channels"]],
        num_res_blocks=d["vae_layers_per_block"],
        temperal_downsample=[level > 0 for level in range(len(d["vae_channels"]) - 1)],
        latents_mean=list(d["latents_mean"]),
        latents_std=list(d["latents_std"]),
    )


def build(d: dict, edits: bool) -> dict:
    if len(d["latents_mean"]) != len(d["latents_std"]):
        raise SystemExit(f"latents-mean has {len(d['latents_mean'])} values, and latents-std {len(d['latents_std'])}")
    tok = trained(d["merges"])
    return {
        "scheduler": parts.by_size(
            d, use_dynamic_shifting=True, max_image_seq_len=8192, shift_terminal=d["shift_terminal"] or None
        ),
        "vae": autoencoder(d),
        "text_encoder": text_encoder(d, tok),
        "tokenizer": tok,
        "transformer": transformer(d),
    } | ({"processor": processor(d, tok)} if edits else {})


def draw(r: random.Random, zero_cond_t: tuple) -> dict:
    kv_heads, vision_layers, patch = r.randint(1, 3), r.randint(2, 4), r.choice((6, 8, 10, 14, 14, 14))
    base, mults = r.randint(8, 12), sorted(r.randint(1, 3) for _ in range(r.randint(3, 4)))
    channels = r.randint(4, 7)  # a picture of three the pipelines take for latents of as many
    lightning = r.random() < 0.2
    return dict(
        heads=r.randint(1, 4),
        axes_dims=tuple(2 * r.randint(1, 4) for _ in range(3)),
        layers=r.randint(1, 3),
        zero_cond_t=r.choice(zero_cond_t),
        text_intermediate=8 * r.randint(4, 12),
        text_layers=r.randint(2, 4),
        text_heads=kv_heads * r.randint(1, 3),
        text_kv_heads=kv_heads,
        text_mrope_section=tuple(r.randint(1, 5) for _ in range(3)),
        text_rope_theta=10 ** r.uniform(4, 6.5),
        text_norm_eps=r.choice((1e-6, 2e-6, 1e-5)),
        merges=r.randint(330, 500),
        vision_heads=r.randint(1, 4),
        vision_head_dim=4 * r.randint(1, 5),
        vision_intermediate=4 * r.randint(5, 15),
        vision_layers=vision_layers,
        # at least one of each kind
        vision_full_layers=tuple(sorted(r.sample(range(vision_layers), r.randint(1, vision_layers - 1)))),
        vision_patch=patch,
        vision_window=2 * patch * r.randint(1, 4),
        min_pixels=r.choice((3136, r.randint(2000, 9000))),
        max_pixels=r.choice((12845056, r.randint(9000, 12000))),
        vae_image_size=r.randint(40, 110) ** 2,
        condition_image_size=r.randint(40, 110) ** 2,
        vae_channels=tuple(base * m for m in mults),
        vae_layers_per_block=r.randint(1, 2),
        latents_mean=tuple(round(r.uniform(-1.5, 1.5), 4) for _ in range(channels)),
        latents_std=tuple(round(r.uniform(0.5, 3), 4) for _ in range(channels)),
        shift=r.choice((1.0, 3.0)),
        base_shift=math.log(3) if lightning else r.uniform(0.3, 0.7),
        max_shift=math.log(3) if lightning else r.uniform(0.8, 1.4),
        shift_terminal=0.0 if lightning else round(r.uniform(0.01, 0.1), 3),
    )


def latents(pipe, height: int, width: int) -> tuple:
    scale = 2 * pipe.vae_scale_factor
    return 1, pipe.vae.config.z_dim, 2 * (height // scale), 2 * (width // scale)


def index(d: dict, *names) -> dict:
    return {name: d[name] for name in names}


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
    file = Path(pipe.config["_name_or_path"], "model_index.json")
    said = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {usual: said.get(name, usual) for name, usual in AREAS.items()}


def inpaint_size(pipe, width: int, height: int) -> tuple:
    """Returns a size of the area of edits."""
    area = areas_of(pipe)[AREAS[VAE_IMAGE_SIZE]]
    return parts.whole_patches(pipe, *pipeline_qwenimage_edit_inpaint.calculate_dimensions(area, width / height)[:2])


def without_effect(config) -> str:
    """Returns the modules that only lead to the text's stream after the last block, which is not used."""
    return rf"^transformer_blocks\.{config.num_layers - 1}\.(txt_mlp|attn\.(to_add_out|add_q_proj))\."


TEXT = Family(
    pipeline=diffusers.QwenImagePipeline,
    image_pipeline=None,
    inpaint_pipeline=diffusers.QwenImageInpaintPipeline,
    dims=dict(
        heads=3, axes_dims=(4, 6, 6), layers=2, zero_cond_t=0,
        text_intermediate=48, text_layers=3, text_heads=4, text_kv_heads=2, text_mrope_section=(2, 3, 3),
        text_rope_theta=1e6, text_norm_eps=1e-6, merges=400,
        vision_heads=2, vision_head_dim=12, vision_intermediate=36, vision_layers=3, vision_full_layers=(1,),
        vision_patch=14, vision_window=56, min_pixels=3136, max_pixels=12845056,
        vae_image_size=80 * 80, condition_image_size=72 * 72,
        vae_channels=(8, 16, 16, 24), vae_layers_per_block=1,
        latents_mean=(-0.7571, 0.1075, 1.5508, 0.4134), latents_std=(2.8184, 1.4541, 0.7083, 2.6052),
        shift=1.0, base_shift=0.5, max_shift=0.9, shift_terminal=0.02,
    ),
    full=dict(
        heads=24, axes_dims=(16, 56, 56), layers=60,
        text_intermediate=18944, text_layers=28, text_heads=28, text_kv_heads=4, text_mrope_section=(16, 24, 24),
        vision_heads=16, vision_head_dim=80, vision_intermediate=3420, vision_layers=32,
        vision_full_layers=(7, 15, 23, 31), vision_window=112,
        vae_image_size=1024 * 1024, condition_image_size=384 * 384,
        vae_channels=(96, 192, 384, 384), vae_layers_per_block=2,
        latents_mean=(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
                      -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
        latents_std=(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652,
                     1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
    ),
    build=functools.partial(build, edits=False),
    transformer=transformer,
    autoencoder=autoencoder,
    draw=functools.partial(draw, zero_cond_t=(0,)),
    latents=latents,
    prompts=lambda args, kwargs: [{"embeds": kwargs["encoder_hidden_states"][0]}],
    arguments=lambda pipe, guidance, negative: {"true_cfg_scale": guidance, "negative_prompt": negative},
    guidance=lambda r: 1.0 if r.random() < 0.2 else round(r.uniform(1.5, 5), 2),
    prepare=prepare,
    pack=lambda pipe, x: pipe._pack_latents(x, *x.shape),
    unpack=lambda pipe, x, height, width: pipe._unpack_latents(x, height, width, pipe.vae_scale_factor)[:, :, 0],
    negative_prompt=True,
    without_effect=without_effect,
    schedulers=(schedules.LINEAR,),
    bare_tokenizers=("tokenizer",),
    untapped=("vae*:in.*.*",),  # the caches of convolutions over time
    gains={
        r"^text_encoder\..*\.([qk]_proj|qkv)\.weight$": 1.5,
        r"^transformer\..*\.(img_mod\.1|txt_mod\.1|norm_out\.linear)\.weight$": 0.7,
        r"^vae\..*(conv_in|conv_out|conv[12])\.weight$": math.sqrt(3),  # two of three frames are zeros
    },
    # Norms over channels are ill-conditioned where all of them are nearly zero.
    biases={r"^vae\.(?!decoder\.conv_out)": 7.0},
    small=(
        r"^transformer\.(img_in|txt_in)\.",
        r"^transformer\..*\.(to_[qk]|add_[qk]_proj|to_out\.0|to_add_out|net\.2)\.",
        r"^text_encoder\..*(embed_tokens|patch_embed\.proj|[qk]_proj|qkv|o_proj|attn\.proj|down_proj)\.\w+$",
        r"^vae\..*\.(conv_in|conv1|conv2|proj)\.",
        r"^vae\..*\.(conv_shortcut|resample\.1)\.bias$",
    ),
)  # fmt: skip

EDIT = dataclasses.replace(
    TEXT,
    pipeline=diffusers.QwenImageEditPipeline,
    inpaint_pipeline=diffusers.QwenImageEditInpaintPipeline,
    inpaint_size=inpaint_size,
    build=functools.partial(build, edits=True),
    index=lambda d: index(d, VAE_IMAGE_SIZE),
    running=running,
    references=(1,),
    reference_sides=(24, 140),
)

PLUS = dataclasses.replace(
    EDIT,
    pipeline=diffusers.QwenImageEditPlusPipeline,
    inpaint_pipeline=None,
    draw=functools.partial(draw, zero_cond_t=(0, 1)),
    index=lambda d: index(d, VAE_IMAGE_SIZE, CONDITION_IMAGE_SIZE),
    references=(1, 2, 3),
)

FAMILIES = {"qwen-image": TEXT, "qwen-image-edit": EDIT, "qwen-image-edit-plus": PLUS}

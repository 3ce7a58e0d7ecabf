"""Text encoders and their tokenizers: small ones of some dimensions, random dimensions, and those of published ones."""

import inspect
import random

import transformers

from .. import tokenizer

# Of the small-activations kind: see autoencoders.SMALL_KL.
SMALL_QWEN3 = r"^text_encoder\..*\.?(embed_tokens|[qk]_proj|o_proj|down_proj)\.weight$"
SMALL_QWEN_VL = r"^text_encoder\..*(embed_tokens|patch_embed\.proj|[qk]_proj|qkv|o_proj|attn\.proj|down_proj)\.\w+$"

# Gains of the weights of Qwen's vision-language models.
QWEN_VL_GAINS = {r"^text_encoder\..*\.([qk]_proj|qkv)\.weight$": 1.5}

# Dimensions of small Qwen3s, and of the published ones.
QWEN3 = dict(
    text_hidden=32, text_intermediate=48, text_layers=3, text_heads=4, text_kv_heads=2, text_head_dim=16,
    text_rope_theta=1e6, text_norm_eps=1e-6, merges=300,
)  # fmt: skip
QWEN3_4B = dict(
    text_hidden=2560, text_intermediate=9728, text_layers=36, text_heads=32, text_kv_heads=8, text_head_dim=128
)
QWEN3_06B = QWEN3_4B | dict(text_hidden=1024, text_intermediate=3072, text_layers=28, text_heads=16)
QWEN3_8B = QWEN3_4B | dict(text_hidden=4096, text_intermediate=12288)

# The same of Qwen3-VL, and a vision encoder for pipelines that show it nothing.
QWEN3_VL = QWEN3 | dict(
    text_rope_theta=5e6,
    vision_heads=2, vision_head_dim=12, vision_intermediate=36, vision_layers=3, vision_deepstack=(0, 1),
    vision_patch=16, vision_positions=36,
)  # fmt: skip
QWEN3_VL_8B = QWEN3_8B | dict(
    vision_heads=16, vision_head_dim=72, vision_intermediate=4304, vision_layers=27, vision_deepstack=(8, 16, 24),
    vision_positions=2304,
)  # fmt: skip
UNUSED_VISION = dict(
    vision_heads=2, vision_head_dim=4, vision_intermediate=12, vision_layers=1, vision_deepstack=(0,),
    vision_patch=4, vision_positions=16,
)  # fmt: skip

# Dimensions of small Mistral 3s, and of the published one, whose vision encoder sees nothing here.
MISTRAL = QWEN3 | dict(text_layers=5, text_rope_theta=1e8, text_norm_eps=1e-5)
MISTRAL_24B = dict(
    text_hidden=5120, text_intermediate=32768, text_layers=40, text_heads=32, text_kv_heads=8, text_head_dim=128,
    text_rope_theta=1e9,
)  # fmt: skip

# The same of Ministral 3, whose rotary embeddings are YaRN's.
MINISTRAL = MISTRAL | dict(text_layers=3, text_rope_theta=1e4, text_model="ministral3", yarn_factor=8.0, yarn_original=24)
MINISTRAL_3B = dict(
    text_hidden=3072, text_intermediate=9216, text_layers=26, text_heads=32, text_kv_heads=8, text_head_dim=128,
    text_rope_theta=1e6, text_model="ministral3", yarn_factor=16.0, yarn_original=16384,
)  # fmt: skip

# The same of CLIP and T5.
CLIP_T5 = dict(
    clip_hidden=24, clip_intermediate=40, clip_layers=3, clip_heads=3, clip_norm_eps=1e-5, clip_merges=200,
    t5_hidden=32, t5_intermediate=48, t5_layers=3, t5_heads=4, t5_head_dim=10, t5_buckets=32, t5_max_distance=128,
    t5_norm_eps=1e-6, t5_pieces=300,
)  # fmt: skip
CLIP_L_T5_XXL = dict(
    clip_hidden=768, clip_intermediate=3072, clip_layers=12, clip_heads=12,
    t5_hidden=4096, t5_intermediate=10240, t5_layers=24, t5_heads=64, t5_head_dim=64,
)  # fmt: skip

# The special tokens of Qwen's vision-language models.
QWEN_VL_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip

# As Qwen3-VL's, of a message's parts.
QWEN3_VL_CHAT = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- for part in message.content %}{{- part.text }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
"""


# As Qwen3-VL's, of messages that are texts, with the beginning of an answer.
QWEN3_VL_USER_CHAT = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}{{- part.text }}{%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def vocabulary(tok) -> int:
    """Returns the rows of an embedding: more than tokens, as the published models have."""
    return -(-(len(tok) + 1) // 32) * 32


def decoder(d: dict, tok) -> dict:
    """Returns what the configs of language models have in common."""
    return dict(
        vocab_size=vocabulary(tok),
        intermediate_size=d["text_intermediate"],
        num_hidden_layers=d["text_layers"],
        num_attention_heads=d["text_heads"],
        num_key_value_heads=d["text_kv_heads"],
        rms_norm_eps=d["text_norm_eps"],
    )


def qwen3_config(d: dict, tok) -> transformers.Qwen3Config:
    return transformers.Qwen3Config(
        **decoder(d, tok),
        hidden_size=d["text_hidden"],
        head_dim=d["text_head_dim"],
        rope_parameters={"rope_type": "default", "rope_theta": d["text_rope_theta"]},
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id,
    )


# As Mistral Small's, of a message's parts.
MISTRAL_CHAT = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set name = 'SYSTEM_PROMPT' if message.role == 'system' else 'INST' %}
    {{- '[' + name + ']' }}
    {%- for part in message.content %}{{- part.text }}{%- endfor %}
    {{- '[/' + name + ']' }}
{%- endfor %}
"""


def mistral_rope(d: dict) -> dict:
    """Returns the class of a Mistral's layers and its rotary embeddings, for its config."""
    if "yarn_factor" not in d:
        return dict(model_type="mistral", rope_theta=d["text_rope_theta"])
    yarn = dict(
        rope_type="yarn", rope_theta=d["text_rope_theta"], factor=d["yarn_factor"],
        original_max_position_embeddings=d["yarn_original"], beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
    )  # fmt: skip
    return dict(model_type=d["text_model"], rope_parameters=yarn)


def mistral3(d: dict, tok) -> transformers.Mistral3ForConditionalGeneration:
    """Returns a Mistral 3 with a vision encoder of two layers, for a tokenizer with tokens of images."""
    text = dict(
        **decoder(d, tok),
        **mistral_rope(d),
        hidden_size=d["text_hidden"],
        head_dim=d["text_head_dim"],
        sliding_window=None,
        max_position_embeddings=131072,
    )
    vision = dict(
        model_type="pixtral", hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, head_dim=4,
        patch_size=14, image_size=56,
    )  # fmt: skip
    return transformers.Mistral3ForConditionalGeneration(
        transformers.Mistral3Config(
            text_config=text, vision_config=vision, image_token_index=tok.convert_tokens_to_ids("[IMG]")
        )
    )


def pixtral_processor(tok) -> transformers.PixtralProcessor:
    return transformers.PixtralProcessor(
        transformers.PixtralImageProcessor(patch_size=14), tok, patch_size=14, spatial_merge_size=2,
        chat_template=MISTRAL_CHAT,
    )  # fmt: skip


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


def draw_ministral3(r: random.Random, layers: int) -> dict:
    return draw_qwen3(r, layers) | dict(
        text_model=r.choice(("ministral3", "mistral")),
        yarn_factor=round(r.uniform(1.5, 16), 2),
        yarn_original=r.randint(8, 300),
    )


def image_tokens(tok) -> dict:
    """Returns the keys of a config for the tokens around images."""
    names = dict(image="<|image_pad|>", video="<|video_pad|>", vision_start="<|vision_start|>", vision_end="<|vision_end|>")
    return {f"{key}_token_id": tok.convert_tokens_to_ids(token) for key, token in names.items()}


def qwen3_vl(d: dict, tok) -> transformers.Qwen3VLForConditionalGeneration:
    """Returns a Qwen3-VL for a tokenizer with tokens of images. Its attribute model is a Qwen3VLModel."""
    half = d["text_head_dim"] // 2
    text = qwen3_config(d, tok).to_dict()
    text["rope_parameters"] |= {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3], "mrope_interleaved": True}
    keys = inspect.signature(transformers.Qwen3VLTextConfig).parameters
    return transformers.Qwen3VLForConditionalGeneration(
        transformers.Qwen3VLConfig(
            text_config={k: v for k, v in text.items() if k in keys},
            vision_config=dict(
                depth=d["vision_layers"],
                hidden_size=d["vision_heads"] * d["vision_head_dim"],
                intermediate_size=d["vision_intermediate"],
                num_heads=d["vision_heads"],
                out_hidden_size=d["text_hidden"],
                patch_size=d["vision_patch"],
                num_position_embeddings=d["vision_positions"],
                deepstack_visual_indexes=list(d["vision_deepstack"]),
            ),
            tie_word_embeddings=False,
            **image_tokens(tok),
        )
    )


def draw_qwen3_vision(r: random.Random, layers: int) -> dict:
    return dict(
        vision_heads=r.randint(1, 4),
        vision_head_dim=4 * r.randint(1, 5),
        vision_intermediate=4 * r.randint(5, 15),
        vision_layers=layers,
        vision_patch=r.choice((4, 8, 16)),
        vision_positions=r.randint(2, 8) ** 2,
        vision_deepstack=tuple(sorted(r.sample(range(layers), r.randint(1, layers)))),
    )


def qwen25_hidden(d: dict) -> int:
    return 2 * sum(d["text_mrope_section"]) * d["text_heads"]


def qwen25_vl(d: dict, tok) -> transformers.Qwen2_5_VLForConditionalGeneration:
    """Returns a Qwen2.5-VL for a tokenizer with tokens of images."""
    rope = dict(rope_type="default", rope_theta=d["text_rope_theta"], mrope_section=list(d["text_mrope_section"]))
    return transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(
            text_config=dict(
                **decoder(d, tok),
                hidden_size=qwen25_hidden(d),
                rope_parameters=rope,
                max_position_embeddings=128000,
                bos_token_id=tok.pad_token_id,
                eos_token_id=tok.eos_token_id,
            ),
            vision_config=dict(
                depth=d["vision_layers"],
                hidden_size=d["vision_heads"] * d["vision_head_dim"],
                intermediate_size=d["vision_intermediate"],
                num_heads=d["vision_heads"],
                out_hidden_size=qwen25_hidden(d),
                patch_size=d["vision_patch"],
                window_size=d["vision_window"],
                fullatt_block_indexes=list(d["vision_full_layers"]),
                tokens_per_second=2,
            ),
            tie_word_embeddings=False,
            **image_tokens(tok),
        )
    )


def draw_qwen25(r: random.Random, kv_heads: int) -> dict:
    return dict(
        text_intermediate=8 * r.randint(4, 12),
        text_layers=r.randint(2, 4),
        text_heads=kv_heads * r.randint(1, 3),
        text_kv_heads=kv_heads,
        text_mrope_section=tuple(r.randint(1, 5) for _ in range(3)),
        text_rope_theta=10 ** r.uniform(4, 6.5),
        text_norm_eps=r.choice((1e-6, 2e-6, 1e-5)),
        merges=r.randint(330, 500),
    )


def draw_qwen25_vision(r: random.Random, layers: int, patch: int) -> dict:
    return dict(
        vision_heads=r.randint(1, 4),
        vision_head_dim=4 * r.randint(1, 5),
        vision_intermediate=4 * r.randint(5, 15),
        vision_layers=layers,
        # at least one of each kind
        vision_full_layers=tuple(sorted(r.sample(range(layers), r.randint(1, layers - 1)))),
        vision_patch=patch,
        vision_window=2 * patch * r.randint(1, 4),
    )


def qwen2_vl_processor(d: dict, tok) -> transformers.Qwen2VLProcessor:
    pixels = dict(
        size={"shortest_edge": d["min_pixels"], "longest_edge": d["max_pixels"]}, patch_size=d["vision_patch"]
    )
    return transformers.Qwen2VLProcessor(
        transformers.Qwen2VLImageProcessor(**pixels), tok, transformers.Qwen2VLVideoProcessor(**pixels)
    )


def qwen3_vl_processor(d: dict, tok) -> transformers.Qwen3VLProcessor:
    pixels = dict(
        size={"shortest_edge": d["min_pixels"], "longest_edge": 16777216}, patch_size=d["vision_patch"],
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    return transformers.Qwen3VLProcessor(
        transformers.Qwen2VLImageProcessor(**pixels), tok, transformers.Qwen3VLVideoProcessor(**pixels),
        chat_template=QWEN3_VL_CHAT,
    )  # fmt: skip


def clip_and_t5(d: dict) -> dict:
    """Returns CLIP as text_encoder and T5 as text_encoder_2, with their tokenizers."""
    clip, t5 = tokenizer.train_clip(d["clip_merges"]), tokenizer.train_t5(d["t5_pieces"])
    return {
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
                vocab_size=vocabulary(t5),
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
    }


def draw_clip_and_t5(r: random.Random, clip_heads: int, buckets: int) -> dict:
    return dict(
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
    )

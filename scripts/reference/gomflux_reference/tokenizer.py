"""Byte-level BPE tokenizers of the Qwen kind, trained on a few sentences."""

import json

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
]  # fmt: skip
# In the vocabulary and cut out before BPE, but not dropped when decoding.
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

CORPUS = [
    "user user user user assistant assistant assistant assistant system system",
    "a red circle left of a blue square, a small yellow star above the large green ring",
    "the old lighthouse at dusk, painted in oil, with long shadows and soft light on the water",
    "a photograph of two cats sitting on a wooden table near the window, morning light, shallow focus",
    "Ein kleines Haus am Fluß, über dem die Möwen kreisen; le café près de la forêt, où l'été s'achève",
    "“What’s that?” she said – it’s the sign that reads “OPEN 24 HOURS”, isn’t it?",
    "一只红色的猫坐在窗边，看着外面的雨。一座古老的灯塔，夕阳，油画。",
    "東京の夜景、ネオンの光、雨に濡れた道。赤い傘を持つ人。",
    "1 2 3 4 5 6 7 8 9 0 10% 3.5 (x, y) [z] {w} <a> #tag @name a/b a_b A-B C++ $5 & more...\n\n\n  indented\ttext",
]


def train(merges: int) -> Qwen2Tokenizer:
    """Returns a tokenizer with 256 byte tokens, at most `merges` merged ones, and Qwen's kind of added tokens."""
    blank = Qwen2Tokenizer()  # for its normalizer and its splitting pattern
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = blank.backend_tokenizer.normalizer
    bpe.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    bpe.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=256 + merges,
            min_frequency=1,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    model = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(m) for m in model["merges"]],
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=131072,
    )
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return tokenizer

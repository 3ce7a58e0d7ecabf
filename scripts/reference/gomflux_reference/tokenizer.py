"""Tokenizers of the kinds of Qwen, CLIP and T5, trained on a few sentences."""

import base64
import collections
import hashlib
import itertools
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CLIPTokenizer, Qwen2Tokenizer, T5Tokenizer, TokenizersBackend
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.mistral.tokenizer import MistralConverter

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


def train(merges: int, corpus=CORPUS, special=SPECIAL) -> Qwen2Tokenizer:
    """Returns a tokenizer with 256 byte tokens, at most `merges` merged ones, and Qwen's kind of added tokens."""
    blank = Qwen2Tokenizer()  # for its normalizer and its splitting pattern
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = blank.backend_tokenizer.normalizer
    bpe.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    bpe.train_from_iterator(
        corpus,
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
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return tokenizer


# How Mistral's tokenizers cut text, since Tekken.
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MISTRAL_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
]  # fmt: skip


def train_mistral(merges: int, corpus=CORPUS, padding_side="left") -> TokenizersBackend:
    """Returns a tokenizer of Mistral's kind: special tokens, 256 byte tokens and at most `merges` merged ones. Words
    that are in the vocabulary are not merged, and <s> comes first."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TEKKEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=256 + len(MISTRAL_SPECIAL) + merges,
            min_frequency=1,
            special_tokens=MISTRAL_SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    made = json.loads(bpe.to_str())
    made["model"]["ignore_merges"] = True
    made["model"]["vocab"]["Ġviolin"] = len(made["model"]["vocab"])  # that no merges lead to
    bpe = Tokenizer.from_str(json.dumps(made))
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", MISTRAL_SPECIAL.index("<s>"))]
    )
    return TokenizersBackend(
        tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        padding_side=padding_side, model_max_length=131072,
    )  # fmt: skip


# Special tokens of a tekken.json that has no list of them.
TEKKEN_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip


def write_tekken(trained: TokenizersBackend, folder: Path, names=None):
    """Writes the words of a tokenizer of Mistral's kind as Mistral does, in tekken.json: the bytes first, and words that are
    not used last. names are the special tokens; without any they are TEKKEN_SPECIAL."""
    model = json.loads(trained.backend_tokenizer.to_str())["model"]
    of = {c: b for b, c in bytes_to_unicode().items()}
    words = [bytes(of[c] for c in w) for w in sorted(model["vocab"], key=model["vocab"].get) if w not in MISTRAL_SPECIAL]
    words = [bytes([b]) for b in range(256)] + [w for w in words if len(w) > 1] + [b"unused", b" unused"]
    special = 30
    file = {
        "config": {
            "pattern": TEKKEN_SPLIT, "num_vocab_tokens": len(words), "default_vocab_size": special + len(words) - 2,
            "default_num_special_tokens": special, "version": "v13" if names else "v3",
        },
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(w).decode(), "token_str": None} for i, w in enumerate(words)],
    }  # fmt: skip
    if names:
        file["special_tokens"] = [{"rank": i, "token_str": n, "is_control": True} for i, n in enumerate(names)]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _write(folder / "tekken.json", file, indent=None)


def read_tekken(file: Path) -> TokenizersBackend:
    """Returns what transformers makes of a tekken.json, with <s> first and padding on the left as in the tokenizer.json that
    Mistral publishes next to it. transformers would need mistral-common for the names of special tokens that are not listed."""
    content = _read(file)
    names = [{"rank": i, "token_str": n, "is_control": True} for i, n in enumerate(TEKKEN_SPECIAL)]
    with tempfile.TemporaryDirectory() as temporary:
        _write(whole := Path(temporary) / "tekken.json", {"special_tokens": names} | content, indent=None)
        bpe = MistralConverter(str(whole)).converted()
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)])
    return TokenizersBackend(
        tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left",
    )  # fmt: skip


def train_clip(merges: int) -> CLIPTokenizer:
    """Returns a tokenizer of CLIP's kind: 256 byte tokens, the same ending a word, at most `merges` merged ones, and
    the two special tokens last, 77 tokens at most."""
    blank = CLIPTokenizer().backend_tokenizer  # for its normalizer and its splitting pattern
    words = collections.Counter(
        word
        for line in CORPUS
        for word, _ in blank.pre_tokenizer.pre_tokenize_str(blank.normalizer.normalize_str(line))
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, ranks = alphabet + [c + "</w>" for c in alphabet], []
    # BpeTrainer breaks ties at random where words have a suffix.
    split = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    while len(ranks) < merges:
        pairs = collections.Counter()
        for word, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            break
        a, b = min(pairs, key=lambda pair: (-pairs[pair], pair))
        ranks.append((a, b))
        vocab.append(a + b)
        for parts in split.values():
            for i in range(len(parts) - 1, 0, -1):
                if parts[i - 1 : i + 1] == [a, b]:
                    parts[i - 1 : i + 1] = [a + b]
    vocab += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={t: i for i, t in enumerate(vocab)}, merges=ranks, model_max_length=77)


def train_t5(pieces: int, extra_ids: int = 100, model_max_length: int = 512) -> T5Tokenizer:
    """Returns a tokenizer of T5's kind: <pad>, </s>, <unk>, the characters of the corpus, at most `pieces` longer
    pieces, and the sentinels."""
    charsmap = precompiled_charsmap(nfkc_rules())
    normalize = normalizers.Precompiled(charsmap).normalize_str
    counts = collections.Counter()
    for line in CORPUS:
        for word in normalize(line).split():
            word = "▁" + word
            counts.update(word[i:j] for i in range(len(word)) for j in range(i + 1, min(i + 12, len(word)) + 1))
    longer = sorted((p for p in counts if len(p) > 1 and counts[p] > 1), key=lambda p: (-counts[p] * len(p), p))
    chosen = sorted(p for p in counts if len(p) == 1) + longer[:pieces]
    total = sum(counts[p] for p in chosen)
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(p, round(math.log(counts[p] / total), 6)) for p in chosen]
    vocab += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(extra_ids))]
    return T5Tokenizer(
        vocab=vocab, extra_ids=extra_ids, _spm_precompiled_charsmap=charsmap, model_max_length=model_max_length
    )


def nfkc_rules() -> dict[str, str]:
    """Rules of the kind that SentencePiece's nmt_nfkc has, for a few hundred of its characters."""
    rules = {chr(c): "" for c in (*range(1, 9), 0x0B, *range(0x0E, 0x20), 0x7F)}
    rules |= {chr(c): " " for c in (9, 10, 12, 13, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF)}
    ranges = ((0xA0, 0x180), (0x2000, 0x200B), (0x2070, 0x218F), (0x2460, 0x2474), (0xFB00, 0xFB07), (0xFF01, 0xFF7F))
    for c in map(chr, itertools.chain.from_iterable(range(*r) for r in ranges)):
        composed, decomposed = unicodedata.normalize("NFKC", c), unicodedata.normalize("NFD", c)
        if composed != c:
            rules[c] = composed
        elif decomposed != c:
            rules[decomposed] = composed
    return rules


def precompiled_charsmap(rules: dict[str, str]) -> bytes:
    """Returns the form in which SentencePiece stores normalization rules: the size in bytes of a double-array trie
    (Darts-clone's), the trie, whose values are offsets, and the strings there, each ended by a zero byte."""
    strings, offsets = bytearray(), {}
    for to in sorted(set(rules.values())):
        offsets[to] = len(strings)
        strings += to.encode() + b"\0"
    tree = {}
    for key, to in rules.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = offsets[to]

    units, used, nodes = {0: 0}, {0}, [(0, tree)]
    for place, node in nodes:
        # The children of a unit are at its place XOR its offset XOR their byte; the value is the child of byte 0.
        base = next(b for b in itertools.count(1) if used.isdisjoint(b ^ byte for byte in node))
        units[place] |= (place ^ base) << 10 | (0 in node) << 8
        for byte, child in sorted(node.items()):
            used.add(base ^ byte)
            units[base ^ byte] = 1 << 31 | child if byte == 0 else byte
            if byte:
                nodes.append((base ^ byte, child))
    # A lookup stays inside if the length is a multiple of 256.
    size = -(-(max(units) + 1) // 256) * 256
    trie = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(trie)) + trie + bytes(strings)


def to_transformers4(folder: Path, fast: bool = True):
    """Writes a tokenizer that transformers 5 saved as the files of transformers 4, which the hub has.

    BPE tokenizers get vocab.json and merges.txt, and with `fast` keep a tokenizer.json as transformers 4 writes it;
    without, the folder is what FLUX.1's tokenizer and Qwen-Image's are published as. Unigram ones keep tokenizer.json.
    """
    backend, config = _read(folder / "tokenizer.json"), _read(folder / "tokenizer_config.json")
    model, added = backend["model"], backend["added_tokens"]
    kind = config["tokenizer_class"]
    if kind == "TokenizersBackend":
        kind = "LlamaTokenizerFast"  # as Mistral's are published
    names = {t: config.get(t) for t in ("bos_token", "eos_token", "unk_token", "pad_token")}
    named = [t for t in names.values() if t]
    if model["type"] == "BPE":
        model["merges"] = [" ".join(m) for m in model["merges"]]
        _write(folder / "vocab.json", model["vocab"], indent=None)
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(model["merges"]) + "\n", encoding="utf-8")
    if kind == "CLIPTokenizer":
        split = backend["pre_tokenizer"]["pretokenizers"][0]["pattern"]
        split["Regex"] = split["Regex"].removeprefix(r"<\|startoftext\|>|<\|endoftext\|>|")
        for token in added:  # as published: one of the two is cut out after lower-casing
            token["normalized"] = token["content"] == names["bos_token"]
    if kind == "T5Tokenizer":
        backend["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                backend["normalizer"],
                {"type": "Strip", "strip_left": False, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
            ],
        }
        backend["pre_tokenizer"] = backend["pre_tokenizer"]["pretokenizers"][1]
        for token in added:
            token["lstrip"] = token["rstrip"] = token["content"].startswith("<extra_id_")
    if fast or model["type"] != "BPE":
        _write(folder / "tokenizer.json", backend)
    else:
        (folder / "tokenizer.json").unlink()

    extra = [t["content"] for t in added if t["special"] and t["content"] not in named]
    if kind == "Qwen2Tokenizer":
        _write(folder / "added_tokens.json", {t["content"]: t["id"] for t in added})
    entries = {t["content"]: {k: v for k, v in t.items() if k not in ("id", "special")} for t in added}
    special = {name: entries.get(token, token) for name, token in names.items() if token}
    if extra:
        special["additional_special_tokens"] = extra
    _write(folder / "special_tokens_map.json", dict(sorted(special.items())))
    config = {
        "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added},
        "additional_special_tokens": extra,
        "clean_up_tokenization_spaces": kind != "Qwen2Tokenizer",
        "model_max_length": config["model_max_length"],
        "tokenizer_class": kind,
        **names,
    } | {
        "CLIPTokenizer": {"add_prefix_space": False, "do_lower_case": True, "errors": "replace"},
        "Qwen2Tokenizer": {
            "add_bos_token": False,
            "add_prefix_space": False,
            "errors": "replace",
            "split_special_tokens": False,
        },
        "T5Tokenizer": {"extra_ids": len(extra), "legacy": True, "sp_model_kwargs": {}},
        "LlamaTokenizerFast": {"legacy": True, "padding_side": config.get("padding_side")},
    }[kind]
    _write(folder / "tokenizer_config.json", dict(sorted(config.items())))


def _read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value, indent: int | None = 2):
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def ids_of(folder: Path, texts: list[str]) -> dict:
    """What transformers makes of texts with the tokenizer in a folder: ids with special tokens, their hash and number
    when padded or cut to a few lengths, and the same for a text of 100 kB."""
    tokenizer = _from_folder(folder)
    long = tokenizer(long_text(texts)).input_ids
    padded = {}
    for n in (2, 9, 77) if tokenizer.padding_side == "right" else ():
        batch = [tokenizer(t, padding="max_length", truncation=True, max_length=n) for t in texts]
        padded[n] = {
            "tokens": [sum(b.attention_mask) for b in batch],
            "sha256": _hash(itertools.chain.from_iterable(b.input_ids for b in batch)),
        }
    return {
        "size": len(tokenizer),
        "pad": tokenizer.pad_token_id,
        "model_max_length": min(tokenizer.model_max_length, 2**31) % 2**31,
        "ids": [tokenizer(t).input_ids for t in texts],
        "plain": _hash(itertools.chain.from_iterable(tokenizer(t, add_special_tokens=False).input_ids for t in texts)),
        "padded": padded,
        "long": {"tokens": len(long), "sha256": _hash(long)},
    }


def _from_folder(folder: Path):
    if (folder / "tekken.json").exists():
        return read_tekken(folder / "tekken.json")
    kind = _read(folder / "tokenizer_config.json")["tokenizer_class"]
    return {t.__name__: t for t in (CLIPTokenizer, Qwen2Tokenizer, T5Tokenizer)}[kind].from_pretrained(folder)


def long_text(texts: list[str]) -> str:
    """Joins texts in the order of a linear congruential generator until there are 100,000 bytes."""
    parts, size, state = [], 0, 1
    while size < 100_000:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        parts.append(texts[(state >> 33) % len(texts)])
        size += len(parts[-1].encode())
    return "".join(parts)


def _hash(ids) -> str:
    return hashlib.sha256(b"".join(struct.pack("<i", i) for i in ids)).hexdigest()


NAMES = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token", "additional_special_tokens"))
# Of the tokenizers that main trains: the one, and what changes in its files by key (None removes; a file without keys
# is removed as a whole).
VARIANTS = [
    ("qwen2-vocab", {"tokenizer_config.json": {"added_tokens_decoder": None}}),
    ("qwen2-vocab", {"tokenizer_config.json": {"added_tokens_decoder": None} | NAMES}),
    (
        "qwen2-vocab",
        {
            "tokenizer_config.json": {"added_tokens_decoder": None} | NAMES,
            "special_tokens_map.json": {},
            "added_tokens.json": {},
        },
    ),
    (
        "qwen2-vocab",
        {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|im_start|>"}},
    ),
    ("qwen2-5", {"tokenizer_config.json": {"add_bos_token": True, "bos_token": "<|im_start|>"}}),
    ("qwen2-vocab", {"tokenizer_config.json": {"extra_special_tokens": ["<new>", "cat"]}}),
    (
        "qwen2-vocab",
        {"tokenizer_config.json": {"extra_special_tokens": [], "additional_special_tokens": ["<new>", "cat"]}},
    ),
    ("qwen2-5", {"tokenizer_config.json": {"sep_token": "photo", "cls_token": "<|cls|>"}}),
    ("clip-vocab", {"tokenizer_config.json": {"added_tokens_decoder": None} | NAMES, "special_tokens_map.json": {}}),
    (
        "clip-vocab",
        {
            "tokenizer_config.json": {
                "added_tokens_decoder": {"613": {"content": "<|endoftext|>"}, "32": {"content": "A"}},
            }
        },
    ),
    (
        "t5-5",
        {
            "tokenizer_config.json": {"extra_special_tokens": None, "extra_ids": None},
            "tokenizer.json": {"added_tokens": []},
        },
    ),
    (
        "t5-5",
        {"tokenizer_config.json": {"extra_special_tokens": [], "extra_ids": 9}, "tokenizer.json": {"added_tokens": []}},
    ),
    ("t5-5", {"tokenizer.json": {"normalizer": None}}),
    # which only Qwen's looks at
    ("clip-vocab", {"tokenizer_config.json": {"add_prefix_space": True}}),
    ("t5-4", {"tokenizer_config.json": {"add_prefix_space": True}}),
]


def ids_of_variants(folder: Path, texts: list[str]) -> list[dict]:
    """Returns ids_of for the VARIANTS, without the ids of each text."""
    found = []
    for base, changes in VARIANTS:
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(shutil.copytree(folder / base, Path(temporary) / base))
            for name, keys in changes.items():
                if not keys:
                    (out / name).unlink()
                    continue
                changed = _read(out / name) | keys
                _write(out / name, {k: v for k, v in changed.items() if v is not None or k not in keys})
            ids = ids_of(out, texts)
            found.append({"folder": base, "changes": changes, "size": ids["size"], "long": ids["long"]})
    return found


PUBLISHED = (
    "black-forest-labs__FLUX.1-schnell/tokenizer", "black-forest-labs__FLUX.1-schnell/tokenizer_2",
    "Tongyi-MAI__Z-Image-Turbo/tokenizer", "krea__Krea-2-Turbo/tokenizer", "mistral-common",
)  # fmt: skip


def ids_of_published(root: Path, texts: list[str]) -> list[dict]:
    """Returns hashes of the ids of texts, and of runs of dashes, with published tokenizers. T5 has many pieces of dashes,
    whose sums of scores differ in the last bits. mistral-common has tekken.json: mistral_common/data/tekken_240911.json of
    that package."""
    texts = texts + [dash * n for dash in "-_" for n in range(1, 61)]
    found = []
    for folder in PUBLISHED:
        tokenizer = _from_folder(root / folder)
        ids = itertools.chain.from_iterable(tokenizer(t).input_ids for t in texts)
        found.append({"folder": folder, "size": len(tokenizer), "sha256": _hash(ids)})
    return found


def main(folder: Path):
    """Trains the tokenizers of textenc/tokenizer/testdata, and writes the ids of its texts.json, those of published
    tokenizers only if GOMFLUX_REAL names the folder of their files."""
    texts = _read(folder / "texts.json")
    ids = []
    for name, trained, layouts in (
        ("clip", train_clip(100), ("5", "4", "vocab")),
        ("qwen2", train(100), ("5", "4", "vocab")),
        ("t5", train_t5(150), ("5", "4")),
    ):
        for layout in layouts:
            out = folder / f"{name}-{layout}"
            shutil.rmtree(out, ignore_errors=True)
            trained.save_pretrained(out)
            (out / "chat_template.jinja").unlink(missing_ok=True)
            if layout != "5":
                to_transformers4(out, fast=layout == "4")
            if layout == "4":
                for unread in ("vocab.json", "merges.txt"):
                    (out / unread).unlink(missing_ok=True)
            for file in out.glob("*.json"):
                _write(file, _read(file), indent=None)
            found = ids_of(out, texts)
            same = next((i for i in ids if i | {"folders": 0} == found | {"folders": 0}), None)
            if same:
                same["folders"].append(out.name)
            else:
                ids.append({"folders": [out.name]} | found)
    mistral = train_mistral(100)
    for name, special in (("tekken-3", None), ("tekken-13", [*TEKKEN_SPECIAL, "[THINK]", "[/THINK]"])):
        write_tekken(mistral, folder / name, special)
        ids.append({"folders": [name]} | ids_of(folder / name, texts))
    contents = [("ids.json", ids), ("variants.json", ids_of_variants(folder, texts))]
    if root := os.environ.get("GOMFLUX_REAL"):
        contents.append(("published.json", ids_of_published(Path(root), texts)))
    for name, content in contents:
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in content)
        (folder / name).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

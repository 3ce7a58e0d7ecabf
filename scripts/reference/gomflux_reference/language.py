"""make parity: language models, which write greedily after a text and after images, on small random ones of each class.

A dump of what one writes has the ids prompt.input_ids, written.input_ids and longer.input_ids (which a longer text begins with),
the logits after every id of prompt and text, and of the longer text (logits.longer), and the modules of a pass without a cache.
"""

import json
import math
import random
import types
from pathlib import Path

import torch
import transformers

from . import dump, goldens, tiny, tokenizer
from .families import text_encoders
from .record import Recorder

TOKENS = 200
LEAST = 5e-5  # between the two best logits: less, and rounding decides
TAPS = ["*", "!*:in.deepstack_visual_embeds*", "!*:in.visual_pos_masks", "!text_encoder:in.pixel_values", "!text_encoder:in.image_grid_thw"]


def qwen3(r: random.Random):
    d = text_encoders.draw_qwen3(r, r.randint(2, 4))
    tok = tokenizer.train(d["merges"])
    config = text_encoders.qwen3_config(d, tok)
    config.tie_word_embeddings = r.random() < 0.5
    return transformers.Qwen3ForCausalLM(config), tok, None


def qwen25_vl(r: random.Random):
    d = text_encoders.draw_qwen25(r, r.randint(1, 2)) | text_encoders.draw_qwen25_vision(r, r.randint(2, 4), r.choice((4, 6, 8)))
    tok = trained(d)
    return text_encoders.qwen25_vl(d, tok), tok, pictures(d)


def qwen3_vl(r: random.Random):
    d = text_encoders.draw_qwen3(r, r.randint(3, 4)) | text_encoders.draw_qwen3_vision(r, r.randint(2, 3))
    tok = trained(d)
    return text_encoders.qwen3_vl(d, tok), tok, pictures(d)


def qwen3_5(r: random.Random):
    """Attention in every fourth layer, the gated delta rule in the others."""
    d = text_encoders.draw_qwen3(r, 4) | text_encoders.draw_qwen3_vision(r, r.randint(2, 3))
    tok, heads = trained(d), r.randint(1, 2)
    text = dict(
        **text_encoders.decoder(d, tok), hidden_size=d["text_hidden"], head_dim=24, pad_token_id=None,
        linear_num_key_heads=heads, linear_num_value_heads=heads * r.randint(1, 2), linear_key_head_dim=4 * r.randint(3, 5),
        linear_value_head_dim=4 * r.randint(4, 7),  # the norm of fewer values may divide by next to nothing
        rope_parameters={
            "rope_type": "default", "rope_theta": d["text_rope_theta"], "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.34,
        },
    )  # fmt: skip
    vision = dict(
        depth=d["vision_layers"], hidden_size=d["vision_heads"] * d["vision_head_dim"], num_heads=d["vision_heads"],
        intermediate_size=d["vision_intermediate"], patch_size=d["vision_patch"], num_position_embeddings=d["vision_positions"],
        out_hidden_size=d["text_hidden"],
    )  # fmt: skip
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **text_encoders.image_tokens(tok))
    return transformers.Qwen3_5ForConditionalGeneration(config), tok, pictures(d)


CLASSES = {"Qwen3": qwen3, "Qwen2.5-VL": qwen25_vl, "Qwen3-VL": qwen3_vl, "Qwen3.5": qwen3_5}


def trained(d: dict):
    return tokenizer.train(d["merges"], special=text_encoders.QWEN_VL_SPECIAL)


def pictures(d: dict) -> transformers.Qwen2VLImageProcessor:
    unit = 2 * d["vision_patch"]
    return transformers.Qwen2VLImageProcessor(patch_size=d["vision_patch"], min_pixels=2 * unit**2, max_pixels=9 * unit**2)


def make(folder: Path, kind: str, r: random.Random):
    """Writes a small random model, and returns it as it is read back, with its image processor or None."""
    dump.prepare()
    model, tok, processor = CLASSES[kind](r)
    gains = text_encoders.QWEN_VL_GAINS | {r"\.mlp\.down_proj\.": 0.7}
    tiny.fill("text_encoder", model, types.SimpleNamespace(gains=gains, biases={}, minus_one=(), small=()), r.getrandbits(31), "ordinary")
    for name, p in model.named_parameters():
        if name.endswith("A_log"):  # states that last
            p.data -= 3
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tok.chat_template = text_encoders.QWEN3_VL_CHAT
    for part in filter(None, (tok, processor)):
        part.save_pretrained(folder)
    return type(model).from_pretrained(folder, dtype=torch.float32).eval(), tok, processor


def written(folder: Path, out: Path, model, tok, processor, images: int, r: random.Random, fault: str = "") -> str:
    """Dumps what a model writes, with a mistake that it gets after that. Returns the settings in words."""
    tokens = 20 if fault else TOKENS
    inputs, ids, special = {}, [], text_encoders.image_tokens(tok) if processor else {}
    never = sorted({*special.values(), *filter(None, [tok.eos_token_id, tok.pad_token_id])})
    words = [i for i in range(len(tok)) if i not in never]
    if images:
        shown = [goldens.draw(r.randint(20, 90), r.randint(20, 90)) for _ in range(images)]
        inputs = dict(processor(shown, return_tensors="pt"))
        for grid in inputs["image_grid_thw"]:
            count = int(grid.prod()) // processor.merge_size**2
            ids += [special["vision_start_token_id"], *[special["image_token_id"]] * count, special["vision_end_token_id"]]
            ids += r.choices(words, k=r.randint(1, 5))
    prompt = torch.tensor([r.choices(words, k=r.randint(5, 12)) + ids + r.choices(words, k=r.randint(1, 8))])

    def seen(ids):
        return inputs | {"mm_token_type_ids": (ids == special["image_token_id"]).int()} if inputs else {}

    whole = model.generate(
        prompt, max_new_tokens=tokens, do_sample=False, use_cache=True, bad_words_ids=[[i] for i in never], eos_token_id=None,
        attention_mask=torch.ones_like(prompt), **seen(prompt),
    )  # fmt: skip
    likely = model(whole, use_cache=False, **seen(whole)).logits[0, prompt.shape[1] - 1 : -1]
    likely[:, never] = -torch.inf
    best = likely.topk(2).values
    if float((best[:, 0] - best[:, 1]).min()) < LEAST:
        return written(folder, out, model, tok, processor, images, r, fault)
    before = torch.tensor([r.choices(words, k=r.randint(3, 9))])
    longer = torch.cat([before, whole], 1)
    beyond = model(input_ids=longer, use_cache=False, **seen(longer)).logits[0]
    record = Recorder(out, TAPS)
    record.watch("text_encoder", model)
    if fault:
        FAULTS[fault][0](model)
    logits = model(input_ids=whole, use_cache=False, **seen(whole)).logits[0]
    record.put("prompt.input_ids", prompt[0].int())
    record.put("written.input_ids", whole[0, prompt.shape[1] :].int())
    record.put("longer.input_ids", before[0].int())
    record.put("logits", logits)
    record.put("logits.longer", beyond)
    if inputs:
        record.put("vision.pixel_values", inputs["pixel_values"])
        record.put("vision.grid_thw", inputs["image_grid_thw"].int())
    record.finish(dump.describe("write", model=folder.name, new_tokens=tokens, never=never, compute="float32"))
    return f"{prompt.shape[1]} ids of a prompt, {images} images, {tokens} new ids"


def decoder_of(model):
    return model.model if isinstance(model, transformers.Qwen3ForCausalLM) else model.model.language_model


def without_norm(model):
    decoder_of(model).norm.forward = lambda x: x


def displaced(model):
    """Has tokens after the first four at positions that are one off."""

    def moved(module, args, kwargs):
        x, positions = (*args, *kwargs.values())
        return (x, positions + (torch.arange(positions.shape[-1]) >= 4)), {}

    decoder_of(model).rotary_emb.register_forward_pre_hook(moved, with_kwargs=True)


def squared(model):
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            p.data += math.log(2)


# Mistakes that the reference gets, and what the module that shows it first is called.
FAULTS = {
    "no norm before the head": (without_norm, ("norm",)), "positions one off": (displaced, ("rotary_emb", "self_attn")),
    "decay squared": (squared, ("linear_attn",)),
}  # fmt: skip


def rows(gomflux: Path, folder: Path, seed: int, every: bool, run):
    """Yields what is compared, the settings, the result and whether it is as it must be. With every, each class of vision models
    writes after a text too. The last run of each has a mistake that must be found."""
    norm, positions, decay = FAULTS
    for kind, fault in zip(CLASSES, (norm, positions, norm, decay)):
        r, at = random.Random(f"{seed}/{kind}"), folder / kind
        model, tok, processor = make(at / "model", kind, r)
        plan = [(2 if processor else 0, ""), (0, fault)] + ([(0, ""), (1, "")] if every and processor else [])
        for i, (images, mistake) in enumerate(sorted(plan, key=lambda p: p[1])):
            out = at / str(i)
            told = written(at / "model", out, model, tok, processor, images, r, mistake)
            report = json.loads(run(gomflux, "parity", "run", out, "--dtype", "float32", "--json").stdout)
            result, ok = report["verdict"]["text"], report["verdict"]["ok"]
            if mistake:
                ok = not ok and report["verdict"]["module"].split(".")[-1] in FAULTS[mistake][1]
            else:
                result = f"{len(report['tensors'])} tensors, worst {max(s['free'] for s in report['stages']):.0e} from the start; {result}"
            yield f"{kind} {mistake or 'writes'}", told, result, ok

"""Makes the text encoders beside it: small random models, and what transformers computes with them in float32.

With the packages of scripts/reference/requirements.txt, and torchvision 0.29.2:

    python textenc/testdata/make.py          # git diff then shows what has changed

A folder of each holds the model (config.json, model.safetensors in bfloat16) and golden.safetensors:

    ids        the token ids, and for Anima's conditioner source, the hidden states of Qwen3, for Qwen3 valid, the number of those that are no padding, and states, the hidden
               states that are asked for
    output     CLIP's pooled output, T5's last hidden state, Qwen3's hidden states side by side
    NAME       with modules=True: the output of module NAME, as named_modules() calls it
    NAME:weights   and the weights of attention's

Those of Qwen2.5-VL and Qwen3-VL have several runs: RUN.ids, tokenized with one image token for each picture, RUN.pictures, which of
the pictures below it is shown, and

    RUN.output     the last hidden states of the valid tokens, where more of them follow as padding; of Qwen3-VL those
                   in states side by side, of which -1 is what enters the final norm
    RUN.features   what the vision tower makes of the pictures, and RUN.deepstack.I what it adds after layer I
    RUN.pixels     each STRIDE-th value of the pixels that the image processor makes, and
    RUN.grids      the sizes of the pictures in patches

All modules are those of the last run. qwen2vl-processor.safetensors has pixels and grids of the published processors,
and sizes: rows of a picture's height and width, and those to which it is resized.

generated.safetensors has what the language models write: RUN.prompt, with one image token for each feature, and RUN.pictures
as above, RUN.new, the 200 ids that transformers' generate adds to it greedily, and RUN.logits after every token of both.
With modules=True, it has the outputs of modules for the last prompt.

buckets.safetensors holds T5's buckets of the distances -600 to 600, as BUCKETS-DISTANCE.

Small activations are those that show a wrong epsilon: what enters the norms is 0.03 times as large.
"""

import json
import math
import re
import shutil
from pathlib import Path
from unittest import mock

import torch
from diffusers import AnimaTextConditioner
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Ministral3Config,
    Ministral3ForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.utils import logging

HERE = Path(__file__).parent
SMALL = r"embed|shared|o_proj|down_proj|out_proj|fc2|\.o\.|\.wo\.|q_proj|k_proj"


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.disable_progress_bar()
    clip = dict(vocab_size=40, pad_token_id=1, bos_token_id=0)
    clip_model(
        "clip-published",
        CLIPTextConfig(
            hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
            max_position_embeddings=12, eos_token_id=2, **clip,
        ),
        ids=[38, 7, 31, 0, 24, 12, 3, 39, 39, 39, 39, 39], published=True, modules=True,
    )  # fmt: skip
    clip_model(
        "clip-small",
        CLIPTextConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=24, eos_token_id=30, hidden_act="gelu", layer_norm_eps=2e-5, **clip,
        ),
        ids=[38, 7, 39, 29, 34, 30, 3, 39, 30, 30, 1, 1], small=True,
    )  # fmt: skip
    clip_model(
        "clip-whole",  # no padding
        CLIPTextConfig(
            hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=4,
            max_position_embeddings=7, eos_token_id=30, hidden_act="gelu_new", **clip,
        ),
        ids=[38, 7, 8, 9, 34, 12, 30],
    )  # fmt: skip
    t5 = dict(vocab_size=50, is_encoder_decoder=False, num_decoder_layers=1)
    t5_model(
        "t5-gated",
        T5Config(d_model=12, d_kv=6, d_ff=20, num_layers=2, num_heads=3, feed_forward_proj="gated-gelu", **t5),
        length=10, modules=True,
    )  # fmt: skip
    t5_model(
        "t5-small",
        T5Config(
            d_model=16, d_kv=5, d_ff=24, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
            relative_attention_num_buckets=12, relative_attention_max_distance=20, layer_norm_epsilon=2e-6, **t5,
        ),
        length=40, small=True, embeddings=("shared", "encoder.embed_tokens"),
    )  # fmt: skip
    t5_model(
        "t5-relu",
        T5Config(d_model=8, d_kv=6, d_ff=12, num_layers=2, num_heads=2, feed_forward_proj="relu", **t5),
        length=150, embeddings=("encoder.embed_tokens",),
    )  # fmt: skip
    qwen3 = dict(vocab_size=40, pad_token_id=None)
    qwen3_model(
        "qwen3-published",
        Qwen3Config(
            hidden_size=12, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=4, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True, **qwen3,
        ),
        valid=6, length=10, states=[1, 2, 3], published=True, modules=True,
    )  # fmt: skip
    qwen3_model(
        "qwen3-small",
        Qwen3Config(
            hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            head_dim=6, rms_norm_eps=2e-6, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **qwen3,
        ),
        valid=11, length=30, states=[2, 0, 1], small=True,
    )  # fmt: skip
    qwen3_model(
        "qwen3-whole",  # no padding, and as Z-Image asks for it
        Qwen3Config(
            hidden_size=12, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
            head_dim=8, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **qwen3,
        ),
        valid=12, length=12, states=[2],
    )  # fmt: skip
    anima_model("anima-published", dict(source_dim=12, target_dim=16, model_dim=16, num_attention_heads=2), modules=True)
    anima_model(
        "anima-small",
        dict(source_dim=16, target_dim=12, model_dim=24, num_attention_heads=3, mlp_ratio=2.5, min_sequence_length=5),
        small=True, modules=True,
    )  # fmt: skip
    qwen25vl_model(
        "qwen25vl-published",
        dict(
            hidden_size=24, intermediate_size=12, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        ),
        dict(
            depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=6, window_size=30,
            fullatt_block_indexes=[1],
        ),
        cells=9, published=True, modules=True,
    )  # fmt: skip
    qwen25vl_model(
        "qwen25vl-small",
        dict(
            hidden_size=32, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            rms_norm_eps=2e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]},
        ),
        dict(
            depth=4, hidden_size=16, intermediate_size=12, num_heads=1, patch_size=4, window_size=16,
            fullatt_block_indexes=[0, 3],
        ),
        cells=15, small=True,
    )  # fmt: skip
    qwen25vl_model(
        "qwen25vl-whole",  # windows as large as pictures, other patches, and a fourth section
        dict(
            hidden_size=20, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2, 1]},
        ),
        dict(
            depth=2, hidden_size=8, intermediate_size=16, num_heads=2, patch_size=5, spatial_merge_size=3,
            temporal_patch_size=3, window_size=150, fullatt_block_indexes=[1],
        ),
        cells=12,
    )  # fmt: skip
    qwen3vl_models()
    language_models()
    qwen2vl_processor()
    buckets()


def qwen3vl_models():
    qwen3vl_model(
        "qwen3vl-published",
        dict(
            hidden_size=24, intermediate_size=12, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=12, rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 2, 2]},
        ),
        dict(
            depth=3, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=6, num_position_embeddings=16,
            deepstack_visual_indexes=[0, 1],
        ),
        cells=9, states=[-1, 4], published=True, modules=True,
    )  # fmt: skip
    qwen3vl_model(
        "qwen3vl-small",
        dict(
            hidden_size=32, intermediate_size=12, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, rms_norm_eps=2e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0, "mrope_section": [4, 3, 1]},
        ),
        dict(
            depth=4, hidden_size=16, intermediate_size=12, num_heads=1, patch_size=4, num_position_embeddings=25,
            deepstack_visual_indexes=[0, 1, 3],
        ),
        cells=15, states=[1, 3, 0, -1], small=True,
    )  # fmt: skip
    qwen3vl_model(
        "qwen3vl-whole",  # a grid of positions finer than the pictures, and more features than layers
        dict(
            hidden_size=20, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            head_dim=10, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 2]},
        ),
        dict(
            depth=4, hidden_size=8, intermediate_size=16, num_heads=2, patch_size=5, spatial_merge_size=3,
            temporal_patch_size=3, num_position_embeddings=400, deepstack_visual_indexes=[3, 0, 2],
        ),
        cells=12, states=[1, 2],
    )  # fmt: skip


def clip_model(name, config, ids, published=False, small=False, modules=False):
    model, file = begin(name, CLIPTextModel, config, small)
    if published:  # as all files but those of transformers 5
        weights = {f"text_model.{k}": v for k, v in load_file(file).items()}
        weights["text_model.embeddings.position_ids"] = torch.arange(config.max_position_embeddings)[None]
        save(file, weights)
    ids = torch.tensor([ids])
    record = outputs(model, modules, lambda m: m(ids))
    finish(name, ids, model(ids).pooler_output, record)


def t5_model(name, config, length, small=False, modules=False, embeddings=("shared",)):
    model, file = begin(name, T5EncoderModel, config, small)
    weights = load_file(file)
    table = weights.pop("shared.weight")
    save(file, weights | {f"{e}.weight": table.clone() for e in embeddings})
    ids = torch.randint(config.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))
    ids[:, length * 2 // 3 :] = 0  # pads, which count
    record = outputs(model, modules, lambda m: m(ids))
    finish(name, ids, model(ids).last_hidden_state, record)


def qwen3_model(name, config, valid, length, states, published=False, small=False, modules=False):
    model, file = begin(name, Qwen3Model, config, small)
    if published:  # as a Qwen3ForCausalLM of transformers 4
        save(file, {f"model.{k}": v for k, v in load_file(file).items()})
        path = HERE / name / "config.json"
        c = json.loads(path.read_text())
        c |= {"rope_theta": c.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
        del c["layer_types"]
        path.write_text(json.dumps(c, indent=2) + "\n")
    ids = torch.randint(config.vocab_size, (1, length), generator=torch.Generator().manual_seed(2))
    ids[:, valid:] = 39
    mask = (torch.arange(length) < valid).long()[None]

    def run(m):
        return m(ids, attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states

    record = outputs(model, modules, run)
    used = {f"text_encoder.layers.{i}" for i in range(max(states))} | {"text_encoder.embed_tokens"}
    record = {k: v for k, v in record.items() if any(k == u or k.startswith((u + ".", u + ":")) for u in used)}
    hidden = run(model)
    output = torch.cat([hidden[i] for i in states], dim=-1)
    more = {"valid": torch.tensor([valid], dtype=torch.int32), "states": torch.tensor(states, dtype=torch.int32)}
    finish(name, ids, output, record | more)


def anima_model(name, config, small=False, modules=False):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AnimaTextConditioner(num_layers=2, target_vocab_size=40, **config)
    draw(model, name, small)
    model.to(torch.bfloat16).save_pretrained(folder)
    model = AnimaTextConditioner.from_pretrained(folder).float().eval()
    ids = torch.randint(40, (1, 7), generator=torch.Generator().manual_seed(4))
    source = torch.randn(1, 4, config["source_dim"], generator=torch.Generator().manual_seed(5))
    record = outputs(model, modules, lambda m: m(source, ids))
    record.pop("text_encoder.rotary_emb", None)
    finish(name, ids, model(source, ids), record | {"source": source})


IMAGE, START, END = 37, 35, 36
STRIDE = 101


def pictures():
    """Pictures of odd sizes, smooth with sharp edges, which the tests make too: uint8 [height, width, 3]."""
    made = []
    for i, (height, width) in enumerate([(75, 131), (208, 144), (41, 30)]):
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        p = torch.stack([x * 255 // width, y * 255 // height, (x * y + 50 * i) % 256], -1)
        p[height // 4 : height // 2, width // 4 : width // 2] = torch.tensor([255, 0, 30 * i])
        made.append(p.to(torch.uint8))
    return made


def qwen25vl_model(name, text, vision, cells, published=False, small=False, modules=False):
    config = Qwen2_5_VLConfig(**qwenvl_config(text, vision))
    model, file = begin(name, Qwen2_5_VLForConditionalGeneration, config, small)
    processor = qwenvl_processor(name, config, cells, published)
    if published:  # as transformers 4
        path = HERE / name / "config.json"
        c = json.loads(path.read_text())
        c |= {k: v for k, v in c.pop("text_config").items() if k != "model_type"}
        rope = c.pop("rope_parameters")
        c["rope_theta"] = rope["rope_theta"]
        c["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        del c["layer_types"], c["vision_config"]["rope_parameters"]
        c["vision_config"]["in_chans"] = c["vision_config"].pop("in_channels")
        path.write_text(json.dumps(c, indent=2) + "\n")
    elif small:  # as they are called in memory
        weights = load_file(file)
        weights = {re.sub("^model[.]", "model.language_model.", k): v for k, v in weights.items()}
        save(file, {re.sub("^visual[.]", "model.visual.", k): v for k, v in weights.items()})
    qwenvl_runs(name, model, processor, modules, [-1], {})


def qwen3vl_model(name, text, vision, cells, states, published=False, small=False, modules=False):
    config = Qwen3VLConfig(**qwenvl_config(text, vision))
    model, file = begin(name, Qwen3VLForConditionalGeneration, config, small)
    processor = qwenvl_processor(name, config, cells, published)
    weights = load_file(file)
    if published:  # as transformers 4
        path = HERE / name / "config.json"
        c = json.loads(path.read_text())
        rope = c["text_config"].pop("rope_parameters")
        c["text_config"]["rope_theta"] = rope["rope_theta"]
        c["text_config"]["rope_scaling"] = {
            "mrope_interleaved": True, "mrope_section": rope["mrope_section"], "rope_type": "default",
        }  # fmt: skip
        del c["vision_config"]["rope_parameters"]
        path.write_text(json.dumps(c, indent=2) + "\n")
    elif small:  # as a Qwen3VLModel
        save(file, {k.removeprefix("model."): v for k, v in weights.items() if k != "lm_head.weight"})
    else:  # as in the files of ComfyUI
        weights = {k.replace("model.language_model.", "model."): v for k, v in weights.items()}
        save(file, {k.replace("model.visual.", "visual."): v for k, v in weights.items()})
    more = {"states": torch.tensor(states, dtype=torch.int32)}
    qwenvl_runs(name, model, processor, modules, states, more)


def qwenvl_config(text, vision):
    return dict(
        text_config=dict(vocab_size=40, pad_token_id=None) | text,
        vision_config=dict(out_hidden_size=text["hidden_size"]) | vision,
        image_token_id=IMAGE, video_token_id=38, vision_start_token_id=START, vision_end_token_id=END,
    )  # fmt: skip


def qwenvl_processor(name, config, cells, published):
    """The image processor of a model, saved as transformers 4 or 5 saves it."""
    (HERE / name / "generation_config.json").unlink()
    vision = config.vision_config
    factor = vision.patch_size * vision.spatial_merge_size
    processor = Qwen2VLImageProcessor(
        patch_size=vision.patch_size, merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size, min_pixels=6 * factor**2, max_pixels=cells * factor**2,
    )  # fmt: skip
    p = json.loads(processor.to_json_string())
    if published:
        size = p.pop("size")
        p |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        (HERE / name / "preprocessor_config.json").write_text(json.dumps(p, indent=2) + "\n")
    else:
        (HERE / name / "processor_config.json").write_text(json.dumps({"image_processor": p}, indent=2) + "\n")
    return processor


def qwenvl_runs(name, model, processor, modules, states, record):
    shown = pictures()
    config = model.config
    random = torch.Generator().manual_seed(3)
    for run, numbers in {"text": [], "one": [0], "two": [1, 2], "three": [2, 0, 1], "last": [2, 0]}.items():
        ids, full = [5, 9], []
        for _ in numbers:
            ids += [START, IMAGE, END, 7]
        ids += torch.randint(30, (7,), generator=random).tolist()
        inputs = {}
        if numbers:
            made = processor([shown[i].permute(2, 0, 1) for i in numbers], return_tensors="pt")
            inputs = {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}
            record[f"{run}.pixels"] = made["pixel_values"].flatten()[::STRIDE]
            record[f"{run}.grids"] = made["image_grid_thw"].int()
            record[f"{run}.pictures"] = torch.tensor(numbers, dtype=torch.int32)
            seen = model.get_image_features(**inputs)
            record[f"{run}.features"] = torch.cat(seen.pooler_output)
            for i, feature in enumerate(getattr(seen, "deepstack_features", [])):
                record[f"{run}.deepstack.{i}"] = torch.cat(feature)
        counts = [int(g.prod()) // config.vision_config.spatial_merge_size**2 for g in inputs.get("image_grid_thw", [])]
        for i in ids:
            full += [i] * (counts.pop(0) if i == IMAGE else 1)
        record[f"{run}.ids"] = torch.tensor(ids, dtype=torch.int32)
        record[f"{run}.output"] = qwenvl_states(model, full, 5, inputs, states)
    if modules:
        of_modules = outputs(model, True, lambda m: qwenvl_states(m, full, 0, inputs, states))
        record |= {k: v for k, v in of_modules.items() if k.startswith("text_encoder.model")}  # no logits
    save(HERE / name / "golden.safetensors", record)


def qwenvl_states(model, ids, pads, inputs, states):
    """The hidden states of valid tokens. For positions in three dimensions transformers 5 must be told of pictures."""
    padded = torch.tensor([ids + [39] * pads])
    mask = (torch.arange(len(ids) + pads) < len(ids)).long()[None]
    if inputs:
        inputs = inputs | {"mm_token_type_ids": (padded == IMAGE).int()}
    entered = []
    hook = model.model.language_model.norm.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    hidden = model(padded, attention_mask=mask, output_hidden_states=True, use_cache=False, **inputs).hidden_states
    hook.remove()
    if isinstance(model, Qwen3VLForConditionalGeneration):  # -1 is what enters the norm
        hidden = (*hidden, *entered)
    return torch.cat([hidden[i] for i in states], dim=-1)[:, : len(ids)]


def language_models():
    begin(
        "qwen3-head",
        Qwen3ForCausalLM,
        Qwen3Config(
            hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, rms_norm_eps=2e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            vocab_size=40, pad_token_id=None,
        ),
        small=False,
    )  # fmt: skip
    generate("qwen3-head", Qwen3ForCausalLM, modules=True)
    generate("qwen3-published", Qwen3ForCausalLM)  # tied
    generate("qwen25vl-published", Qwen2_5_VLForConditionalGeneration, modules=True)
    generate("qwen3vl-published", Qwen3VLForConditionalGeneration, modules=True)
    yarn = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 6.0, "original_max_position_embeddings": 60, "beta_fast": 16.0,
        "beta_slow": 2.0, "llama_4_scaling_beta": 0.3,
    }  # fmt: skip
    begin(
        "ministral3-head",
        Ministral3ForCausalLM,
        Ministral3Config(
            hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, rms_norm_eps=2e-6, rope_parameters=yarn, max_position_embeddings=360, vocab_size=40,
            pad_token_id=None, eos_token_id=None,
        ),
        small=False,
    )  # fmt: skip
    generate("ministral3-head", Ministral3ForCausalLM, modules=True)
    text = dict(
        model_type="mistral", hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, rms_norm_eps=2e-6, max_position_embeddings=360, vocab_size=40, sliding_window=None, rope_theta=1e4,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    vision = dict(
        model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8, patch_size=4,
        image_size=16,
    )  # fmt: skip
    config = Mistral3Config(text_config=text, vision_config=vision, image_token_index=37, tie_word_embeddings=False)
    begin("mistral3-head", Mistral3ForConditionalGeneration, config, small=False)
    generate("mistral3-head", Mistral3ForConditionalGeneration, modules=True)
    text = dict(
        hidden_size=24, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=8,
        rms_norm_eps=2e-6,
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.34,
        },
    )  # fmt: skip
    vision = dict(depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=6, num_position_embeddings=16)
    config = Qwen3_5Config(**qwenvl_config(text, vision))
    begin("qwen35-head", Qwen3_5ForConditionalGeneration, config, small=False)
    qwenvl_processor("qwen35-head", config, cells=9, published=True)
    generate("qwen35-head", Qwen3_5ForConditionalGeneration, modules=True, seed=13)


def generate(name, kind, modules=False, seed=5):
    """What a saved model writes after a text, and after pictures if it sees them."""
    model = kind.from_pretrained(HERE / name, dtype=torch.float32).eval()
    random, record = torch.Generator().manual_seed(seed), {}
    for run, numbers in {"text": [], "seen": [0, 2]}.items():
        if numbers and kind in (Qwen3ForCausalLM, Ministral3ForCausalLM, Mistral3ForConditionalGeneration):
            continue
        prompt = torch.randint(30, (9,), generator=random).tolist()
        inputs = {}
        if numbers:
            vision = model.config.vision_config
            processor = Qwen2VLImageProcessor.from_pretrained(HERE / name)
            made = processor([pictures()[i].permute(2, 0, 1) for i in numbers], return_tensors="pt")
            inputs = {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}
            for grid in made["image_grid_thw"]:
                prompt += [START] + [IMAGE] * (int(grid.prod()) // vision.spatial_merge_size**2) + [END, 7]
            record[f"{run}.pictures"] = torch.tensor(numbers, dtype=torch.int32)
        prompt = torch.tensor([prompt])

        def seen(ids):
            return inputs | {"mm_token_type_ids": (ids == IMAGE).int()} if inputs else {}

        whole = model.generate(
            prompt, max_new_tokens=200, do_sample=False, use_cache=True, bad_words_ids=[[IMAGE], [38]],
            attention_mask=torch.ones_like(prompt), **seen(prompt),
        )  # fmt: skip
        logits = model(whole, use_cache=False, **seen(whole)).logits
        best = logits[0, prompt.shape[1] - 1 : -1].topk(2).values
        print(name, run, "least distance of the two best:", float((best[:, 0] - best[:, 1]).min()))
        record |= {f"{run}.prompt": prompt[0].int(), f"{run}.new": whole[0, prompt.shape[1] :].int()}
        record[f"{run}.logits"] = logits[0]
        if modules:
            of_modules = outputs(model, True, lambda m: m(prompt, use_cache=False, **seen(prompt)))
            record |= {k: v for k, v in of_modules.items() if ":" not in k}
    save(HERE / name / "generated.safetensors", record)


def qwen2vl_processor():
    record = {}
    half = [0.5, 0.5, 0.5]
    settings = {
        "published": dict(min_pixels=3136, max_pixels=12845056),
        "few": dict(max_pixels=9000),
        "qwen3vl": dict(patch_size=16, min_pixels=65536, max_pixels=16777216, image_mean=half, image_std=half),
    }
    random = torch.Generator().manual_seed(4)
    for limits, kwargs in settings.items():
        unit = 2 * kwargs.get("patch_size", 14)
        sizes = torch.cat([  # with halves of units, small and large ones
            torch.randint(1, 9, (150, 2), generator=random) * unit // 2,
            torch.randint(40, 700, (150, 2), generator=random),
            torch.randint(700, 9000, (150, 2), generator=random),
        ])  # fmt: skip
        fit = [smart_resize(h, w, unit, kwargs.get("min_pixels", 3136), kwargs["max_pixels"]) for h, w in sizes.tolist()]
        record[f"{limits}.sizes"] = torch.cat([sizes, torch.tensor(fit)], 1).int()
        for i, p in enumerate(pictures()):
            made = Qwen2VLImageProcessor(**kwargs)([p.permute(2, 0, 1)], return_tensors="pt")
            record[f"{limits}.{i}.pixels"] = made["pixel_values"].flatten()[::STRIDE]
            record[f"{limits}.{i}.grids"] = made["image_grid_thw"].int()
    save(HERE / "qwen2vl-processor.safetensors", record)


def begin(name, kind, config, small):
    """A model of random weights, saved, and as it is read back."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = kind(config)
    draw(model, name, small)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    return kind.from_pretrained(folder, dtype=torch.float32).eval(), folder / "model.safetensors"


def draw(model, name, small):
    """Draws random weights."""
    random = torch.Generator().manual_seed(sum(name.encode()))
    for path, p in sorted(model.named_parameters()):
        n = torch.randn(p.shape, generator=random)
        if path.endswith("bias") and p.dim() == 1:
            n *= 0.1
        elif path.endswith("A_log"):
            n -= 2  # states that last
        elif p.dim() == 1:
            n = 1 + 0.2 * n
        elif p.dim() == 5:
            n /= math.sqrt(p[0].numel())
        elif "embed" not in path and "shared" not in path and "relative" not in path:
            n /= math.sqrt(p.shape[1])
        if isinstance(model, T5EncoderModel) and path.endswith("SelfAttention.q.weight"):
            n *= model.config.d_kv**-0.5  # as T5 itself draws them: its scores are not scaled
        if small and p.dim() > 1 and re.search(SMALL, path):
            n *= 0.03
        p.copy_(n)


def outputs(model, wanted, run):
    """The outputs of a model's modules, and the weights of its attention."""
    record = {}
    if not wanted:
        return record

    def keep(path):
        def hook(module, args, output):
            if not isinstance(output, torch.Tensor):
                output = next(iter(output.values())) if isinstance(output, dict) else output[0]
            record[path] = output.clone()

        return hook

    def keep_weights(path):
        def hook(module, args, output):
            record[f"{path}:weights"] = output[2 if isinstance(module, T5Attention) else 1].clone()

        return hook

    def watch(make, of):
        return [
            m.register_forward_hook(make(".".join(filter(None, ["text_encoder", path]))))
            for path, m in model.named_modules()
            if of(m)
        ]

    hooks = watch(keep, lambda m: not isinstance(m, torch.nn.Dropout))
    run(model)
    for hook in hooks:
        hook.remove()
    if isinstance(model, AnimaTextConditioner):
        return record
    if isinstance(model, Qwen2_5_VLForConditionalGeneration):
        return record | qwenvl_inner(model, run, modeling_qwen2_5_vl)
    if isinstance(model, Qwen3VLForConditionalGeneration):
        return record | qwenvl_inner(model, run, modeling_qwen3_vl)
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the one that returns weights
    hooks = watch(keep_weights, lambda m: re.fullmatch("(CLIP|T5|Qwen3)Attention", type(m).__name__))
    run(model)
    for hook in hooks:
        hook.remove()
    model.set_attn_implementation(usual)
    return record


def qwenvl_inner(model, run, source):
    """What the first call of each attention gets, and its weights."""
    paths = {m: f"text_encoder.{path}" for path, m in model.named_modules()}
    record = {}
    attend = source.eager_attention_forward

    def watched(module, q, k, v, *args, **kwargs):
        out = attend(module, q, k, v, *args, **kwargs)
        for name, x in {"q": q, "k": k, "v": v, "weights": out[1]}.items():
            record.setdefault(f"{paths[module]}:{name}", x.clone())
        return out

    model.set_attn_implementation("eager")
    with mock.patch.object(source, "eager_attention_forward", watched):
        run(model)
    return record


def finish(name, ids, output, record):
    save(HERE / name / "golden.safetensors", {"ids": ids[0].int(), "output": output} | record)


def save(file, tensors):
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, file, metadata={"format": "pt"})
    file.chmod(0o644)


def buckets():
    distances = torch.arange(-600, 601)
    tables = {}
    for count, distance in ((32, 128), (12, 20), (8, 600), (33, 50), (4, 2), (64, 1000)):
        table = T5Attention._relative_position_bucket(distances, True, count, distance)
        tables[f"{count}-{distance}"] = table.to(torch.uint8)
    save(HERE / "buckets.safetensors", tables)


if __name__ == "__main__":
    main()

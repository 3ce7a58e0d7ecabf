"""Writes flux.json, flux2.json, qwenimage.json, qwenimage21.json, krea2.json and cosmos.json beside it: what diffusers
computes in float32 with small random transformers.

    PYTHONPATH=scripts/reference .setup/reference/bin/python transformer/testdata/make.py

(scripts/reference/run.sh installs what it needs.) Weights and inputs are not written: numbers() makes them of a name and
a shape, here and in the tests. Of outputs all values are kept, of what the modules inside receive and return the shape,
the largest magnitude and a few samples.
"""

import base64
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from diffusers import (
    CosmosTransformer3DModel,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    Krea2Pipeline,
    Krea2Transformer2DModel,
    QwenImage21Transformer2DModel,
    QwenImageTransformer2DModel,
)
from diffusers.models.transformers.transformer_flux2 import Flux2KVAttnProcessor, Flux2KVParallelSelfAttnProcessor
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

from gomflux_reference.inner import observe
from gomflux_reference.record import Recorder

SAMPLES = 4
SMALL = ("x_embedder", ".patch_embed.", "context_embedder", ".img_in.", ".txt_in.", ".to_q.", ".to_k.", ".add_q_proj.", ".add_k_proj.")


def numbers(name: str, shape) -> np.ndarray:
    """Evenly distributed from -1 to 1: splitmix64, from FNV-1a of the name on."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    n = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)).reshape(shape)


def parameter(name: str, shape, kind: str, norms: float) -> np.ndarray:
    """norms is the mean of the weights of norms: 0 for those that are stored minus one."""
    u = numbers(name, shape)
    if name.endswith(".bias"):
        scale = 0.17
    elif len(shape) == 1:
        return np.float32(norms) + u * np.float32(0.35)
    else:
        scale = math.sqrt(3 / shape[1])
    if kind == "small" and any(part in f".{name}" for part in SMALL):
        scale *= 0.03
    return u * np.float32(scale)


def inputs(name: str, *shape) -> torch.Tensor:
    return torch.from_numpy(numbers(name, shape) * np.float32(1.7))


class Sampler(Recorder):
    def __init__(self, folder: str):
        super().__init__(Path(folder), ["*", "*:[!w]*", "*:weights"])
        self.samples = {}

    def _keep(self, name: str, tensor: torch.Tensor, sample: int):
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        x = tensor.detach().float().flatten()
        at = [(i * 2654435761 + 12345) % x.numel() for i in range(SAMPLES)]
        values = [float(f"{v:.8g}") for v in (float(x[i]) for i in at)]
        self.samples[name] = {"shape": list(tensor.shape), "largest": float(f"{x.abs().max():.4g}"), "samples": values}


def encode(x: torch.Tensor) -> str:
    return base64.b64encode(x.detach().contiguous().numpy().astype("<f4").tobytes()).decode()


def build(cls, config: dict, kind: str, norms: float):
    model = cls(**config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(parameter(name, tuple(p.shape), kind, norms)))
    return model


def recorded(model, call, tap: bool):
    """Calls the model, and samples its tensors if tap."""
    if not tap:
        return call(), {}
    with tempfile.TemporaryDirectory() as folder:
        record = Sampler(folder)
        record.watch("transformer", model, stepped=True)
        with observe(record, {"transformer": model}, {}):
            out = call()
        for m in model.modules():
            for hooks in (m._forward_hooks, m._forward_pre_hooks):
                hooks.clear()
        return out, record.samples


def pack(x):
    b, c, h, w = x.shape
    return x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)


def unpack(x, h, w):
    b, _, n = x.shape
    return x.view(b, h // 2, w // 2, n // 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, n // 4, h, w)


def flux(model, case: dict):
    config = model.config
    b, h, w, t = case["batch"], case["height"], case["width"], case["text"]
    latents = inputs("latents", b, config.in_channels // 4, h, w)
    text = inputs("text", case["texts"], t, config.joint_attention_dim)
    pooled = inputs("pooled", case["texts"], config.pooled_projection_dim)
    ids = torch.zeros(h // 2, w // 2, 3)
    ids[..., 1] += torch.arange(h // 2)[:, None]
    ids[..., 2] += torch.arange(w // 2)[None]
    guidance = torch.full([b], case["guidance"]) if config.guidance_embeds else None
    out, taps = recorded(
        model,
        lambda: model(
            hidden_states=pack(latents),
            timestep=torch.full([b], case["timestep"]) / 1000,
            guidance=guidance,
            pooled_projections=pooled.expand(b, -1),
            encoder_hidden_states=text.expand(b, -1, -1),
            txt_ids=torch.zeros(t, 3),
            img_ids=ids.reshape(-1, 3),
            return_dict=False,
        )[0],
        case.get("tap", False),
    )
    return [unpack(out, h, w)], taps


def grid(first: int, h: int, w: int):
    return torch.cartesian_prod(torch.tensor([first]), torch.arange(h), torch.arange(w), torch.arange(1))


def flux2(model, case: dict):
    config = model.config
    b, h, w, t = case["batch"], case["height"], case["width"], case["text"]
    latents = inputs("latents", b, config.in_channels, h, w)
    tokens = latents.flatten(2).mT
    text = inputs("text", case["texts"], t, config.joint_attention_dim)
    sizes = case["references"]
    references = inputs("references", 1, sum(y * x for y, x in sizes), config.in_channels) if sizes else tokens[:, :0]
    references = references.expand(b, -1, -1)
    target_ids = grid(0, h, w)
    reference_ids = torch.cat([target_ids[:0]] + [grid(10 + 10 * i, y, x) for i, (y, x) in enumerate(sizes)])
    text_ids = torch.cartesian_prod(torch.arange(1), torch.arange(1), torch.arange(1), torch.arange(t))

    def call(hidden, ids, **kv):
        return model(
            hidden_states=hidden,
            timestep=torch.full([b], case["timestep"]) / 1000,
            guidance=None,
            encoder_hidden_states=text.expand(b, -1, -1),
            txt_ids=text_ids[None],
            img_ids=ids[None],
            return_dict=False,
            **kv,
        )

    def image(x):
        return x[:, : h * w].mT.reshape(b, -1, h, w)

    tap = case.get("tap", False)
    if not case["kv"]:
        hidden, ids = torch.cat([tokens, references], 1), torch.cat([target_ids, reference_ids])
        out, taps = recorded(model, lambda: call(hidden, ids)[0], tap)
        return [image(out)], taps

    for block in model.transformer_blocks:
        block.attn.set_processor(Flux2KVAttnProcessor())
    for block in model.single_transformer_blocks:
        block.attn.set_processor(Flux2KVParallelSelfAttnProcessor())
    hidden, ids = torch.cat([references, tokens], 1), torch.cat([reference_ids, target_ids])
    kv = {"kv_cache_mode": "extract", "num_ref_tokens": references.shape[1]}
    (first, cache), taps = recorded(model, lambda: call(hidden, ids, **kv), tap)
    later, more = recorded(model, lambda: call(tokens, target_ids, kv_cache=cache, kv_cache_mode="cached")[0], tap)
    taps |= {name.replace("@0", "@1"): value for name, value in more.items()}
    return [image(first), image(later)], taps


def qwenimage(model, case: dict):
    config = model.config
    b, h, w, t = case["batch"], case["height"], case["width"], case["text"]
    tokens = pack(inputs("latents", b, config.in_channels // 4, h, w))
    text = inputs("text", case["texts"], t, config.joint_attention_dim) * case["text_scale"]
    sizes = [[h, w], *case["references"]]
    references = [
        pack(inputs(f"reference {i}", 1, config.in_channels // 4, *size)).expand(b, -1, -1)
        for i, size in enumerate(case["references"])
    ]
    out, taps = recorded(
        model,
        lambda: model(
            hidden_states=torch.cat([tokens, *references], 1),
            timestep=torch.full([b], case["timestep"]) / 1000,
            guidance=None,
            encoder_hidden_states_mask=None,
            encoder_hidden_states=text.expand(b, -1, -1),
            img_shapes=[[(1, y // 2, x // 2) for y, x in sizes]] * b,
            return_dict=False,
        )[0],
        case.get("tap", False),
    )
    return [unpack(out[:, : tokens.shape[1]], h, w)], taps


def krea2(model, case: dict):
    """Pads the text in the middle, if the case says so: hidden tokens must not change the result."""
    config = model.config
    b, h, w, t, pads = case["batch"], case["height"], case["width"], case["text"], case["pads"]
    text = inputs("text", case["texts"], t, config.num_text_layers, config.text_hidden_dim).expand(b, -1, -1, -1)
    mask = None
    if pads:
        padding = inputs("padding", 1, pads, *text.shape[2:]).expand(b, -1, -1, -1)
        text = torch.cat([text[:, :-1], padding, text[:, -1:]], 1)
        mask = torch.tensor([[True] * (t - 1) + [False] * pads + [True]]).expand(b, -1)
    out, taps = recorded(
        model,
        lambda: model(
            hidden_states=pack(inputs("latents", b, config.in_channels // 4, h, w)),
            encoder_hidden_states=text,
            timestep=torch.full([b], case["timestep"]) / 1000,
            position_ids=Krea2Pipeline.prepare_position_ids(t + pads, h // 2, w // 2, "cpu"),
            encoder_attention_mask=mask,
            return_dict=False,
        )[0],
        case.get("tap", False),
    )
    return [unpack(out, h, w)], taps


def cosmos(model, case: dict):
    config = model.config
    b, h, w = case["batch"], case["height"], case["width"]
    text = inputs("text", case["texts"], case["text"], config.text_embed_dim)
    out, taps = recorded(
        model,
        lambda: model(
            hidden_states=inputs("latents", b, config.in_channels, h, w)[:, :, None],
            timestep=torch.full([b], case["timestep"]) / 1000,
            encoder_hidden_states=text.expand(b, -1, -1),
            padding_mask=torch.zeros(1, 1, 8 * h, 8 * w),
            return_dict=False,
        )[0],
        case.get("tap", False),
    )
    return [out[:, :, 0]], taps


def qwenimage21(model, case: dict):
    config = model.config
    b, h, w = case["batch"], case["height"], case["width"]
    latents = inputs("latents", b, config.in_channels, h, w).flatten(2).mT
    slots = torch.tensor([c == "i" for c in case["prompt"]] + [True] * (h * w // 4))
    text = inputs("text", case["texts"], len(case["prompt"]), config.context_in_dim) * case["text_scale"]
    sizes = [*case["references"], [h, w]]
    references = inputs("references", 1, sum(y * x for y, x in sizes) - h * w, config.in_channels).expand(b, -1, -1)

    def call(**kv):
        return model(
            hidden_states=torch.cat([references, latents], 1),
            timestep=torch.full([b], case["timestep"]) / 1000,
            encoder_hidden_states=text.expand(b, -1, -1),
            img_shapes=[[(1, y, x) for y, x in sizes]] * b,
            img_mask=slots.expand(b, -1),
            return_dict=False,
            **kv,
        )[0]

    def image(x):
        return x[:, -h * w :].mT.reshape(b, -1, h, w)

    tap = case.get("tap", False)
    if not case["kv"]:
        out, taps = recorded(model, call, tap)
        return [image(out)], taps
    cache = QwenImage21KVCache(config.num_layers)
    first, taps = recorded(model, lambda: call(kv_cache=cache, kv_cache_mode="extract"), tap)
    later, more = recorded(model, lambda: call(kv_cache=cache, kv_cache_mode="cached"), tap)
    taps |= {name.replace("@0", "@1"): value for name, value in more.items()}
    return [image(first), image(later)], taps


def write(file: str, cls, run, models: list, norms: float = 1):
    out = []
    for config, kind, cases in models:
        model = build(cls, config, kind, norms)
        for case in cases:
            with torch.no_grad():
                outputs, taps = run(model, case)
            case |= {"outputs": [encode(x) for x in outputs]} | ({"taps": taps} if taps else {})
        parameters = {name: list(p.shape) for name, p in model.named_parameters()}
        norm = {} if norms == 1 else {"norms": norms}
        out.append({"config": config, "kind": kind} | norm | {"parameters": parameters, "cases": cases})
    (Path(__file__).parent / file).write_text(compact(out) + "\n")


def compact(value, depth=0) -> str:
    """JSON with one line for each parameter, output and tap."""
    if depth < 5 and isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(k)}: {compact(v, depth + 1)}" for k, v in value.items()) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(compact(v, depth + 1) for v in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))


def main():
    torch.set_num_threads(2)
    one = {"batch": 1, "texts": 1}
    flux_a = {
        "in_channels": 16, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 20, "pooled_projection_dim": 12, "guidance_embeds": False,
        "axes_dims_rope": [4, 6, 6],
    }  # fmt: skip
    flux_b = {
        "in_channels": 24, "num_layers": 1, "num_single_layers": 3, "attention_head_dim": 12,
        "num_attention_heads": 3, "joint_attention_dim": 14, "pooled_projection_dim": 10, "guidance_embeds": True,
        "axes_dims_rope": [2, 4, 6],
    }  # fmt: skip
    size = {"height": 6, "width": 10, "text": 7, "timestep": 937.5}
    write("flux.json", FluxTransformer2DModel, flux, [
        (flux_a, "ordinary", [
            one | size | {"tap": True},
            one | size | {"height": 14, "width": 4, "text": 1, "timestep": 1000.0},
            size | {"batch": 2, "texts": 2},
            size | {"batch": 2, "texts": 1},
        ]),
        (flux_b, "small", [
            one | size | {"guidance": 3.5, "timestep": 12.3, "tap": True},
            size | {"batch": 3, "texts": 1, "guidance": 5.0, "height": 8, "width": 6, "text": 5},
        ]),
    ])  # fmt: skip

    flux2_a = {
        "in_channels": 12, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 20, "mlp_ratio": 3.0, "axes_dims_rope": [4, 4, 4, 4],
        "guidance_embeds": False,
    }  # fmt: skip
    flux2_b = {
        "in_channels": 8, "num_layers": 1, "num_single_layers": 3, "attention_head_dim": 14,
        "num_attention_heads": 3, "joint_attention_dim": 18, "mlp_ratio": 2.5, "axes_dims_rope": [2, 6, 2, 4],
        "guidance_embeds": False, "rope_theta": 500, "eps": 2e-6, "timestep_guidance_channels": 32,
    }  # fmt: skip
    size = {"height": 3, "width": 5, "text": 7, "timestep": 937.5, "kv": False, "references": []}
    two = {"references": [[2, 3], [4, 1]]}
    write("flux2.json", Flux2Transformer2DModel, flux2, [
        (flux2_a, "ordinary", [
            one | size,
            one | size | {"references": [[3, 2]]},
            one | size | two | {"tap": True},
            size | two | {"batch": 2, "texts": 1},
            one | size | two | {"kv": True, "tap": True},
            size | {"kv": True, "batch": 2, "texts": 2, "references": [[4, 2]]},
        ]),
        (flux2_b, "small", [
            one | size | {"text": 3, "timestep": 12.3, "tap": True},
            size | {"batch": 2, "texts": 2, "height": 4, "width": 3, "text": 9},
            one | size | two,
            one | size | two | {"kv": True},
        ]),
    ])  # fmt: skip

    qwenimage_a = {
        "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
        "joint_attention_dim": 20, "axes_dims_rope": [4, 6, 6],
    }  # fmt: skip
    qwenimage_b = {
        "in_channels": 24, "out_channels": 6, "num_layers": 3, "attention_head_dim": 12, "num_attention_heads": 3,
        "joint_attention_dim": 14, "axes_dims_rope": [2, 4, 6], "zero_cond_t": True,
    }  # fmt: skip
    size = {"height": 6, "width": 10, "text": 7, "timestep": 937.5, "references": [], "text_scale": 1.0}
    two = {"references": [[4, 6], [14, 2]]}
    write("qwenimage.json", QwenImageTransformer2DModel, qwenimage, [
        (qwenimage_a, "ordinary", [
            one | size,
            one | size | two | {"tap": True},
            one | size | {"references": [[10, 6]], "timestep": 1000.0, "text": 1},
            size | two | {"batch": 2, "texts": 2},
        ]),
        (qwenimage_b, "small", [
            one | size | {"timestep": 12.3, "text_scale": 0.01},
            one | size | {"references": [[6, 2], [2, 18], [6, 6]], "text_scale": 0.01, "text": 5, "tap": True},
            size | {"batch": 2, "texts": 1, "references": [[6, 6]], "text_scale": 0.01, "timestep": 500.0},
        ]),
    ])  # fmt: skip

    krea2_a = {
        "in_channels": 16, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 40, "timestep_embed_dim": 32, "text_hidden_dim": 24, "num_text_layers": 3,
        "text_num_attention_heads": 2, "text_num_key_value_heads": 2, "text_intermediate_size": 36,
        "num_layerwise_text_blocks": 2, "num_refiner_text_blocks": 1, "axes_dims_rope": [4, 6, 6],
    }  # fmt: skip
    krea2_b = {
        "in_channels": 24, "num_layers": 3, "attention_head_dim": 12, "num_attention_heads": 3, "num_key_value_heads": 3,
        "intermediate_size": 28, "text_hidden_dim": 20, "num_text_layers": 4, "text_num_attention_heads": 4,
        "text_num_key_value_heads": 1, "text_intermediate_size": 32, "num_layerwise_text_blocks": 1,
        "num_refiner_text_blocks": 2, "axes_dims_rope": [2, 4, 6], "rope_theta": 500.0, "norm_eps": 2e-6,
    }  # fmt: skip
    size = {"height": 6, "width": 10, "text": 7, "timestep": 937.5, "pads": 0}
    write("krea2.json", Krea2Transformer2DModel, krea2, [
        (krea2_a, "ordinary", [
            one | size | {"tap": True},
            one | size | {"height": 14, "width": 4, "text": 1, "timestep": 1000.0},
            one | size | {"pads": 5},
            size | {"batch": 2, "texts": 2},
            size | {"batch": 2, "texts": 1, "pads": 3},
        ]),
        (krea2_b, "small", [
            one | size | {"timestep": 12.3, "tap": True},
            size | {"batch": 3, "texts": 1, "height": 8, "width": 6, "text": 5},
        ]),
    ], norms=0)  # fmt: skip

    qwenimage21_a = {
        "in_channels": 10, "out_channels": 10, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
        "context_in_dim": 20, "mlp_ratio": 3, "axes_dims_rope": [4, 6, 6],
    }  # fmt: skip
    qwenimage21_b = {
        "in_channels": 6, "out_channels": 6, "num_layers": 3, "attention_head_dim": 12, "num_attention_heads": 3,
        "context_in_dim": 14, "mlp_ratio": 2, "axes_dims_rope": [2, 4, 6], "eps": 2e-6,
    }  # fmt: skip
    # i is an image's slot, of 4 latents, t a token of text
    size = {
        "height": 6, "width": 10, "prompt": "t" * 7, "references": [], "timestep": 937.5, "text_scale": 1.0, "kv": True,
    }  # fmt: skip
    two = {"prompt": "ttt" + "i" * 6 + "tt" + "i" * 3 + "tttt", "references": [[4, 6], [2, 6]]}
    adjacent = {"prompt": "t" + "i" * 9 + "t", "references": [[6, 2], [2, 6], [6, 2]]}
    write("qwenimage21.json", QwenImage21Transformer2DModel, qwenimage21, [
        (qwenimage21_a, "ordinary", [
            one | size | {"tap": True},
            one | size | two | {"tap": True},
            one | size | adjacent | {"timestep": 1000.0},
            one | size | two | {"kv": False},
            size | two | {"batch": 2, "texts": 2},
            size | {"batch": 2, "texts": 1},
        ]),
        (qwenimage21_b, "small", [
            one | size | adjacent | {"timestep": 12.3, "text_scale": 0.01, "tap": True},
            size | {"batch": 3, "texts": 1, "height": 2, "width": 14, "text_scale": 0.01, "prompt": "t"},
        ]),
        (qwenimage21_b | {"causal_condition": False}, "ordinary", [
            one | size | two | {"kv": False, "tap": True},
        ]),
    ])  # fmt: skip

    cosmos_a = {
        "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 20, "num_attention_heads": 2,
        "mlp_ratio": 4.0, "text_embed_dim": 14, "adaln_lora_dim": 6, "rope_scale": [1.0, 4.0, 4.0],
        "extra_pos_embed_type": None,
    }  # fmt: skip
    cosmos_b = cosmos_a | {
        "in_channels": 6, "out_channels": 6, "num_layers": 1, "attention_head_dim": 26, "num_attention_heads": 3,
        "mlp_ratio": 2.5, "text_embed_dim": 20, "adaln_lora_dim": 10, "rope_scale": [2.0, 1.0, 3.0],
        "concat_padding_mask": False, "max_size": [128, 12, 20],
    }  # fmt: skip
    size = {"height": 6, "width": 10, "text": 7, "timestep": 937.5}
    write("cosmos.json", CosmosTransformer3DModel, cosmos, [
        (cosmos_a, "ordinary", [
            one | size | {"tap": True},
            one | size | {"height": 14, "width": 4, "text": 1, "timestep": 1000.0},
            size | {"batch": 2, "texts": 2},
            size | {"batch": 2, "texts": 1},
        ]),
        (cosmos_b, "small", [
            one | size | {"timestep": 12.3, "tap": True},
            size | {"batch": 3, "texts": 1, "height": 8, "width": 6, "text": 5},
        ]),
    ])  # fmt: skip


if __name__ == "__main__":
    main()

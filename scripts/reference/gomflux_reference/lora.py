"""LoRA files in every format, and the weights that diffusers and PEFT make of small models with them.

For what neither reads, the weights follow from the formulas of the programs that do.

    scripts/reference/run.sh loras models/lora/testdata    # git diff then shows what has changed

It needs the packages of requirements-lora.txt too, which run.sh installs.
"""

import inspect
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import diffusers
import numpy as np
import peft
import torch
import transformers
from diffusers.loaders import lora_pipeline
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from .adapters import narrow
from .files import read_json, write_json

SAMPLES = 24


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


def values(name: str, *shape, offset=0.0) -> torch.Tensor:
    return torch.from_numpy(numbers(name, shape)) + offset


# The models: their configs are those of the Go types, too. Weights are not written, but are numbers() of their names.

HEADS = dict(attention_head_dim=8, num_attention_heads=2)
MODELS = {
    "flux": {
        "transformer": (
            diffusers.FluxTransformer2DModel,
            dict(
                in_channels=16, num_layers=2, num_single_layers=1, joint_attention_dim=12, pooled_projection_dim=16,
                guidance_embeds=True, axes_dims_rope=(2, 2, 4), **HEADS,
            ),
        ),
        "text_encoder": (
            transformers.CLIPTextModel,
            dict(
                vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=12, bos_token_id=0, eos_token_id=2, pad_token_id=1,
            ),
        ),
        "text_encoder_2": (
            transformers.T5EncoderModel,
            dict(
                vocab_size=50, d_model=12, d_kv=6, d_ff=20, num_layers=2, num_heads=3, feed_forward_proj="gated-gelu",
                is_encoder_decoder=False,
            ),
        ),
    },
    "flux2": {
        "transformer": (
            diffusers.Flux2Transformer2DModel,
            dict(
                in_channels=8, num_layers=2, num_single_layers=1, joint_attention_dim=12, timestep_guidance_channels=16,
                guidance_embeds=False, axes_dims_rope=(2, 2, 2, 2), **HEADS,
            ),
        ),
    },
    "flux2dev": {
        "transformer": (
            diffusers.Flux2Transformer2DModel,
            dict(
                in_channels=8, num_layers=2, num_single_layers=1, joint_attention_dim=12, timestep_guidance_channels=16,
                axes_dims_rope=(2, 2, 2, 2), **HEADS,
            ),
        ),
    },
    "zimage": {
        "transformer": (
            diffusers.ZImageTransformer2DModel,
            dict(
                in_channels=4, dim=24, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=12,
                axes_dims=(4, 4, 4), axes_lens=(64, 32, 32),
            ),
        ),
        "text_encoder": (
            transformers.Qwen3Model,
            dict(
                vocab_size=40, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, head_dim=6, bos_token_id=0, eos_token_id=1,
            ),
        ),
    },
    "qwenimage": {
        "transformer": (
            diffusers.QwenImageTransformer2DModel,
            dict(
                in_channels=16, out_channels=4, num_layers=2, joint_attention_dim=12, axes_dims_rope=(2, 2, 4), **HEADS,
            ),
        ),
    },
    "qwenimage21": {
        "transformer": (
            diffusers.QwenImage21Transformer2DModel,
            dict(
                in_channels=12, out_channels=12, num_layers=2, context_in_dim=14, mlp_ratio=2, axes_dims_rope=(2, 2, 4),
                **HEADS,
            ),
        ),
    },
    "krea2": {
        "transformer": (
            diffusers.Krea2Transformer2DModel,
            dict(
                in_channels=16, num_layers=2, num_key_value_heads=1, intermediate_size=20, timestep_embed_dim=10,
                text_hidden_dim=12, num_text_layers=3, text_num_attention_heads=2, text_num_key_value_heads=2,
                text_intermediate_size=14, num_layerwise_text_blocks=1, num_refiner_text_blocks=1,
                axes_dims_rope=(2, 2, 4), **HEADS,
            ),
        ),
    },
    "ernie": {
        "transformer": (
            diffusers.ErnieImageTransformer2DModel,
            dict(
                hidden_size=16, num_attention_heads=2, num_layers=2, ffn_hidden_size=20, in_channels=12, out_channels=12,
                text_in_dim=10, rope_axes_dim=(2, 2, 4),
            ),
        ),
    },
}  # fmt: skip
PIPELINES = {
    "flux": diffusers.FluxPipeline,
    "flux2": diffusers.Flux2KleinPipeline,
    "flux2dev": diffusers.Flux2Pipeline,
    "zimage": diffusers.ZImagePipeline,
    "qwenimage": diffusers.QwenImagePipeline,
    "qwenimage21": diffusers.QwenImagePipeline,  # which loads LoRAs as 2.1's, but needs no processor
    "krea2": diffusers.Krea2Pipeline,
    "ernie": diffusers.ErnieImagePipeline,
}
CONFIGS = {
    transformers.CLIPTextModel: transformers.CLIPTextConfig,
    transformers.T5EncoderModel: transformers.T5Config,
    transformers.Qwen3Model: transformers.Qwen3Config,
}


def build(cls, config: dict) -> torch.nn.Module:
    model = cls(CONFIGS[cls](**config)) if cls in CONFIGS else cls(**config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values(name, *p.shape, offset=1.0 if p.dim() == 1 and not name.endswith("bias") else 0.0))
    return model.eval()


@dataclass
class Case:
    """A LoRA, and how the reference applies it.

    Either tensors of one file, or write, which writes a folder with one. apply changes the modules as the reference
    does with the file or folder at a scale.
    """

    name: str
    model: str
    apply: Callable[[dict, Path, float], None]
    tensors: dict | None = None
    write: Callable[[Path], None] | None = None
    scale: float = 1.0


def low(name, out, inside, rank=3, alpha=None, dtype=torch.float32, down="lora_A.weight", up="lora_B.weight") -> dict:
    """A LoRA of one module."""
    tensors = {f"{name}.{down}": values(f"{name} down", rank, inside), f"{name}.{up}": values(f"{name} up", out, rank)}
    if alpha is not None:
        tensors[f"{name}.alpha"] = torch.tensor(float(alpha))
    return {k: v.to(dtype) for k, v in tensors.items()}


def kohya(*args, **more) -> dict:
    return low(*args, down="lora_down.weight", up="lora_up.weight", **more)


def dotted(*args, **more) -> dict:
    return low(*args, down="lora.down.weight", up="lora.up.weight", **more)


# How references apply LoRAs


def with_diffusers(model: str, rename: Callable[[str], str] = str) -> Callable:
    """load_lora_weights and fuse_lora. rename makes names that this pipeline knows of others that mean the same."""

    def apply(modules: dict, file: Path, scale: float):
        cls = PIPELINES[model]
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        pipe = cls(**{p.name: None for p in parameters if p.default is p.empty} | modules)
        if file.is_dir():
            pipe.load_lora_weights(file, adapter_name="it")
        else:
            state = {rename(k): v for k, v in load_file(file).items()}
            conversion = narrow(modules["transformer"])
            with mock.patch.object(lora_pipeline, "_convert_kohya_flux_lora_to_diffusers", conversion):
                pipe.load_lora_weights(state, adapter_name="it")
        parts = [p for p in pipe._lora_loadable_modules if getattr(getattr(pipe, p), "peft_config", None)]
        pipe.fuse_lora(components=parts, lora_scale=scale, adapter_names=["it"])
        pipe.unload_lora_weights()

    return apply


def with_converted_lokr(modules: dict, file: Path, scale: float):
    """LyCORIS' LoKr with the names that diffusers' converters for FLUX.2 give its layers, those of joined layers too."""
    state = diffusers.Flux2Pipeline.lora_state_dict(load_file(file))
    joined = {"to_qkv": ("to_q", "to_k", "to_v"), "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj")}
    for layer in sorted({name.partition(".lokr_")[0] for name in state}):

        def factor(name):
            name = f"{layer}.lokr_{name}"
            return state[name] if name in state else state[f"{name}_a"] @ state[f"{name}_b"]

        parent, _, own = layer.removeprefix("transformer.").rpartition(".")
        names = joined.get(own, (own,))
        with torch.no_grad():
            for name, change in zip(names, torch.kron(factor("w1"), factor("w2")).chunk(len(names))):
                modules["transformer"].get_submodule(f"{parent}.{name}".lstrip(".")).weight.add_(scale * change)


def with_peft(modules: dict, folder: Path, scale: float):
    model = peft.PeftModel.from_pretrained(modules["transformer"], folder)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.set_scale("default", scale)
    model.merge_and_unload()


def with_formulas(changes: dict[str, Callable]) -> Callable:
    """For what neither knows. A change takes weight, file and scale to the new weight."""

    def apply(modules: dict, file: Path, scale: float):
        tensors = load_file(file)
        for name, change in changes.items():
            component, _, path = name.partition(".")
            p = modules[component].get_parameter(path)
            with torch.no_grad():
                p.copy_(change(p.clone(), tensors, scale))

    return apply


def added(name: str, rows=slice(None)) -> Callable:
    return lambda w, tensors, scale: w + scale * tensors[name][rows]


def multiplied(name: str, rows=slice(None)) -> Callable:
    """up·down, by alpha and rank."""

    def change(w, tensors, scale):
        down, up = tensors[f"{name}.lora_down.weight"], tensors[f"{name}.lora_up.weight"]
        scale *= tensors[f"{name}.alpha"].item() / down.shape[0]
        return w + scale * (up.flatten(1) @ down.flatten(1))[rows]

    return change


def kronecker(name: str, rows=slice(None)) -> Callable:
    """LyCORIS' LoKr, and its DoRA: the norms are those of the changed weight, along the axis that dora_scale lacks.

    Its strength is ComfyUI's: how far to go from the weight to the one at full strength.
    """

    def change(w, tensors, scale):
        t = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(f"{name}.")}
        rank = next((t[k].shape[0] for k in ("lokr_w2_b", "lokr_w1_b") if k in t), None)
        w1 = t["lokr_w1"] if "lokr_w1" in t else t["lokr_w1_a"] @ t["lokr_w1_b"]
        w2 = t["lokr_w2"] if "lokr_w2" in t else t["lokr_w2_a"] @ t["lokr_w2_b"]
        delta = (torch.kron(w1, w2) * (t["alpha"].item() / rank if rank else 1))[rows]
        if "dora_scale" not in t:
            return w + scale * delta
        norms, new = t["dora_scale"], w + delta
        norms = norms[rows] if norms.shape[1] == 1 else norms
        new = new * norms / new.norm(dim=1 if norms.shape[1] == 1 else 0, keepdim=True)
        return w + scale * (new - w)

    return change


# What libraries write


def draw(model: torch.nn.Module):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name or "lokr_" in name or "hada_" in name:
                p.copy_(values(name, *p.shape, offset=5.0 if "magnitude" in name else 0.0))


def ordered(config: dict) -> dict:
    """With the modules, which PEFT has as a set, in an order that is always the same."""
    return config | {"target_modules": sorted(config["target_modules"])}


def peft_folder(model: str, config: peft.PeftConfig) -> Callable:
    def write(folder: Path):
        wrapped = peft.get_peft_model(build(*MODELS[model]["transformer"]), config)
        draw(wrapped)
        wrapped.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        file = folder / "adapter_config.json"
        write_json(file, ordered(read_json(file)))

    return write


def diffusers_folder(model: str, **configs: peft.LoraConfig) -> Callable:
    """save_lora_weights of the components that have a config, with their metadata."""

    def write(folder: Path):
        arguments = {}
        for name, config in configs.items():
            module = build(*MODELS[model][name])
            module.add_adapter(config, adapter_name="it")
            draw(module)
            arguments[f"{name}_lora_layers"] = peft.get_peft_model_state_dict(module, adapter_name="it")
            arguments[f"{name}_lora_adapter_metadata"] = ordered(config.to_dict())
        PIPELINES[model].save_lora_weights(folder, **arguments)
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as f:
                metadata = f.metadata()
            del metadata["format"]  # several come in any order
            save_file(load_file(file), file, metadata)

    return write


DOUBLE, SINGLE = "transformer_blocks.1", "single_transformer_blocks.0"
CLIP = "encoder.layers.1"


def cases() -> list[Case]:
    out = []

    def case(name, model, apply, **more):
        out.append(Case(f"{model}-{name}", model, apply, **more))

    linears = ["attn.to_q", "attn.add_k_proj", "ff.net.2", "proj_mlp", "norm1.linear", "proj_out"]

    # FLUX.1
    case(
        "diffusers", "flux", with_diffusers("flux"), scale=0.75,
        write=diffusers_folder(
            "flux",
            transformer=peft.LoraConfig(
                r=4, lora_alpha=6, target_modules=linears, rank_pattern={"add_k_proj": 2, "proj_mlp": 3},
                alpha_pattern={"proj_mlp": 12, "transformer_blocks.1.attn.to_q": 1},
            ),
            text_encoder=peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "fc1"]),
        ),
    )  # fmt: skip
    case(
        "diffusers-names", "flux", with_diffusers("flux"),
        tensors=low(f"transformer.{DOUBLE}.attn.to_v", 16, 16)
        | low(f"transformer.{SINGLE}.proj_out", 16, 80, rank=5, dtype=torch.bfloat16)
        | low(f"text_encoder.text_model.{CLIP}.self_attn.out_proj", 16, 16, dtype=torch.float16),
    )  # fmt: skip
    clip = f"lora_te1_text_model_{CLIP.replace('.', '_')}"
    case(
        "kohya", "flux", with_diffusers("flux"), scale=1.25,
        tensors=kohya("lora_unet_double_blocks_1_img_attn_qkv", 48, 16, alpha=1)
        | kohya("lora_unet_double_blocks_0_txt_attn_qkv", 48, 16, rank=4, alpha=8, dtype=torch.bfloat16)
        | kohya("lora_unet_double_blocks_0_img_mod_lin", 96, 16, rank=4, alpha=2, dtype=torch.float16)
        | kohya("lora_unet_double_blocks_1_txt_mlp_0", 64, 16)
        | kohya("lora_unet_single_blocks_0_linear1", 112, 16, rank=4, alpha=2)
        | kohya("lora_unet_single_blocks_0_linear2", 16, 80, alpha=1)
        | kohya("lora_unet_single_blocks_0_modulation_lin", 48, 16, alpha=1)
        | kohya(f"{clip}_mlp_fc2", 16, 24, alpha=1),
    )  # fmt: skip
    ends = "lora_unet_final_layer_adaLN_modulation_1"
    case(
        "kohya-more", "flux",
        # diffusers drops these: its names for the first ones lack their prefix, the last is one of transformers 4
        with_formulas({
            "transformer.time_text_embed.text_embedder.linear_1.weight": multiplied("lora_unet_vector_in_in_layer"),
            "transformer.norm_out.linear.weight": multiplied(ends, [*range(16, 32), *range(16)]),
            "transformer.proj_out.weight": multiplied("lora_unet_final_layer_linear"),
            f"text_encoder.{CLIP}.self_attn.k_proj.weight": multiplied(f"{clip}_self_attn_k_proj"),
            "text_encoder.encoder.layers.0.self_attn.q_proj.weight": multiplied(
                "lora_te_text_model_encoder_layers_0_self_attn_q_proj"),
        }),
        tensors={  # as of a convolution with a kernel of 1
            k: v[..., None, None] if v.dim() else v
            for k, v in kohya("lora_unet_vector_in_in_layer", 16, 16, alpha=2).items()
        }
        | kohya(ends, 32, 16, alpha=2)
        | kohya("lora_unet_final_layer_linear", 16, 16, alpha=1)
        | kohya(f"{clip}_self_attn_k_proj", 16, 16, alpha=1)
        | kohya("lora_te_text_model_encoder_layers_0_self_attn_q_proj", 16, 16, alpha=1),
    )  # fmt: skip
    case(
        "kohya-diffusers", "flux", with_diffusers("flux"),
        tensors=kohya("lora_transformer_transformer_blocks_1_attn_to_out_0", 16, 16, alpha=2)
        | kohya("lora_transformer_transformer_blocks_0_attn_add_v_proj", 16, 16, alpha=4)
        | kohya("lora_transformer_single_transformer_blocks_0_attn_to_k", 16, 16, alpha=3)
        | kohya("lora_transformer_norm_out_linear", 32, 16, alpha=1)
        | kohya("lora_transformer_time_text_embed_guidance_embedder_linear_2", 16, 16, alpha=1),
    )  # fmt: skip
    case(
        "comfyui", "flux",
        with_diffusers("flux", lambda k: k.replace("lora_A", "lora_down").replace("lora_B", "lora_up")),
        tensors=low("diffusion_model.double_blocks.0.img_attn.qkv", 48, 16)
        | low("diffusion_model.double_blocks.1.txt_attn.proj", 16, 16)
        | low("diffusion_model.double_blocks.1.img_mlp.2", 16, 64)
        | low("diffusion_model.single_blocks.0.linear1", 112, 16),
    )  # fmt: skip
    case(  # the first ones of a layer count, and the projection of CLIP's pooled embeddings has no effect
        "repeated", "flux", with_diffusers("flux"),
        tensors=low(f"transformer.{DOUBLE}.attn.to_q", 16, 16)
        | low(f"transformer.{DOUBLE}.attn.to_k", 16, 16)
        | kohya("lora_unet_double_blocks_1_img_attn_qkv", 48, 16, alpha=2)
        | kohya("lora_unet_transformer_blocks_1_attn_to_q", 16, 16, alpha=2),
    )  # fmt: skip
    case(
        "text-projection", "flux", with_diffusers("flux"),
        tensors=kohya("lora_unet_double_blocks_0_img_mlp_2", 16, 64, alpha=2)
        | kohya(f"{clip}_mlp_fc1", 24, 16, alpha=1)
        | kohya("lora_te1_text_projection", 16, 16, alpha=1),
    )  # fmt: skip
    case(
        "fp8", "flux", with_diffusers("flux"), scale=0.5,
        tensors=low(f"transformer.{DOUBLE}.ff.net.2", 16, 64, dtype=torch.float8_e4m3fn)
        | low(f"transformer.{SINGLE}.proj_mlp", 64, 16, dtype=torch.float8_e4m3fn),
    )  # fmt: skip
    case(
        "xlabs", "flux", with_diffusers("flux"),
        tensors=low("double_blocks.0.processor.qkv_lora1", 48, 16, down="down.weight", up="up.weight")
        | low("double_blocks.0.processor.qkv_lora2", 48, 16, down="down.weight", up="up.weight")
        | low("double_blocks.1.processor.proj_lora1", 16, 16, down="down.weight", up="up.weight")
        | low("double_blocks.1.processor.proj_lora2", 16, 16, down="down.weight", up="up.weight"),
    )  # fmt: skip
    for name, scale, config in (
        ("rslora", 1.0, peft.LoraConfig(r=4, lora_alpha=3, use_rslora=True, target_modules=linears)),
        (
            "bias", 0.5,
            peft.LoraConfig(r=2, lora_alpha=3, lora_bias=True, target_modules=["attn.to_k", "context_embedder"]),
        ),
        ("dora", 0.7, peft.LoraConfig(r=3, lora_alpha=2, use_dora=True, target_modules=linears)),
        ("lokr", 1.5, peft.LoKrConfig(r=2, alpha=3, target_modules=linears, decompose_factor=4, init_weights=False)),
        (
            "lokr-both", 1.0,
            peft.LoKrConfig(
                r=1, alpha=3, alpha_pattern={"proj_mlp": 0.5}, target_modules=["to_q", "proj_mlp"], decompose_both=True,
                decompose_factor=4, init_weights=False,
            ),
        ),
        ("loha", 0.8, peft.LoHaConfig(r=2, alpha=3, target_modules=["to_v", "ff.net.2"], init_weights=False)),
    ):  # fmt: skip
        case(f"peft-{name}", "flux", with_peft, write=peft_folder("flux", config), scale=scale)
    linear1, qkv = "lora_unet_single_blocks_0_linear1", "lycoris_double_blocks_1_img_attn_qkv"
    case(
        "lycoris", "flux",
        with_formulas({
            f"transformer.{SINGLE}.attn.to_q.weight": kronecker(linear1, slice(0, 16)),
            f"transformer.{SINGLE}.attn.to_k.weight": kronecker(linear1, slice(16, 32)),
            f"transformer.{SINGLE}.attn.to_v.weight": kronecker(linear1, slice(32, 48)),
            f"transformer.{SINGLE}.proj_mlp.weight": kronecker(linear1, slice(48, 112)),
            f"transformer.{SINGLE}.attn.to_q.bias": added(f"{linear1}.diff_b", slice(0, 16)),
            f"transformer.{SINGLE}.attn.to_k.bias": added(f"{linear1}.diff_b", slice(16, 32)),
            f"transformer.{SINGLE}.attn.to_v.bias": added(f"{linear1}.diff_b", slice(32, 48)),
            f"transformer.{SINGLE}.proj_mlp.bias": added(f"{linear1}.diff_b", slice(48, 112)),
            f"transformer.{DOUBLE}.attn.to_q.weight": kronecker(qkv, slice(0, 16)),
            f"transformer.{DOUBLE}.attn.to_k.weight": kronecker(qkv, slice(16, 32)),
            f"transformer.{DOUBLE}.attn.to_v.weight": kronecker(qkv, slice(32, 48)),
            f"transformer.{DOUBLE}.ff.net.2.weight": kronecker(f"lycoris_{DOUBLE.replace('.', '_')}_ff_net_2"),
        }),
        scale=0.6,
        tensors={
            f"{linear1}.lokr_w1": values("w1", 4, 2), f"{linear1}.lokr_w2_a": values("w2 a", 28, 3),
            f"{linear1}.lokr_w2_b": values("w2 b", 3, 8), f"{linear1}.alpha": torch.tensor(2.0),
            f"{linear1}.dora_scale": values("norms out", 112, 1, offset=3.0), f"{linear1}.diff_b": values("bias", 112),
            f"{qkv}.lokr_w1": values("whole 1", 8, 4), f"{qkv}.lokr_w2": values("whole 2", 6, 4),
            f"{qkv}.alpha": torch.tensor(1e9),
            f"lycoris_{DOUBLE.replace('.', '_')}_ff_net_2.lokr_w1": values("in 1", 4, 8),
            f"lycoris_{DOUBLE.replace('.', '_')}_ff_net_2.lokr_w2": values("in 2", 4, 8),
            f"lycoris_{DOUBLE.replace('.', '_')}_ff_net_2.dora_scale": values("norms in", 1, 64, offset=2.0),
        },
    )  # fmt: skip
    block, norm = "diffusion_model.double_blocks.0", "diffusion_model.double_blocks.0.img_attn.norm.query_norm"
    case(
        "differences", "flux",
        with_formulas({
            "transformer.transformer_blocks.0.attn.to_q.bias": added(f"{block}.img_attn.qkv.diff_b", slice(0, 16)),
            "transformer.transformer_blocks.0.attn.to_k.bias": added(f"{block}.img_attn.qkv.diff_b", slice(16, 32)),
            "transformer.transformer_blocks.0.attn.to_v.bias": added(f"{block}.img_attn.qkv.diff_b", slice(32, 48)),
            "transformer.transformer_blocks.0.attn.norm_q.weight": added(f"{norm}.scale.diff"),
            "transformer.transformer_blocks.0.attn.norm_k.weight": added(f"{norm.replace('query', 'key')}.diff"),
            "transformer.x_embedder.weight": added("diffusion_model.img_in.diff"),
            "transformer.norm_out.linear.bias": added(
                "diffusion_model.final_layer.adaLN_modulation.1.diff_b", [*range(16, 32), *range(16)]),
            "text_encoder_2.encoder.block.1.layer.0.SelfAttention.k.weight": multiplied(
                "lora_te3_encoder_block_1_layer_0_SelfAttention_k"),
            "text_encoder_2.encoder.block.0.layer.1.DenseReluDense.wo.weight": multiplied(
                "text_encoders.t5xxl.transformer.encoder.block.0.layer.1.DenseReluDense.wo"),
        }),
        scale=0.5,
        tensors={
            f"{block}.img_attn.qkv.diff_b": values("qkv b", 48), f"{norm}.scale.diff": values("norm q", 8),
            f"{norm.replace('query', 'key')}.diff": values("norm k", 8),
            "diffusion_model.img_in.diff": values("img", 16, 16),
            "diffusion_model.final_layer.adaLN_modulation.1.diff_b": values("ada b", 32),
        }
        | kohya("lora_te3_encoder_block_1_layer_0_SelfAttention_k", 18, 12, alpha=2)
        | kohya("text_encoders.t5xxl.transformer.encoder.block.0.layer.1.DenseReluDense.wo", 12, 20, alpha=2),
    )  # fmt: skip

    # FLUX.2
    case(
        "diffusers", "flux2", with_diffusers("flux2"), scale=0.5,
        write=diffusers_folder(
            "flux2",
            transformer=peft.LoraConfig(
                r=3, lora_alpha=2, target_modules=["to_qkv_mlp_proj", "linear_in", f"{SINGLE}.attn.to_out"]
            ),
        ),
    )  # fmt: skip
    case(
        "comfyui", "flux2", with_diffusers("flux2"),
        tensors=low("diffusion_model.double_blocks.1.img_attn.qkv", 48, 16)
        | low("diffusion_model.double_blocks.0.txt_mlp.0", 96, 16)
        | low("diffusion_model.single_blocks.0.linear1", 144, 16)
        | low("diffusion_model.double_stream_modulation_img.lin", 96, 16)
        | low("diffusion_model.time_in.in_layer", 16, 16),
    )  # fmt: skip
    case(
        "kohya", "flux2", with_diffusers("flux2"),
        tensors=kohya("lora_unet_double_blocks_0_txt_attn_qkv", 48, 16, alpha=1)
        | kohya("lora_unet_single_blocks_0_linear2", 16, 64, alpha=6)
        | kohya("lora_unet_txt_in", 16, 12, alpha=1),
    )  # fmt: skip
    lycoris = "lycoris_transformer_blocks_0_attn_add_q_proj"
    case(
        "lycoris", "flux2", with_diffusers("flux2"), scale=2.0,
        tensors={
            f"{lycoris}.lokr_w1": values("w1", 4, 4), f"{lycoris}.lokr_w2_a": values("w2 a", 4, 1),
            f"{lycoris}.lokr_w2_b": values("w2 b", 1, 4), f"{lycoris}.alpha": torch.tensor(0.5),
        },
    )  # fmt: skip

    # FLUX.2-dev, with all that diffusers' converters know of FLUX.2. The first two are as the published Turbo LoRA is, for
    # diffusers and for ComfyUI, whose file has two prefixes.
    ends = {
        "time_guidance_embed.timestep_embedder.linear_1": ("time_in.in_layer", 16, 16),
        "time_guidance_embed.timestep_embedder.linear_2": ("time_in.out_layer", 16, 16),
        "time_guidance_embed.guidance_embedder.linear_1": ("guidance_in.in_layer", 16, 16),
        "time_guidance_embed.guidance_embedder.linear_2": ("guidance_in.out_layer", 16, 16),
        "x_embedder": ("img_in", 16, 8),
        "context_embedder": ("txt_in", 16, 12),
        "proj_out": ("final_layer.linear", 8, 16),
        "double_stream_modulation_img.linear": ("double_stream_modulation_img.lin", 96, 16),
        "double_stream_modulation_txt.linear": ("double_stream_modulation_txt.lin", 96, 16),
        "single_stream_modulation.linear": ("single_stream_modulation.lin", 48, 16),
    }
    attention = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]
    blocks = {f"transformer_blocks.1.attn.{name}": (16, 16) for name in attention}
    singles = {
        "single_transformer_blocks.0.attn.to_qkv_mlp_proj": ("linear1", 144, 16),
        "single_transformer_blocks.0.attn.to_out": ("linear2", 16, 64),
    }
    forwards = {
        "ff.linear_in": ("img_mlp.0", 96, 16), "ff.linear_out": ("img_mlp.2", 16, 48),
        "ff_context.linear_in": ("txt_mlp.0", 96, 16), "ff_context.linear_out": ("txt_mlp.2", 16, 48),
    }  # fmt: skip

    def several(one, prefix, names: dict, **more) -> dict:
        return {k: v for name, sizes in names.items() for k, v in one(f"{prefix}{name}", *sizes, **more).items()}

    made = {name: sizes for name, *sizes in ends.values()} | {
        f"single_blocks.0.{name}": sizes for name, *sizes in singles.values()
    }
    joined = {f"double_blocks.0.{name}": sizes for name, *sizes in forwards.values()} | {
        f"double_blocks.0.{kind}_attn.{name}": sizes
        for kind in ("img", "txt")
        for name, sizes in {"qkv": (48, 16), "proj": (16, 16)}.items()
    }
    case(
        "turbo", "flux2dev", with_diffusers("flux2dev"),
        tensors=several(low, "transformer.", {name: sizes[1:] for name, sizes in (ends | singles).items()} | blocks),
    )  # fmt: skip
    case(
        "turbo-comfyui", "flux2dev", with_diffusers("flux2dev"),
        tensors=several(low, "diffusion_model.", made) | several(low, "transformer.", blocks),
    )  # fmt: skip
    case("peft", "flux2dev", with_diffusers("flux2dev"), tensors=several(low, "base_model.model.", joined))
    case(
        "expanded", "flux2dev", with_diffusers("flux2dev"),
        tensors=several(low, "base_model.model.", blocks)
        | several(low, "diffusion_model.", {name: sizes[1:] for name, sizes in singles.items()}),
    )  # fmt: skip
    known = ("img_in", "txt_in", "time_in.in_layer", "time_in.out_layer", "final_layer.linear", "single_blocks.0.linear1")
    case(
        "kohya", "flux2dev", with_diffusers("flux2dev"),
        tensors=several(
            kohya, "lora_unet_",
            {name.replace(".", "_"): sizes for name, sizes in (made | joined).items() if name in known or name in joined},
            alpha=2,
        ),
    )  # fmt: skip

    def lokr(name, out, inside) -> dict:
        return {
            f"{name}.lokr_w1": values(f"{name} w1", 4, 4), f"{name}.lokr_w2_a": values(f"{name} w2 a", out // 4, 2),
            f"{name}.lokr_w2_b": values(f"{name} w2 b", 2, inside // 4), f"{name}.alpha": torch.tensor(1.0),
        }  # fmt: skip

    case("lokr", "flux2dev", with_converted_lokr, tensors=several(lokr, "diffusion_model.", made | joined))
    plain = blocks | {name: sizes[1:] for name, sizes in singles.items()}
    plain |= {f"transformer_blocks.1.{name}": sizes[1:] for name, sizes in forwards.items()}
    case("lokr-plain", "flux2dev", with_converted_lokr, tensors=several(lokr, "", plain))
    case(
        "lycoris", "flux2dev", with_converted_lokr,
        tensors=several(lokr, "lycoris_", {name.replace(".", "_"): sizes for name, sizes in plain.items()}),
    )  # fmt: skip

    # Z-Image
    case(
        "diffusers", "zimage", with_diffusers("zimage"),
        write=diffusers_folder(
            "zimage",
            transformer=peft.LoraConfig(
                r=3, lora_alpha=2, target_modules=["to_out.0", "w2", "layers.1.adaLN_modulation.0"]
            ),
        ),
    )  # fmt: skip
    case(
        "kohya", "zimage", with_diffusers("zimage"),
        tensors=kohya("lora_unet_layers_1_attention_to_q", 24, 24, alpha=1)
        | kohya("lora_unet_context_refiner_0_feed_forward_w1", 64, 24, alpha=1)
        | kohya("lora_unet_layers_0_attention_out", 24, 24, alpha=2)
        | kohya("lora_unet_layers_1_adaLN_modulation_0", 96, 24, alpha=2),
    )  # fmt: skip
    case(
        "fused", "zimage", with_diffusers("zimage"),
        tensors=dotted("diffusion_model.layers.0.attention.qkv", 72, 24, alpha=1)
        | dotted("diffusion_model.layers.1.attention.out", 24, 24, alpha=2)
        | dotted("diffusion_model.noise_refiner.0.feed_forward.w3", 64, 24),
    )  # fmt: skip
    split = {"to.q": (24, 24), "to.k": (24, 24), "to.v": (24, 24), "to_out.0": (24, 24), "qkv": (72, 24), "out": (24, 24)}
    case(  # of the layers that are there twice, the split ones count
        "repeated", "zimage", with_diffusers("zimage"),
        tensors={
            k: v for name, shape in split.items() for k, v in dotted(f"diffusion_model.layers.0.attention.{name}", *shape).items()
        },
    )  # fmt: skip
    case(
        "videox-fun", "zimage", with_diffusers("zimage", lambda k: k.replace("lora_unet__", "lora_unet_")), scale=0.8,
        tensors=kohya("lora_unet__layers_0_attention_to_k", 24, 24, alpha=2)
        | kohya("lora_unet__noise_refiner_0_feed_forward_w2", 24, 64, alpha=1),
    )  # fmt: skip
    layer = "diffusion_model.layers.1.attention.to_k"
    case(
        "lokr", "zimage", with_diffusers("zimage"), scale=0.5,
        tensors={
            f"{layer}.lokr_w1": values("w1", 4, 4), f"{layer}.lokr_w2_a": values("w2 a", 6, 2),
            f"{layer}.lokr_w2_b": values("w2 b", 2, 6), f"{layer}.alpha": torch.tensor(1.0),
        },
    )  # fmt: skip
    case(
        "differences", "zimage",
        with_formulas({
            "transformer.layers.0.attention.norm_q.weight": added("diffusion_model.layers.0.attention.q_norm.diff"),
            "transformer.layers.1.ffn_norm2.weight": added("diffusion_model.layers.1.ffn_norm2.diff"),
            "transformer.cap_embedder.0.weight": added("diffusion_model.cap_embedder.0.diff"),
            "transformer.layers.0.adaLN_modulation.0.bias": added("diffusion_model.layers.0.adaLN_modulation.0.diff_b"),
            "transformer.x_pad_token": added("diffusion_model.x_pad_token.diff"),
            "text_encoder.layers.1.self_attn.o_proj.weight": multiplied("lora_te_layers_1_self_attn_o_proj"),
            "text_encoder.layers.0.mlp.up_proj.weight": multiplied(
                "text_encoders.qwen3_4b.transformer.model.layers.0.mlp.up_proj"),
        }),
        tensors={
            "diffusion_model.layers.0.attention.q_norm.diff": values("q norm", 12),
            "diffusion_model.layers.1.ffn_norm2.diff": values("ffn norm", 24),
            "diffusion_model.cap_embedder.0.diff": values("cap", 12),
            "diffusion_model.layers.0.adaLN_modulation.0.diff_b": values("ada b", 96),
            "diffusion_model.x_pad_token.diff": values("pad", 1, 24),
        }
        | kohya("lora_te_layers_1_self_attn_o_proj", 12, 12, alpha=2)
        | kohya("text_encoders.qwen3_4b.transformer.model.layers.0.mlp.up_proj", 20, 12, alpha=2),
    )  # fmt: skip

    # Qwen-Image
    case(
        "diffusers", "qwenimage", with_diffusers("qwenimage"), scale=0.5,
        write=diffusers_folder(
            "qwenimage",
            transformer=peft.LoraConfig(r=3, lora_alpha=2, target_modules=["to_q", "img_mod.1", "txt_mlp.net.2"]),
        ),
    )  # fmt: skip
    case(
        "default", "qwenimage", with_diffusers("qwenimage"),
        tensors={
            k.replace(".weight", ".default.weight"): v
            for k, v in (
                low("transformer_blocks.1.attn.to_add_out", 16, 16)
                | low("transformer_blocks.0.img_mlp.net.0.proj", 64, 16)
            ).items()
        },
    )  # fmt: skip
    case(
        "comfyui", "qwenimage", with_diffusers("qwenimage"),
        tensors=low("diffusion_model.transformer_blocks.0.txt_mod.1", 96, 16, alpha=1)
        | low("diffusion_model.transformer_blocks.1.attn.to_out.0", 16, 16, alpha=2),
    )  # fmt: skip
    case(
        "kohya", "qwenimage", with_diffusers("qwenimage"),
        tensors=kohya("lora_unet_transformer_blocks_1_attn_add_k_proj", 16, 16, alpha=1)
        | kohya("lora_unet_transformer_blocks_0_img_mlp_net_2", 16, 64, alpha=2)
        | kohya("lora_unet_img_in", 16, 16, alpha=2),
    )  # fmt: skip

    # Qwen-Image-2.1
    case(
        "diffusers", "qwenimage21", with_diffusers("qwenimage21"), scale=0.5,
        write=diffusers_folder(
            "qwenimage21",
            transformer=peft.LoraConfig(r=3, lora_alpha=2, target_modules=["to_q", "img_mlp.out", "img_mlp.gate_layer"]),
        ),
    )  # fmt: skip
    case(
        "comfyui", "qwenimage21", with_diffusers("qwenimage21"),
        tensors=low("diffusion_model.transformer_blocks.1.attn.to_out.0", 16, 16, alpha=1)
        | low("diffusion_model.transformer_blocks.0.img_mlp.proj", 32, 16, alpha=2),
    )  # fmt: skip

    # Krea 2
    case(
        "diffusers", "krea2", with_diffusers("krea2"), scale=0.5,
        write=diffusers_folder(
            "krea2",
            transformer=peft.LoraConfig(r=3, lora_alpha=2, target_modules=["to_q", "to_k", "to_gate", "down", "projector"]),
        ),
    )  # fmt: skip
    case(
        "comfyui", "krea2", with_diffusers("krea2"),
        tensors=low("diffusion_model.blocks.0.attn.wq", 16, 16) | low("diffusion_model.blocks.1.attn.wv", 8, 16)
        | low("diffusion_model.blocks.1.mlp.up", 20, 16) | low("diffusion_model.txtfusion.refiner_blocks.0.attn.gate", 12, 12),
    )  # fmt: skip
    case(
        "toolkit", "krea2", with_diffusers("krea2"),
        tensors=low("base_model.model.blocks.1.attn.wo", 16, 16) | low("base_model.model.first", 16, 16)
        | low("base_model.model.tproj.1", 96, 16) | low("base_model.model.txtmlp.3", 16, 16)
        | low("base_model.model.tmlp.0", 16, 10) | low("base_model.model.last.linear", 16, 16)
        | low("base_model.model.txtfusion.layerwise_blocks.0.mlp.down", 12, 14),
    )  # fmt: skip
    case(
        "kohya", "krea2",
        with_formulas({
            "transformer.transformer_blocks.0.attn.to_out.0.weight": multiplied("lora_unet_blocks_0_attn_wo"),
            "transformer.transformer_blocks.1.ff.gate.weight": multiplied("lora_unet_blocks_1_mlp_gate"),
            "transformer.transformer_blocks.1.attn.to_gate.weight": multiplied("lora_unet_transformer_blocks_1_attn_to_gate"),
        }),
        tensors=kohya("lora_unet_blocks_0_attn_wo", 16, 16, alpha=1)
        | kohya("lora_unet_blocks_1_mlp_gate", 20, 16, alpha=2)
        | kohya("lora_unet_transformer_blocks_1_attn_to_gate", 16, 16, alpha=2),
    )  # fmt: skip

    # ERNIE-Image
    case(
        "diffusers", "ernie", with_diffusers("ernie"), scale=0.5,
        write=diffusers_folder(
            "ernie",
            transformer=peft.LoraConfig(r=3, lora_alpha=2, target_modules=["to_q", "to_out.0", "gate_proj", "text_proj"]),
        ),
    )  # fmt: skip
    case(
        "comfyui", "ernie", with_diffusers("ernie"),
        tensors=low("diffusion_model.layers.0.self_attention.to_k", 16, 16)
        | low("diffusion_model.layers.1.mlp.linear_fc2", 16, 20) | low("diffusion_model.adaLN_modulation.1", 96, 16),
    )  # fmt: skip
    case(
        "toolkit", "ernie", with_diffusers("ernie"),
        tensors=low("base_model.model.layers.1.self_attention.to_v", 16, 16) | low("base_model.model.layers.0.mlp.up_proj", 20, 16)
        | low("base_model.model.final_norm.linear", 32, 16) | low("base_model.model.time_embedding.linear_1", 16, 16),
    )  # fmt: skip
    case(
        "kohya", "ernie",
        with_formulas({
            "transformer.layers.0.self_attention.to_out.0.weight": multiplied("lora_unet_layers_0_self_attention_to_out_0"),
            "transformer.adaLN_modulation.1.weight": multiplied("lora_unet_adaLN_modulation_1"),
            "transformer.final_linear.weight": multiplied("lora_unet_final_linear"),
        }),
        tensors=kohya("lora_unet_layers_0_self_attention_to_out_0", 16, 16, alpha=1)
        | kohya("lora_unet_adaLN_modulation_1", 96, 16, alpha=2) | kohya("lora_unet_final_linear", 12, 16, alpha=2),
    )  # fmt: skip
    return out


def sampled(p: torch.Tensor) -> dict:
    x = p.detach().float().flatten()
    at = [(i * 2654435761 + 12345) % x.numel() for i in range(min(SAMPLES, x.numel()))]
    return {"largest": float(f"{x.abs().max():.8g}"), "samples": [float(f"{x[i]:.8g}") for i in at]}


def make(out: Path):
    """Writes the LoRAs, and cases.json with the weights that they change."""
    torch.set_num_threads(1)
    if out.exists() and any(out.iterdir()) and not (out / "cases.json").exists():
        raise SystemExit(f"{out}: expected a new folder, or one with the cases.json of an earlier run, which is replaced")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    written = []
    for case in cases():
        path = out / case.name
        if case.write:
            case.write(path)
        else:
            path = path.with_suffix(".safetensors")
            save_file({k: v.contiguous() for k, v in case.tensors.items()}, path)
        modules = {name: build(*model) for name, model in MODELS[case.model].items()}
        before = {name: {k: p.detach().clone() for k, p in m.named_parameters()} for name, m in modules.items()}
        case.apply(modules, path, case.scale)
        changed = {
            name: {k: sampled(p) for k, p in m.named_parameters() if not torch.equal(p, before[name][k])}
            for name, m in modules.items()
        }
        changed = {k: v for k, v in changed.items() if v}
        written.append({"model": case.model, "file": path.name, "scale": case.scale, "changed": changed})
    models = {
        name: {part: {"class": cls.__name__, "config": config} for part, (cls, config) in parts.items()}
        for name, parts in MODELS.items()
    }
    for file in out.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    write_json(out / "cases.json", {"models": models, "cases": written}, indent=None)

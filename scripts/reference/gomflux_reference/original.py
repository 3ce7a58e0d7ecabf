"""The files of the models' makers and of ComfyUI, from those of diffusers: names, shapes and hashes of their tensors.

What is made is held against diffusers' own converters, before it is written.
"""

import hashlib
import re
import types
from pathlib import Path

import diffusers
import torch
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from .files import read_json, write_json


def goldens(models: Path, folder: Path):
    """Writes a list for each of some tiny models, in a testdata folder, to folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("flux1-dev-small", "flux2-klein", "flux3-klein", "zimage-ordinary", "krea-2"):
        components = {}
        for component, make in COMPONENTS.items():
            model = models / name / "model" / component
            class_name = read_json(model / "config.json")["_class_name"]
            if not make[class_name]:
                continue
            source = {k: v for f in model.glob("*.safetensors") for k, v in load_file(f).items()}
            components[component] = {"class": class_name, "tensors": listed(make[class_name](model, source))}
        write_json(folder / f"{name}.json", components)
    write_json(folder / "wan-vae.json", wan_names())


def listed(tensors: dict) -> dict:
    def entry(t: torch.Tensor) -> str:
        data = t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{'x'.join(map(str, t.shape))} {hashlib.sha256(data).hexdigest()[:16]}"

    return {name: entry(t) for name, t in sorted(tensors.items())}


def check(made: dict, converted: dict, source: dict):
    """Fails unless a converter makes of what was made what it was made of."""
    if made.keys() & source.keys() == made.keys():
        raise SystemExit("nothing was renamed")
    if missing := source.keys() ^ converted.keys():
        raise SystemExit(f"the converter has other names: {sorted(missing)[:8]}")
    for name, tensor in source.items():
        if not torch.equal(tensor, converted[name]):
            raise SystemExit(f"the converter makes something else of {name}")


def renamed(source: dict, rules: list[tuple[str, str]]) -> dict:
    """Renames by the first pattern that fits the whole name."""
    made = {}
    for name, tensor in source.items():
        for pattern, to in rules:
            if re.fullmatch(pattern, name):
                name = re.sub(pattern, to, name)
                break
        made[name] = tensor
    return made


def fused(made: dict, names: list[str], to: str):
    """Puts the rows of several modules into one."""
    for suffix in ("weight", "bias"):
        parts = [made.pop(f"{name}.{suffix}") for name in names if f"{name}.{suffix}" in made]
        if parts:
            made[f"{to}.{suffix}"] = torch.cat(parts)


def swapped(made: dict, module: str):
    for suffix in ("weight", "bias"):
        if (name := f"{module}.{suffix}") in made:
            made[name] = torch.cat(made[name].chunk(2)[::-1])


EMBEDDERS = [
    (r"x_embedder\.(.*)", r"img_in.\1"),
    (r"context_embedder\.(.*)", r"txt_in.\1"),
    (r"\w+\.timestep_embedder\.linear_1\.(.*)", r"time_in.in_layer.\1"),
    (r"\w+\.timestep_embedder\.linear_2\.(.*)", r"time_in.out_layer.\1"),
    (r"\w+\.guidance_embedder\.linear_1\.(.*)", r"guidance_in.in_layer.\1"),
    (r"\w+\.guidance_embedder\.linear_2\.(.*)", r"guidance_in.out_layer.\1"),
    (r"\w+\.text_embedder\.linear_1\.(.*)", r"vector_in.in_layer.\1"),
    (r"\w+\.text_embedder\.linear_2\.(.*)", r"vector_in.out_layer.\1"),
    (r"proj_out\.(.*)", r"final_layer.linear.\1"),
    (r"norm_out\.linear\.(.*)", r"final_layer.adaLN_modulation.1.\1"),
]
DOUBLE, SINGLE = r"transformer_blocks\.(\d+)\.", r"single_transformer_blocks\.(\d+)\."
ATTENTION = [
    (DOUBLE + r"attn\.norm_q\.weight", r"double_blocks.\1.img_attn.norm.query_norm.scale"),
    (DOUBLE + r"attn\.norm_k\.weight", r"double_blocks.\1.img_attn.norm.key_norm.scale"),
    (DOUBLE + r"attn\.norm_added_q\.weight", r"double_blocks.\1.txt_attn.norm.query_norm.scale"),
    (DOUBLE + r"attn\.norm_added_k\.weight", r"double_blocks.\1.txt_attn.norm.key_norm.scale"),
    (DOUBLE + r"attn\.to_out\.0\.(.*)", r"double_blocks.\1.img_attn.proj.\2"),
    (DOUBLE + r"attn\.to_add_out\.(.*)", r"double_blocks.\1.txt_attn.proj.\2"),
    (SINGLE + r"attn\.norm_q\.weight", r"single_blocks.\1.norm.query_norm.scale"),
    (SINGLE + r"attn\.norm_k\.weight", r"single_blocks.\1.norm.key_norm.scale"),
]


def double_attention(made: dict):
    for i in {int(m[1]) for name in made if (m := re.match(DOUBLE, name))}:
        block, to = f"transformer_blocks.{i}.attn", f"double_blocks.{i}"
        fused(made, [f"{block}.to_{x}" for x in "qkv"], f"{to}.img_attn.qkv")
        fused(made, [f"{block}.add_{x}_proj" for x in "qkv"], f"{to}.txt_attn.qkv")


def flux(_, source: dict) -> dict:
    made = renamed(
        source,
        EMBEDDERS
        + ATTENTION
        + [
            (DOUBLE + r"norm1\.linear\.(.*)", r"double_blocks.\1.img_mod.lin.\2"),
            (DOUBLE + r"norm1_context\.linear\.(.*)", r"double_blocks.\1.txt_mod.lin.\2"),
            (DOUBLE + r"ff\.net\.0\.proj\.(.*)", r"double_blocks.\1.img_mlp.0.\2"),
            (DOUBLE + r"ff\.net\.2\.(.*)", r"double_blocks.\1.img_mlp.2.\2"),
            (DOUBLE + r"ff_context\.net\.0\.proj\.(.*)", r"double_blocks.\1.txt_mlp.0.\2"),
            (DOUBLE + r"ff_context\.net\.2\.(.*)", r"double_blocks.\1.txt_mlp.2.\2"),
            (SINGLE + r"norm\.linear\.(.*)", r"single_blocks.\1.modulation.lin.\2"),
            (SINGLE + r"proj_out\.(.*)", r"single_blocks.\1.linear2.\2"),
        ],
    )
    double_attention(made)
    for i in {int(m[1]) for name in made if (m := re.match(SINGLE, name))}:
        block = f"single_transformer_blocks.{i}"
        parts = [f"{block}.attn.to_{x}" for x in "qkv"] + [f"{block}.proj_mlp"]
        fused(made, parts, f"single_blocks.{i}.linear1")
    swapped(made, "final_layer.adaLN_modulation.1")
    # the converter knows one width only, that of the published model
    convert = single_file_utils.convert_flux_transformer_checkpoint_to_diffusers
    width = source["x_embedder.weight"].shape[0]
    code = convert.__code__
    code = code.replace(co_consts=tuple(width if c == 3072 else c for c in code.co_consts))
    check(made, types.FunctionType(code, convert.__globals__)(dict(made)), source)
    return made


def flux2(_, source: dict) -> dict:
    modulation = r"(double_stream_modulation_img|double_stream_modulation_txt|single_stream_modulation)\.linear\.(.*)"
    made = renamed(
        source,
        EMBEDDERS
        + ATTENTION
        + [
            (modulation, r"\1.lin.\2"),
            (DOUBLE + r"ff\.linear_in\.(.*)", r"double_blocks.\1.img_mlp.0.\2"),
            (DOUBLE + r"ff\.linear_out\.(.*)", r"double_blocks.\1.img_mlp.2.\2"),
            (DOUBLE + r"ff_context\.linear_in\.(.*)", r"double_blocks.\1.txt_mlp.0.\2"),
            (DOUBLE + r"ff_context\.linear_out\.(.*)", r"double_blocks.\1.txt_mlp.2.\2"),
            (SINGLE + r"attn\.to_qkv_mlp_proj\.(.*)", r"single_blocks.\1.linear1.\2"),
            (SINGLE + r"attn\.to_out\.(.*)", r"single_blocks.\1.linear2.\2"),
        ],
    )
    double_attention(made)
    swapped(made, "final_layer.adaLN_modulation.1")
    check(made, single_file_utils.convert_flux2_transformer_checkpoint_to_diffusers(dict(made)), source)
    return made


def flux3(_, source: dict) -> dict:
    blocks = [
        (r"mode_blocks\.(\w+\.\d+)\.", "content_mode_blocks"),
        (r"txt_mode_blocks\.(\d+)\.", "txt_mode_blocks"),
        (r"single_transformer_blocks\.(\d+)\.", "single_blocks"),
    ]
    layers = {
        r"attn\.to_q\.weight": "q_proj.weight", r"attn\.to_k\.weight": "k_proj.weight", r"attn\.to_v\.weight": "v_proj.weight",
        r"attn\.to_out\.0\.weight": "attn_out.weight", r"attn\.norm_q\.weight": "norm.query_norm.scale",
        r"attn\.norm_k\.weight": "norm.key_norm.scale", r"ff\.linear_in\.weight": "mlp_in.weight",
        r"ff\.linear_out\.weight": "mlp_out.weight",
    }  # fmt: skip
    made = renamed(
        source,
        [(block + layer, rf"{to}.\1.{name}") for block, to in blocks for layer, name in layers.items()]
        + [
            (r"x_embedders\.(.*)", r"emb_in.\1"),
            (r"context_embedder\.(.*)", r"txt_in.\1"),
            (r"timestep_embedder\.linear_1\.(.*)", r"time_in.in_layer.\1"),
            (r"timestep_embedder\.linear_2\.(.*)", r"time_in.out_layer.\1"),
            (r"target_timestep_embedder\.linear_1\.(.*)", r"ref_time_in.in_layer.\1"),
            (r"target_timestep_embedder\.linear_2\.(.*)", r"ref_time_in.out_layer.\1"),
            (r"((early|single)_stream_modulations\.\w+)\.linear\.(.*)", r"\1.lin.\3"),
            (r"proj_out\.(.*)", r"final_layer.image.linear.\1"),
            (r"norm_out\.linear\.(.*)", r"final_layer.image.adaLN_modulation.1.\1"),
        ],
    )
    swapped(made, "final_layer.image.adaLN_modulation.1")
    check(made, single_file_utils.convert_flux3_transformer_checkpoint_to_diffusers(dict(made)), source)
    return made


def z_image(_, source: dict) -> dict:
    made = renamed(
        source,
        [
            (r"all_x_embedder\.2-1\.(.*)", r"x_embedder.\1"),
            (r"all_final_layer\.2-1\.(.*)", r"final_layer.\1"),
            (r"(.*)\.attention\.to_out\.0\.(.*)", r"\1.attention.out.\2"),
            (r"(.*)\.attention\.norm_([qk])\.(.*)", r"\1.attention.\2_norm.\3"),
        ],
    )
    for module in {m[1] for name in made if (m := re.match(r"(.*\.attention)\.to_q\.", name))}:
        fused(made, [f"{module}.to_{x}" for x in "qkv"], f"{module}.qkv")
    check(made, single_file_utils.convert_z_image_transformer_checkpoint_to_diffusers(dict(made)), source)
    return made


def krea2(_, source: dict) -> dict:
    block = r"(transformer_blocks|text_fusion\.\w+_blocks)\.(\d+)\."
    made = renamed(
        source,
        [(block + name, rf"\1.\2.{to}") for name, to in (
            (r"attn\.to_([qkv])\.weight", r"attn.w\3.weight"),
            (r"attn\.to_out\.0\.weight", "attn.wo.weight"),
            (r"attn\.to_gate\.weight", "attn.gate.weight"),
            (r"attn\.norm_([qk])\.weight", r"attn.qknorm.\3norm.scale"),
            (r"ff\.(.*)", r"mlp.\3"),
            (r"norm1\.weight", "prenorm.scale"),
            (r"norm2\.weight", "postnorm.scale"),
            ("scale_shift_table", "mod.lin"),
        )]
        + [
            (r"img_in\.(.*)", r"first.\1"),
            (r"time_embed\.linear_1\.(.*)", r"tmlp.0.\1"),
            (r"time_embed\.linear_2\.(.*)", r"tmlp.2.\1"),
            (r"time_mod_proj\.(.*)", r"tproj.1.\1"),
            (r"txt_in\.norm\.weight", "txtmlp.0.scale"),
            (r"txt_in\.linear_1\.(.*)", r"txtmlp.1.\1"),
            (r"txt_in\.linear_2\.(.*)", r"txtmlp.3.\1"),
            (r"final_layer\.linear\.(.*)", r"last.linear.\1"),
            (r"final_layer\.norm\.weight", "last.norm.scale"),
            ("final_layer.scale_shift_table", "last.modulation.lin"),
        ],
    )  # fmt: skip
    made = {
        re.sub(r"^text_fusion\.", "txtfusion.", re.sub(r"^transformer_blocks\.", "blocks.", k)):
            v.flatten() if k.endswith(".mod.lin") else v
        for k, v in made.items()
    }  # fmt: skip
    check(made, single_file_utils.convert_krea2_transformer_checkpoint_to_diffusers(dict(made)), source)
    return made


def ldm_vae(model: Path, source: dict, nested: bool = False) -> dict:
    config = read_json(model / "config.json")
    levels = len(config["block_out_channels"])
    resnet = [(r"conv_shortcut\.(.*)", r"nin_shortcut.\1")]
    made = {}
    for name, tensor in source.items():
        name = re.sub(r"^(\w+)\.conv_norm_out\.", r"\1.norm_out.", name)
        name = re.sub(r"^encoder\.down_blocks\.(\d+)\.resnets\.", r"encoder.down.\1.block.", name)
        name = re.sub(r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.", r"encoder.down.\1.downsample.", name)
        if m := re.match(r"decoder\.up_blocks\.(\d+)\.(.*)", name):
            rest = m[2].replace("resnets.", "block.").replace("upsamplers.0.", "upsample.")
            name = f"decoder.up.{levels - 1 - int(m[1])}.{rest}"
        name = re.sub(r"\.mid_block\.resnets\.(\d+)\.", lambda m: f".mid.block_{int(m[1]) + 1}.", name)
        if m := re.match(r"(\w+)\.mid_block\.attentions\.0\.(.*)\.(weight|bias)", name):
            own = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}[m[2]]
            name = f"{m[1]}.mid.attn_1.{own}.{m[3]}"
            tensor = tensor[:, :, None, None] if tensor.dim() == 2 else tensor
        for pattern, to in resnet:
            name = re.sub(pattern, to, name)
        made[name] = tensor
    converted = single_file_utils.convert_ldm_vae_checkpoint(dict(made), config)
    converted |= {k: v for k, v in made.items() if k.startswith("bn.")}  # which it does not know
    check(made, converted, source)
    if nested:  # as FLUX.2's makers have it (flux2/autoencoder.py)
        made = renamed(
            made,
            [(r"quant_conv\.(.*)", r"encoder.quant_conv.\1"), (r"post_quant_conv\.(.*)", r"decoder.post_quant_conv.\1")],
        )
    return made


def wan_names() -> dict:
    """The names of Wan's autoencoder, and diffusers', for the only number of levels that its converter knows."""
    model = diffusers.AutoencoderKLQwenImage(base_dim=2, z_dim=2, latents_mean=[0] * 2, latents_std=[1] * 2)
    source = {k: torch.full((1,), float(i)) for i, k in enumerate(model.state_dict())}
    resnet = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6"}
    resnet |= {"conv_shortcut": "shortcut"}
    made = {}
    for name, tensor in source.items():
        name = re.sub(r"^quant_conv\.", "conv1.", name)
        name = re.sub(r"^post_quant_conv\.", "conv2.", name)
        name = re.sub(r"\.conv_in\.", ".conv1.", name)
        name = re.sub(r"\.norm_out\.", ".head.0.", name)
        name = re.sub(r"\.conv_out\.", ".head.2.", name)
        name = re.sub(r"\.mid_block\.attentions\.0\.", ".middle.1.", name)
        name = re.sub(r"\.mid_block\.resnets\.(\d)\.", lambda m: f".middle.{2 * int(m[1])}.", name)
        name = re.sub(r"^encoder\.down_blocks\.", "encoder.downsamples.", name)
        name = re.sub(r"^decoder\.up_blocks\.(\d)\.resnets\.(\d)\.", lambda m: f"decoder.upsamples.{4 * int(m[1]) + int(m[2])}.", name)
        name = re.sub(r"^decoder\.up_blocks\.(\d)\.upsamplers\.0\.", lambda m: f"decoder.upsamples.{4 * int(m[1]) + 3}.", name)
        name = re.sub(r"\.(norm1|conv1|norm2|conv2|conv_shortcut)\.(?=\w+$)", lambda m: own(name, m, resnet), name)
        made[name] = tensor
    check(made, single_file_utils.convert_wan_vae_to_diffusers(dict(made)), source)
    diffusers_names = {int(v): k for k, v in source.items()}
    return {name: diffusers_names[int(tensor)] for name, tensor in sorted(made.items())}


def own(name: str, m: re.Match, resnet: dict) -> str:
    """A residual block's module; the first convolution of a side is called conv1 too."""
    return m[0] if re.fullmatch(r"(encoder|decoder)\.conv1\.\w+", name) else f".{resnet[m[1]]}."


COMPONENTS = {
    "transformer": {
        "FluxTransformer2DModel": flux,
        "Flux2Transformer2DModel": flux2,
        "Flux3Transformer2DModel": flux3,
        "ZImageTransformer2DModel": z_image,
        "Krea2Transformer2DModel": krea2,
    },
    "vae": {
        "AutoencoderKL": ldm_vae,
        "AutoencoderKLQwenImage": None,  # see wan_names
        "AutoencoderKLFlux2": lambda model, source: ldm_vae(model, source, nested=True),
    },
}

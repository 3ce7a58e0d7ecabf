"""The folders that mflux saves: made by mflux 0.24.0 of small random models, and held against those of gomflux.

It needs the packages of requirements-mflux.txt. mflux's loader, its quantization and its saver are used as they are.
Its modules are built at the size of the published models, of which nothing is computed before they get the weights of
a small one, and with as many blocks as that has.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import diffusers
import mlx.core as mx
import mlx.nn as nn
import mlx.utils
import torch

from . import modular, tiny
from .families import FAMILIES as REFERENCES
from .files import read_json, write_json

GROUP = 64
SHARDS = 2  # mflux expects an index of Qwen-Image's text encoder

# What mflux can do: inputs of linear layers in whole groups, and autoencoders of four levels with two blocks each, of
# which the second and the third are wider than the one before.
VAE = dict(vae_channels=(32, 64, 128, 128), vae_layers_per_block=2, vae_norm_groups=32, latent_channels=16)
QWEN3 = dict(text_hidden=64, text_intermediate=128, text_layers=5, text_heads=2, text_kv_heads=1, text_head_dim=32)


@dataclasses.dataclass
class Saved:
    """A family as mflux has it: the dimensions of a small one, its weight definition, and its modules by name."""

    dims: dict
    definition: Callable
    modules: Callable
    sized: bool = False  # modules has an argument, diffusers' folder, whose configs determine their sizes
    lost: str = ""  # diffusers' names of what mflux's layout has no place for, besides LOST


def flux_1(fills: bool = False):
    from mflux.models.common.config import ModelConfig
    from mflux.models.flux.model.flux_text_encoder.clip_encoder.clip_encoder import CLIPEncoder
    from mflux.models.flux.model.flux_text_encoder.t5_encoder.t5_encoder import T5Encoder
    from mflux.models.flux.model.flux_transformer.transformer import Transformer
    from mflux.models.flux.model.flux_vae.vae import VAE

    text_encoders = dict(t5_encoder=T5Encoder(), clip_encoder=CLIPEncoder())
    config = ModelConfig.dev_fill() if fills else ModelConfig.dev()
    return dict(vae=VAE(), transformer=Transformer(config), **text_encoders)


def flux_1_fill():
    return flux_1(fills=True)


def flux_1_definition():
    from mflux.models.flux.weights.flux_weight_definition import FluxWeightDefinition

    return FluxWeightDefinition


def flux_2():
    from mflux.models.flux2.model.flux2_text_encoder.qwen3_text_encoder import Qwen3TextEncoder
    from mflux.models.flux2.model.flux2_transformer.transformer import Flux2Transformer
    from mflux.models.flux2.model.flux2_vae.vae import Flux2VAE

    return dict(vae=Flux2VAE(), transformer=Flux2Transformer(), text_encoder=Qwen3TextEncoder())


def flux_2_definition():
    from mflux.models.flux2.weights.flux2_weight_definition import Flux2KleinWeightDefinition

    return Flux2KleinWeightDefinition


def z_image():
    from mflux.models.z_image.model.z_image_text_encoder.text_encoder import TextEncoder
    from mflux.models.z_image.model.z_image_transformer.transformer import ZImageTransformer
    from mflux.models.z_image.model.z_image_vae.vae import VAE

    return dict(vae=VAE(), transformer=ZImageTransformer(), text_encoder=TextEncoder())


def z_image_definition():
    from mflux.models.z_image.weights.z_image_weight_definition import ZImageWeightDefinition

    return ZImageWeightDefinition


def qwen():
    from mflux.models.qwen.model.qwen_text_encoder.qwen_text_encoder import QwenTextEncoder
    from mflux.models.qwen.model.qwen_transformer.qwen_transformer import QwenTransformer
    from mflux.models.qwen.model.qwen_vae.qwen_vae import QwenVAE

    return dict(vae=QwenVAE(), transformer=QwenTransformer(), text_encoder=QwenTextEncoder())


def qwen_edit():
    from mflux.models.qwen.model.qwen_text_encoder.qwen_vision_transformer import VisionTransformer

    modules = qwen()
    modules["text_encoder"].encoder.visual = VisionTransformer()
    return modules


def qwen_definition():
    from mflux.models.qwen.weights.qwen_weight_definition import QwenWeightDefinition

    return QwenWeightDefinition


def krea_2():
    from mflux.models.krea2.model.krea2_text_encoder.text_encoder import Krea2TextEncoder
    from mflux.models.krea2.model.krea2_transformer.transformer import Krea2Transformer
    from mflux.models.qwen.model.qwen_vae.qwen_vae import QwenVAE

    return dict(vae=QwenVAE(), transformer=Krea2Transformer(), text_encoder=Krea2TextEncoder())


def krea_2_definition():
    from mflux.models.krea2.weights.krea2_weight_definition import Krea2WeightDefinition

    return Krea2WeightDefinition


def qwen_image_21(source: Path):
    from mflux.models.qwen21.model.qwen21_text_encoder.text_encoder import QwenImage21TextEncoder
    from mflux.models.qwen21.model.qwen21_transformer.qwen_image21_transformer import QwenImage21Transformer
    from mflux.models.qwen21.model.qwen21_vae.vae import QwenImage21VAE

    classes = dict(vae=QwenImage21VAE, transformer=QwenImage21Transformer, text_encoder=QwenImage21TextEncoder)
    return {name: cls(read_json(source / name / "config.json")) for name, cls in classes.items()}


def qwen_image_21_definition():
    from mflux.models.qwen21.weights.qwen_image21_weight_definition import QwenImage21WeightDefinition

    class AsStored(QwenImage21WeightDefinition):
        @staticmethod
        def get_components():  # mflux computes with the autoencoder in float32
            components = QwenImage21WeightDefinition.get_components()
            return [dataclasses.replace(c, precision=None) if c.name == "vae" else c for c in components]

    return AsStored


def ernie_image():
    from mflux.models.ernie_image.model.ernie_text_encoder.text_encoder import ErnieMistralTextEncoder
    from mflux.models.ernie_image.model.ernie_transformer.transformer import ErnieTransformer
    from mflux.models.flux2.model.flux2_vae.vae import Flux2VAE

    return dict(vae=Flux2VAE(), transformer=ErnieTransformer(), text_encoder=ErnieMistralTextEncoder())


def ernie_image_definition():
    from mflux.models.ernie_image.weights.ernie_weight_definition import ErnieWeightDefinition

    return ErnieWeightDefinition


def flux_3(base: bool = False):
    from mflux.models.common.config import ModelConfig
    from mflux.models.flux2.model.flux2_text_encoder.qwen3_text_encoder import Qwen3TextEncoder
    from mflux.models.flux2.model.flux2_vae.vae import Flux2VAE
    from mflux.models.flux3.model.flux3_transformer.flux3_transformer import Flux3Transformer

    config = ModelConfig.flux3_image_klein_base() if base else ModelConfig.flux3_image_klein()
    transformer = Flux3Transformer(**config.transformer_overrides)
    return dict(vae=Flux2VAE(), transformer=transformer, text_encoder=Qwen3TextEncoder(**config.text_encoder_overrides))


def flux_3_base():
    return flux_3(base=True)


def flux_3_definition():
    from mflux.models.flux3.weights.flux3_weight_definition import Flux3KleinWeightDefinition

    return Flux3KleinWeightDefinition


def flux_3_base_definition():
    from mflux.models.flux3.weights.flux3_weight_definition import Flux3KleinBaseWeightDefinition

    return Flux3KleinBaseWeightDefinition


def anima():
    from mflux.models.anima.anima_initializer import QWEN3_06B_CONFIG
    from mflux.models.anima.model.anima_transformer.anima_transformer import AnimaTransformer
    from mflux.models.flux2.model.flux2_text_encoder.qwen3_text_encoder import Qwen3TextEncoder
    from mflux.models.qwen.model.qwen_vae.qwen_vae import QwenVAE

    return dict(vae=QwenVAE(), transformer=AnimaTransformer(), text_encoder=Qwen3TextEncoder(**QWEN3_06B_CONFIG))


# The makers' names of Anima's transformer, for diffusers'.
ANIMA_NAMES = [
    (r"^patch_embed\.proj", "x_embedder.proj.1"),
    (r"^time_embed\.t_embedder", "t_embedder.1"),
    (r"^time_embed\.norm", "t_embedding_norm"),
    (r"^norm_out\.linear_", "final_layer.adaln_modulation."),
    (r"^proj_out", "final_layer.linear"),
    (r"^transformer_blocks", "blocks"),
    (r"\.norm1\.linear_", ".adaln_modulation_self_attn."),
    (r"\.norm2\.linear_", ".adaln_modulation_cross_attn."),
    (r"\.norm3\.linear_", ".adaln_modulation_mlp."),
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.", ".cross_attn."),
    (r"\.to_([qkv])\.", r".\1_proj."),
    (r"\.to_out\.0\.", ".output_proj."),
    (r"\.norm_([qk])\.", r".\1_norm."),
    (r"\.ff\.net\.0\.proj\.", ".mlp.layer1."),
    (r"\.ff\.net\.2\.", ".mlp.layer2."),
]


def anima_name(name: str) -> str:
    if not re.match(r"(patch_embed|time_embed|transformer_blocks|norm_out|proj_out)\.", name):
        return f"llm_adapter.{name}"  # the text conditioner's
    for pattern, to in ANIMA_NAMES:
        name = re.sub(pattern, to, name)
    return name


def anima_definition():
    """mflux reads Anima from ComfyUI's files or from a folder that it saved: here diffusers' folders are read too, through
    its own mapping of the makers' names, with as many blocks as they have."""
    from mflux.models.anima.weights.anima_weight_definition import AnimaWeightDefinition
    from mflux.models.anima.weights.anima_weight_mapping import AnimaWeightMapping
    from mflux.models.qwen.weights.qwen_weight_mapping import QwenWeightMapping

    def blocks(root: Path):
        numbers = {"NUM_BLOCKS": "transformer", "NUM_ADAPTER_BLOCKS": "text_conditioner"}
        found = {k: read_json(root / v / "config.json")["num_layers"] for k, v in numbers.items()}
        with mock.patch.multiple(AnimaWeightMapping, **found):
            return AnimaWeightMapping.get_transformer_mapping()

    def transformer(component, root: Path):
        files = [f for d in ("transformer", "text_conditioner") for f in (root / d).glob("*.safetensors")]
        files = [f"../{f.parent.name}/{f.name}" for f in files]
        return dataclasses.replace(
            component, weight_files=sorted(files), key_transform=anima_name, mapping_getter=lambda: blocks(root)
        )

    def vae(component, root: Path):
        return dataclasses.replace(component, mapping_getter=QwenWeightMapping.get_vae_mapping)

    def text_encoder(component, root: Path):
        return dataclasses.replace(
            component, key_transform=lambda k: f"model.{k.removeprefix('model.')}",
            mapping_getter=AnimaWeightMapping.get_text_encoder_mapping,
        )  # fmt: skip

    class FromDiffusers(AnimaWeightDefinition):
        @staticmethod
        def get_components():
            selectors = dict(transformer=transformer, vae=vae, text_encoder=text_encoder)
            return [
                dataclasses.replace(c, variant_selector=functools.partial(selectors[c.name], c))
                for c in AnimaWeightDefinition._saved_components()
            ]

    return FromDiffusers


QWEN = dict(
    heads=2, axes_dims=(16, 24, 24), layers=2,
    text_intermediate=128, text_layers=3, text_heads=2, text_kv_heads=1, text_mrope_section=(4, 6, 6),
    vision_heads=2, vision_head_dim=32, vision_intermediate=60,  # not in whole groups, as published
    vae_channels=(16, 32, 64, 64), vae_layers_per_block=2,
    latents_mean=tuple(i / 10 for i in range(16)), latents_std=tuple(1 + i / 10 for i in range(16)),
)  # fmt: skip

FLUX_1 = dict(
    heads=2, axes_dims=(16, 24, 24), layers=2, single_layers=2,
    clip_hidden=64, clip_intermediate=128, clip_heads=2,
    # the table of relative positions has a column for every head, and mflux quantizes it too
    t5_hidden=64, t5_intermediate=128, t5_heads=64, t5_head_dim=2,
)  # fmt: skip

FLUX_3 = VAE | QWEN3 | dict(
    heads=2, axes_dims=(8, 8, 8, 8), layers=2, single_layers=2, vae_decoder_channels=VAE["vae_channels"],
)  # fmt: skip

FAMILIES = {
    "flux1-dev": Saved(VAE | FLUX_1, flux_1_definition, flux_1),
    "flux1-fill": Saved(VAE | FLUX_1, flux_1_definition, flux_1_fill),
    "flux2-klein": Saved(
        VAE
        | QWEN3
        | dict(heads=2, axes_dims=(8, 8, 8, 8), layers=2, single_layers=2, vae_decoder_channels=VAE["vae_channels"]),
        flux_2_definition,
        flux_2,
    ),
    "ernie-image": Saved(
        VAE
        | QWEN3
        | dict(heads=2, axes_dims=(16, 24, 24), layers=2, intermediate=128, latent_channels=32,
               vae_decoder_channels=VAE["vae_channels"]),
        ernie_image_definition,
        ernie_image,
    ),
    "flux3-klein": Saved(FLUX_3, flux_3_definition, flux_3, lost=r"^model\.visual\."),
    "flux3-klein-base": Saved(FLUX_3, flux_3_base_definition, flux_3_base, lost=r"^model\.visual\."),
    "anima": Saved(
        {k: v for k, v in QWEN.items() if k.startswith(("vae_", "latents_"))}
        | QWEN3
        | dict(heads=2, head_dim=32, text_dim=64, adaln_dim=64, conditioner_dim=64, conditioner_heads=2),
        anima_definition,
        anima,
    ),
    "z-image": Saved(VAE | QWEN3 | dict(dim=192, heads=3, axes_dims=(16, 24, 24)), z_image_definition, z_image),
    "qwen-image": Saved(QWEN, qwen_definition, qwen),
    "qwen-image-edit": Saved(QWEN, qwen_definition, qwen_edit),
    "krea-2": Saved(
        {k: v for k, v in QWEN.items() if k.startswith(("vae_", "latents_"))}
        | QWEN3
        | dict(heads=4, kv_heads=2, axes_dims=(8, 12, 12), intermediate=128, time_dim=256, fusion_intermediate=128,
               layerwise_blocks=2, refiner_blocks=2),
        krea_2_definition,
        krea_2,
    ),
    "qwen-image-2.1": Saved(
        QWEN3
        | dict(heads=4, axes_dims=(8, 12, 12), layers=2, vision_heads=2, vision_head_dim=32, vision_intermediate=128,
               vae_channels=(16, 16, 32, 32, 32), vae_decoder_base=16, latent_channels=64),
        qwen_image_21_definition,
        qwen_image_21,
        sized=True,
    ),
}  # fmt: skip


class Model:
    """A model of mflux: its modules by the names of their components."""

    def __init__(self, family: str, folder: Path, bits: int | None = None, like: "Model | None" = None, source=None):
        """Reads a folder, diffusers' or a saved one. A saved one is read into modules of the sizes of another model."""
        from mflux.models.common.weights.loading.weight_applier import WeightApplier

        self.definition = FAMILIES[family].definition()
        weights = read(self.definition, folder)
        self.stored = {name: dict(mlx.utils.tree_flatten(tree)) for name, tree in weights.components.items()}
        self.level = weights.meta_data.quantization_level
        self.source = like.source if like else source or folder
        self.modules = FAMILIES[family].modules(*[self.source] if FAMILIES[family].sized else [])
        for name, module in self.modules.items():
            if not FAMILIES[family].sized:
                cut(module, weights.components[name])
            if like:
                sizes = {k: mx.zeros(shape) for k, shape in like.sizes[name].items()}
                module.update(mlx.utils.tree_unflatten(list(sizes.items())), strict=False)
        if not like:
            WeightApplier._set_weights(weights, self.modules, {c.name: c for c in self.definition.get_components()})
            self.sizes = {name: shapes(module) for name, module in self.modules.items()}
        with quiet():
            self.bits = WeightApplier.apply_and_quantize(weights, self.modules, bits, self.definition)

    def save(self, folder: Path):
        from mflux.models.common.weights.saving.model_saver import ModelSaver

        attributes = {c.name: c.model_attr or c.name for c in self.definition.get_components()}
        model = SimpleNamespace(**{attributes[name]: module for name, module in self.modules.items()})
        with quiet():
            ModelSaver.save_model(model, self.bits, str(folder), self.definition)

    def parameters(self, name: str) -> dict:
        """Those that come from files."""
        flat = dict(mlx.utils.tree_flatten(self.modules[name].parameters()))
        return {k: v for k, v in flat.items() if not k.endswith("inv_freq")}

    def plain(self, name: str) -> dict:
        """The parameters in plain numbers, float32."""
        found = self.parameters(name)
        out = {}
        for path, module in self.modules[name].named_modules():
            if hasattr(module, "scales"):
                weight = mx.dequantize(
                    module.weight, module.scales.astype(mx.float32), module.biases.astype(mx.float32),
                    group_size=module.group_size, bits=module.bits,
                )  # fmt: skip
                out[f"{path}.weight"] = weight
                for key in ("weight", "scales", "biases"):
                    del found[f"{path}.{key}"]
        return out | {k: v.astype(mx.float32) for k, v in found.items()}

    def mapped(self, folder: Path) -> dict:
        """What mflux's mapping makes of a folder of diffusers', in its dtypes: per component its parameters."""
        for file in folder.glob("text_encoder/model.safetensors"):  # it expects an index of Qwen-Image's
            index = {"metadata": {}, "weight_map": dict.fromkeys(mx.load(str(file)), file.name)}
            Path(f"{file}.index.json").write_text(json.dumps(index), encoding="utf-8")
        components = [unrounded(c) for c in self.definition.get_components()]
        with mock.patch.object(self.definition, "get_components", staticmethod(lambda: components)):
            trees = read(self.definition, folder).components
        return {name: dict(mlx.utils.tree_flatten(tree)) for name, tree in trees.items()}


def read(definition, folder: Path):
    """The weights of a folder under mflux's names."""
    from mflux.models.common.weights.loading.weight_loader import WeightLoader

    with quiet():
        weights = WeightLoader.load(definition, str(folder))
    if t5 := weights.components.get("t5_encoder"):  # the table of positions is mapped to 24 blocks, whatever there is
        t5["t5_blocks"] = [block for block in t5["t5_blocks"] if "ff" in block]
    if isinstance(weights.components["transformer"].get("modulation"), (list, dict)):  # as mflux does after reading
        flat = mlx.utils.tree_flatten(weights.components["transformer"])
        renamed = [(re.sub(r"^modulation\.1\.", "modulation.layers.1.", k), v) for k, v in flat]
        weights.components["transformer"] = mlx.utils.tree_unflatten(renamed)
    return weights


def unrounded(component):
    """A component that is read in the dtypes of its files, whichever variant of it a folder has."""
    select = component.variant_selector
    variant = select and (lambda root: unrounded(select(root)))
    return dataclasses.replace(component, precision=None, variant_selector=variant)


def shapes(module: nn.Module) -> dict:
    return {k: v.shape for k, v in mlx.utils.tree_flatten(module.parameters())}


def cut(module, tree):
    """Drops the blocks that the weights do not have."""
    for key, child in module.items() if isinstance(module, dict) else enumerate(module):
        weights = None
        if isinstance(tree, dict):
            weights = tree.get(key)
        elif isinstance(tree, list) and key < len(tree):
            weights = tree[key]
        if isinstance(child, list) and isinstance(weights, list) and len(weights) < len(child):
            child = module[key] = child[: len(weights)]
        if isinstance(child, (dict, list)):  # a module is a dict too
            cut(child, weights)


@contextlib.contextmanager
def quiet():
    with open(os.devnull, "w") as none, contextlib.redirect_stdout(none), contextlib.redirect_stderr(none):
        yield


class Check:
    """Counts what holds."""

    def __init__(self):
        self.failed, self.done = [], 0

    def equal(self, what: str, got: dict, want: dict):
        """Two dicts of arrays: the same names, shapes, dtypes and bits."""
        wrong = [f"no {k}" for k in want.keys() - got.keys()] + [f"{k} is too much" for k in got.keys() - want.keys()]
        for k in want.keys() & got.keys():
            a, b = got[k], want[k]
            if a.shape != b.shape or a.dtype != b.dtype:
                wrong.append(f"{k}: {a.dtype} {a.shape}, expected {b.dtype} {b.shape}")
            elif not mx.array_equal(a, b).item():
                wrong.append(f"{k}: off by {mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max().item():.3g}")
        self.say(what, f"{len(want)} tensors are the same", wrong)

    def say(self, what: str, result: str, wrong: list):
        self.done += 1
        if wrong:
            self.failed.append(what)
            result = f"{len(wrong)}: {sorted(wrong)[:3]}"
        print(f"  {'FAIL' if wrong else 'ok  '} {what:60} {result}", flush=True)

    def end(self):
        print(f"\n{self.done - len(self.failed)} of {self.done} hold")
        if self.failed:
            print("failed:", *self.failed, sep="\n  ")
            sys.exit(1)


def check(gomflux: Path, families: list[str] | None, bits: list[int], seed: int, keep: Path | None):
    """gomflux reads what mflux saves, and mflux what gomflux saves."""
    mx.set_default_device(mx.cpu)
    families = families or list(FAMILIES)
    if unknown := [family for family in families if family not in FAMILIES]:
        raise SystemExit(f"not known of mflux: {', '.join(unknown)} (expected {', '.join(FAMILIES)})")
    gomflux, result = gomflux.resolve(), Check()
    with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        for family in families:
            pair(gomflux, family, Path(folder, family), bits, seed, result)
    result.end()


def pair(gomflux: Path, family: str, folder: Path, bits: list[int], seed: int, result: Check):
    source = folder / "source"
    if not source.exists():
        tiny.make(source, family, seed, "ordinary", "hub", SHARDS, "bf16", FAMILIES[family].dims)
    print(f"{family}:", flush=True)
    original = Model(family, source)
    for level in (None, *bits):
        name = f"q{level}" if level else "bf16"
        theirs = Model(family, source, level)
        theirs.save(folder / f"mflux-{name}")
        reading(gomflux, theirs, source, folder, name, result)
        args = ["--quantize", str(level)] if level else []
        save(gomflux, source, folder / f"gomflux-{name}", "--layout", "mflux", *args)
        ours = Model(family, folder / f"gomflux-{name}", like=original)
        wrong = [] if ours.level == level else [f"expected level {level}"]
        result.say(f"mflux reads gomflux's {name}", f"level {ours.level}", wrong)
        for component in ours.modules:
            writing(ours, theirs, component, name, result)
        if not level:
            tokenizers(ours.definition, folder / f"gomflux-{name}", result)
    for name, lost in (("mflux-bf16", LOST_BY_MFLUX), ("gomflux-bf16", LOST)):
        save(gomflux, folder / name, folder / "diffusers", "--layout", "diffusers")
        diffusers_reads(folder / "diffusers", source, name, "|".join(filter(None, (lost, FAMILIES[family].lost))), result)


def reading(gomflux: Path, theirs: Model, source: Path, folder: Path, name: str, result: Check):
    """gomflux reads what mflux saved: written as diffusers has it, and mapped by mflux, it is what mflux has."""
    saved, read = folder / f"mflux-{name}", folder / f"read-{name}"
    configs(source, saved)
    save(gomflux, saved, read, "--layout", "diffusers", "--dtype", "float32")
    mapped = theirs.mapped(read)
    for component in theirs.modules:
        result.equal(f"gomflux reads mflux's {name} {component}", mapped[component], theirs.plain(component))


def tokenizers(definition, folder: Path, result: Check):
    """mflux finds all tokenizers in a folder of gomflux's."""
    from mflux.models.common.tokenizer import TokenizerLoader

    wanted, wrong = [t.name for t in definition.get_tokenizers()], []
    try:
        with quiet():
            TokenizerLoader.load_all(definitions=definition.get_tokenizers(), model_path=str(folder))
    except (OSError, RuntimeError, ValueError) as e:
        wrong = [str(e)]
    result.say("mflux reads gomflux's tokenizers", " ".join(wanted), wrong)


def writing(ours: Model, theirs: Model, component: str, name: str, result: Check):
    """mflux has read all of what gomflux saved, and has what it would have made itself."""
    mine, wants = ours.parameters(component), theirs.parameters(component)
    stored = {k: v for k, v in ours.stored[component].items() if k in mine}
    result.equal(f"mflux has of gomflux's {name} {component} what is stored", mine, stored)
    same = {m for m in modules(wants) if precision(mine, m) == precision(wants, m)}
    result.equal("and what mflux makes itself, where it is as precise", part(mine, same), part(wants, same))
    if others := modules(wants) - same:
        kinds = {f"{m.rsplit('.', 1)[-1]} {precision(mine, m)} (mflux {precision(wants, m)})" for m in others}
        print(f"       {component}: {len(others)} of another precision: {', '.join(sorted(kinds))}")


# What no picture needs, and mflux's layout has no place for; and what mflux itself does not keep.
LOST = r"(^lm_head\.weight|\.num_batches_tracked)$|^(visual|vision_tower|multi_modal_projector)\."
LOST_BY_MFLUX = LOST + r"|^encoder\.down_blocks\.5\.time_conv\.|^model\.visual\."


def diffusers_reads(folder: Path, source: Path, name: str, lost: str, result: Check):
    pipes = []
    for path in (folder, source):
        if index := modular.index_of(path):
            pipes.append(modular.load(path, index, REFERENCES, torch.float32))
        else:
            pipes.append(diffusers.DiffusionPipeline.from_pretrained(path, dtype=torch.float32))
    for component, module in pipes[1].components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        got, want = pipes[0].components[component].state_dict(), module.state_dict()
        kept = [k for k in want if not re.search(lost, k)]
        wrong = [k for k in kept if k not in got or got[k].is_meta or not torch.equal(got[k], want[k])]
        result.say(f"diffusers reads {name} {component}", f"{len(kept)} tensors are the same", wrong)


def modules(flat: dict) -> set:
    return {k.rsplit(".", 1)[0] for k in flat}


def part(flat: dict, names: set) -> dict:
    return {k: v for k, v in flat.items() if k.rsplit(".", 1)[0] in names}


def precision(flat: dict, module: str) -> str:
    """How a module's weight is stored."""
    weight, scales = flat.get(f"{module}.weight"), flat.get(f"{module}.scales")
    if weight is None:
        return "none"
    if scales is None:
        return str(weight.dtype).removeprefix("mlx.core.")
    return f"{weight.shape[-1] * 32 // (scales.shape[-1] * GROUP)} bits"


def save(gomflux: Path, model: Path, path: Path, *args: str):
    if path.exists():
        shutil.rmtree(path)
    command = [str(gomflux), "save", "--model", str(model), "--path", str(path), *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def configs(source: Path, folder: Path):
    """Puts diffusers' configs beside mflux's files: gomflux takes the sizes of a model from them. mflux-save has written a
    description too, by which gomflux knows the layout."""
    write_json(folder / "mflux_model.json", {})
    for file in source.rglob("*"):
        target = folder / file.relative_to(source)
        if file.is_file() and ".safetensors" not in file.name and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)


def golden(folder: Path):
    """Makes models/component/testdata/mflux: parts of two models that mflux saved, and what their weights are."""
    mx.set_default_device(mx.cpu)
    if folder.exists():
        shutil.rmtree(folder)
    small = dict(heads=1, layers=1)
    t5 = dict(single_layers=1, t5_layers=2, t5_head_dim=1, t5_intermediate=64, t5_pieces=100)
    for family, bits, component, dims in (
        ("qwen-image", 4, "transformer", small),  # of which some layers have 8 bits
        ("flux1-dev", 3, "t5_encoder", small | t5),
    ):
        with tempfile.TemporaryDirectory() as temporary:
            source, saved = Path(temporary, "source"), Path(temporary, "saved")
            tiny.make(source, family, 1, "ordinary", "hub", SHARDS, "bf16", FAMILIES[family].dims | dims)
            model = Model(family, source, bits)
            model.save(saved)
            definition = next(c for c in model.definition.get_components() if c.name == component)
            target = folder / definition.hf_subdir
            shutil.copytree(saved / definition.hf_subdir, target)
            shutil.copy(source / definition.hf_subdir / "config.json", target)
            plain = model.plain(component)
            known = names(definition, source).items()
            write_json(target / "expected.json", {k: digest(plain[v]) for k, v in known if v in plain})


def names(definition, source: Path) -> dict:
    """mflux's names of diffusers' tensors, of those that are one."""
    from mflux.models.common.weights.mapping.weight_mapper import WeightMapper

    stored = {}
    for file in (source / definition.hf_subdir).glob("*.safetensors"):
        stored |= mx.load(str(file))
    counts = WeightMapper._block_and_layer_counts(stored, definition.num_blocks, definition.num_layers)
    flat = WeightMapper._build_flat_mapping(definition.mapping_getter(), *counts)
    return {name: flat[name][0][0] for name in sorted(stored) if name in flat}


def digest(a: mx.array) -> str:
    return hashlib.sha256(bytes(memoryview(a.astype(mx.float32)))).hexdigest()

"""dump --framework mflux: the tensors of mflux 0.24.0, the other port to MLX, under diffusers' names.

It needs the packages of requirements-mflux.txt. mflux itself is not edited: the __call__ of its modules' classes is
wrapped while a run lasts. What is recorded are outputs, in diffusers' layout, where mflux has a module of that name;
inputs and q, k, v are not.

What mflux does otherwise, and the dump shows:
  - the prompt's and the negative prompt's passes are two calls (#1), and the negative one needs a guidance above 1;
  - the schedule is mflux's own whatever the model's config says (linear, shifted by size; with guidance another one);
  - an empty prompt has no tokens at all, an empty negative prompt is a blank;
  - q_norm and k_norm of the text encoder have an epsilon of 1e-5;
  - transformer@S is recorded as diffusers' model returns it, although mflux's returns it negated; text_encoder is not
    recorded, as it is another tensor (the second to last layer's output, which is the prompt's embedding).
"""

import dataclasses
import functools
import json
import os
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch

from . import runs
from .debug import of_mlx
from .record import Recorder
from .stats import attach

VERSION = "0.24.0"
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
PACKAGES = ("mflux", "mlx", "transformers", "tokenizers", "numpy", "pillow")

# The autoencoder of mflux is of these dimensions only.
VAE = {
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "latent_channels": 16,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
}


def pipeline(
    model: str, out: Path | None, prompt, negative_prompt, steps, guidance, seed, height, width, max_sequence_length, taps,
    picture, image_strength, references, scheduler, compute, device, threads, memory, log_dir, rng="mlx",
    sample=0, stats=(),
):  # fmt: skip
    """Records one generation of Z-Image by mflux, from a folder. rng is who draws the initial noise, mlx or torch."""
    if version("mflux") != VERSION:
        raise SystemExit(f"mflux {version('mflux')} is installed, expected {VERSION}")
    if picture or references:
        raise SystemExit("mflux can only be recorded for text-to-image")
    if height % 16 or width % 16:
        raise SystemExit(f"{width}x{height}: mflux rounds to multiples of 16")
    folder = Path(model)
    if not folder.is_dir():
        raise SystemExit(f"{model}: expected the folder of a model")
    mx.set_default_device(mx.cpu if device == "cpu" else mx.gpu)
    pipe = load(folder, guidance, compute, max_sequence_length)
    run = None if out else runs.Run(log_dir)
    taps = taps or ([] if stats else ["*"])
    record = Recorder(out, taps, sample, memory, run, keep=bool(taps))
    watch = Watch(record)
    tokens = {}
    with ExitStack() as patches:
        if run:
            patches.enter_context(run)
        patches.enter_context(record)
        attach(record, stats)
        for name in ("transformer", "text_encoder", "vae"):
            watch.modules(name, getattr(pipe, name))
        for cls in watch.classes():
            patches.enter_context(mock.patch.object(cls, "__call__", watch.call(cls.__call__)))
        watch_values(patches, pipe, record, tokens, seed, rng)
        image = pipe.generate_image(
            seed=seed, prompt=prompt, negative_prompt=negative_prompt, num_inference_steps=steps, guidance=guidance,
            height=height, width=width, scheduler=scheduler,
        ).image  # fmt: skip
        record.put("image", torch.from_numpy(np.array(image.convert("RGB"))))
        more = {"rng": rng} | ({"passes": "calls"} if guidance > 1 else {}) | ({"sample": sample} if sample else {})
        scheduler = scheduler or ("flow_match_euler_discrete" if guidance > 0 else "linear")  # mflux's own choice
        where = folder.as_posix()
        if run:
            image.save(run.folder / "images" / "image.png")
            more |= run.settings()
            where = os.path.abspath(folder)
        record.finish(
            {
                "command": "dump", "framework": "mflux", "family": "z-image", "pipeline": "ZImage", "model": where,
                "prompt": prompt, "negative_prompt": negative_prompt, "steps": steps, "guidance": guidance,
                "seed": seed, "height": height, "width": width, "max_sequence_length": max_sequence_length, "compute": compute,
                "device": device, "scheduler": scheduler, "tokens": tokens, "taps": taps, **more,
                "versions": runs.versions(PACKAGES),
            }
        )  # fmt: skip
    if run:
        print(run.folder)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def load(folder: Path, guidance: float, compute: str, max_sequence_length: int):
    """mflux's Z-Image with the dimensions of a folder's configs: mflux itself knows those of the published model."""
    from mflux.models.common.config.model_config import ModelConfig
    from mflux.models.common.vae.block_decoder import VAEBlockDecoder
    from mflux.models.z_image import z_image_initializer as initializer
    from mflux.models.z_image.variants.z_image import ZImage
    from mflux.models.z_image.weights.z_image_weight_definition import ZImageWeightDefinition
    from mflux.utils.apple_silicon import AppleSiliconUtil

    ModelConfig.precision = DTYPES[compute]
    t, e, v = (read_json(folder / part / "config.json") for part in ("transformer", "text_encoder", "vae"))
    for key, value in VAE.items():
        if v.get(key) != value:
            raise SystemExit(f"{folder / 'vae' / 'config.json'}: {key} is {v.get(key)}; mflux can only do {value}")
    transformer = functools.partial(
        initializer.ZImageTransformer,
        **{k: t[k] for k in ("in_channels", "dim", "n_layers", "n_refiner_layers", "n_heads", "norm_eps")},
        **{k: t[k] for k in ("qk_norm", "cap_feat_dim", "rope_theta", "t_scale", "axes_dims", "axes_lens")},
    )
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    keys += ("intermediate_size", "head_dim", "rms_norm_eps")
    theta = (e.get("rope_parameters") or e)["rope_theta"]
    text_encoder = functools.partial(initializer.TextEncoder, **{k: e[k] for k in keys}, rope_theta=theta)
    layers = {"transformer": t["n_layers"], "text_encoder": e["num_hidden_layers"]}
    components, tokenizers = ZImageWeightDefinition.get_components(), ZImageWeightDefinition.get_tokenizers()
    components = [dataclasses.replace(c, num_layers=layers.get(c.name, c.num_layers)) for c in components]
    tokenizers = [dataclasses.replace(d, max_length=max_sequence_length) for d in tokenizers]
    with (
        mock.patch.object(initializer, "ZImageTransformer", transformer),
        mock.patch.object(initializer, "TextEncoder", text_encoder),
        mock.patch.object(ZImageWeightDefinition, "get_components", staticmethod(lambda: components)),
        mock.patch.object(ZImageWeightDefinition, "get_tokenizers", staticmethod(lambda: tokenizers)),
    ):
        config = ModelConfig.z_image() if guidance > 0 else ModelConfig.z_image_turbo()
        pipe = ZImage(model_path=str(folder), model_config=config, float32=compute == "float32")
    # compiled functions, and decoding in strips, call no modules
    AppleSiliconUtil.is_m1_or_m2 = classmethod(lambda cls: True)
    pipe.vae.decode_mode = VAEBlockDecoder.LEGACY
    return pipe


def diffusers_name(component: str, path: str) -> str:
    """Of a module of mflux. What only wraps another one is not in diffusers, and has its name."""
    parts = path.split(".") if path else []
    if component == "transformer":
        path = path.replace("t_embedder.linear1", "t_embedder.mlp.0").replace("t_embedder.linear2", "t_embedder.mlp.2")
        if parts[:1] == ["all_final_layer"]:
            path = path.replace("adaLN_modulation.0", "adaLN_modulation.1").replace(".norm", ".norm_final")
    elif component == "vae" and parts[-1:] in (["conv"], ["conv2d"], ["norm"]) and "samplers" not in path:
        path = ".".join(parts[:-1])
    return f"{component}.{path}" if path else component


class Watch:
    """Records the outputs of modules."""

    def __init__(self, record: Recorder):
        self.record = record
        self.names = {}  # of modules, by their ids
        self.kept = []

    def modules(self, component: str, module: nn.Module):
        inner = {}
        for path, m in module.named_modules():
            inner[diffusers_name(component, path)] = m  # the inner one of two last
        for name, m in inner.items():
            self.names[id(m)] = (component, name)
            self.kept.append(m)

    def classes(self) -> list:
        return sorted({type(m) for m in self.kept if "__call__" in vars(type(m))}, key=lambda cls: cls.__name__)

    def call(self, function):
        @functools.wraps(function)
        def called(module, *args, **kwargs):
            component, name = self.names.get(id(module), (None, None))
            if name:
                call = self.record.calls[name] = self.record.calls.get(name, -1) + 1
            result = function(module, *args, **kwargs)
            if name and name != "text_encoder" and isinstance(result, mx.array):
                full = name + (f"@{self.record.step}" if component == "transformer" else "")
                full += f"#{call}" if call else ""
                if self.record.wants(full):
                    self.record.tapped(full, self._as_diffusers(component, name, module, result), module)
            return result

        return called

    def _as_diffusers(self, component, name, module, result):
        t = of_mlx(result)
        if name == "transformer":
            return -t
        if component == "text_encoder":
            padded, valid = self.record.crop[component]
            return t[:, :valid] if t.dim() > 1 and t.shape[1] == padded else t
        if component == "vae" and isinstance(module, (nn.Conv2d, nn.GroupNorm)):
            t = t.movedim(-1, 1)
            return t.flatten(2) if name.endswith(".group_norm") else t
        if component == "vae" and isinstance(module, nn.Linear):
            return t.flatten(1, 2)
        return t


def watch_values(patches: ExitStack, pipe, record: Recorder, tokens: dict, seed: int, rng: str):
    """Records values that are no module's output, and counts the steps."""
    from mflux.models.common.schedulers.base_scheduler import BaseScheduler
    from mflux.models.z_image.latent_creator import ZImageLatentCreator
    from mflux.models.z_image.model.z_image_text_encoder.prompt_encoder import PromptEncoder

    def replace(owner, name, function):
        patches.enter_context(mock.patch.object(owner, name, function))

    noise = ZImageLatentCreator.create_noise

    def create_noise(seed, height, width):
        x = noise(seed, height, width)
        if rng == "torch":
            drawn = torch.randn((1, x.shape[0], *x.shape[2:]), generator=torch.Generator().manual_seed(seed))
            x = mx.array(drawn[0][:, None].numpy()).astype(x.dtype)
        record.put("latents.init", of_mlx(x).movedim(1, 0))
        return x

    replace(ZImageLatentCreator, "create_noise", staticmethod(create_noise))

    encode = PromptEncoder.encode_prompt

    def encode_prompt(prompt, tokenizer, text_encoder):
        which = "negative" if tokens else "prompt"
        output = tokenizer.tokenize(prompt)
        ids, mask = of_mlx(output.input_ids).long(), of_mlx(output.attention_mask).bool()
        tokens[which] = {"padded": ids.shape[1], "valid": int(mask.sum())}
        record.crop["text_encoder"] = tuple(tokens[which].values())
        record.put(f"{which}.input_ids", ids)
        record.put(f"{which}.attention_mask", mask)
        embeds = encode(prompt=prompt, tokenizer=tokenizer, text_encoder=text_encoder)
        record.put(f"{which}.embeds", of_mlx(embeds))
        return embeds

    replace(PromptEncoder, "encode_prompt", staticmethod(encode_prompt))

    for cls in [c for c in every(BaseScheduler) if "step" in vars(c)]:
        step = cls.step

        def observed(self, noise, timestep, latents, _step=step, **kwargs):
            if record.step == 0:
                record.put("sigmas", of_mlx(self.sigmas))
                record.put("timesteps", of_mlx(self.sigmas[:-1] * 1000))
            record.put(f"noise_pred@{record.step}", of_mlx(noise).movedim(1, 0))
            latents = _step(self, noise=noise, timestep=timestep, latents=latents, **kwargs)
            record.put(f"latents@{record.step}", of_mlx(latents).movedim(1, 0))
            record.next_step()
            return latents

        replace(cls, "step", observed)

    vae, decode = type(pipe.vae), type(pipe.vae).decode

    def observed_decode(self, latents):
        record.put("vae.decode.in", of_mlx(latents / self.scaling_factor + self.shift_factor))
        pixels = decode(self, latents)
        record.put("vae.decode.out", of_mlx(pixels)[:, :, 0])
        return pixels

    replace(vae, "decode", observed_decode)


def every(cls) -> list:
    return [cls, *(d for c in cls.__subclasses__() for d in every(c))]

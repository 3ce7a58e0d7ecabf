"""SeedVR2's makers' code: runs of it, and what it computes in float64 with small random networks."""

import json
import re
import sys
import types
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from . import dump, foreign, record
from .files import MEMORY

REPOSITORY, COMMIT = "https://github.com/ByteDance-Seed/SeedVR", "673b56374c2adb21b7628b90df3829d457a52bbb"
TEXT = 5  # tokens

COMMON = {"vid_in_channels": 9, "vid_out_channels": 4, "txt_in_dim": 24, "expand_ratio": 4, "norm": "fusedrms", "norm_eps": 1e-5}
COMMON |= {"ada": "single", "qk_bias": False, "qk_norm": "fusedrms", "patch_size": (1, 2, 2)}
# the arguments of configs_3b and configs_7b in smaller sizes, with as many windows as large images have
MODELS = {
    "3b": COMMON | {"vid_dim": 32, "heads": 2, "head_dim": 16, "num_layers": 6, "mm_layers": 3, "mlp_type": "swiglu"}
    | {"vid_out_norm": "fusedrms", "txt_in_norm": "fusedln", "msa_type": None, "rope_type": "mmrope3d", "rope_dim": 16},
    "7b": COMMON | {"vid_dim": 48, "heads": 2, "head_dim": 24, "num_layers": 4, "mlp_type": "normal"}
    | {"qk_rope": True, "shared_mlp": False, "shared_qkv": False},
}  # fmt: skip
WINDOW = (4, 9, 9)
SIZE = (16, 24)  # of latents
NORM = re.compile(r"blocks\.\d+\.attn\.norm_[qk]\.(vid|all)")
VAE = {"block_out_channels": (8, 16, 24, 24), "norm_num_groups": 4, "latent_channels": 4, "layers_per_block": 1}


def stand_ins():
    """Modules in place of those that need a GPU: attention and norms as the makers call them."""

    def attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **_):
        parts = []
        ends = cu_seqlens_q.tolist()
        for a, b in zip(ends, ends[1:]):
            q1, k1, v1 = (x[a:b].transpose(0, 1) for x in (q, k, v))
            parts.append(functional.scaled_dot_product_attention(q1, k1, v1).transpose(0, 1))
        return torch.cat(parts)

    class RMSNorm(torch.nn.RMSNorm):
        def __init__(self, normalized_shape, elementwise_affine, eps):
            super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine)

    apex, normalization, flash = (types.ModuleType(name) for name in ("apex", "apex.normalization", "flash_attn"))
    normalization.FusedRMSNorm, normalization.FusedLayerNorm, apex.normalization = RMSNorm, torch.nn.LayerNorm, normalization
    flash.flash_attn_varlen_func = attention
    lora = types.ModuleType("diffusers.models.lora")  # of diffusers 0.29; the class is only asked for
    lora.LoRACompatibleConv = torch.nn.Conv2d
    sys.modules |= {"apex": apex, "apex.normalization": normalization, "flash_attn": flash, "diffusers.models.lora": lora}
    torch.Tensor.bfloat16 = lambda x: x  # which flash-attention needs


def transformer(arguments: dict, window=WINDOW):
    """A NaDiT without weights, of the version that the arguments are for."""
    if "vid_out_norm" in arguments:
        from models.dit_v2 import rope
        from models.dit_v2.nadit import NaDiT
    else:
        from models.dit import rope
        from models.dit.nadit import NaDiT
    layers = arguments["num_layers"]
    of = rope.RotaryEmbeddingBase
    if not hasattr(of, "whole"):  # a table of 1024x128x128 positions, of which few are used
        of.whole = of.get_axial_freqs
        of.get_axial_freqs = lambda self, *dims: self.whole(*(min(n, 64) if max(dims) == 1024 else n for n in dims))
    return NaDiT(
        **arguments, txt_dim=arguments["vid_dim"], emb_dim=6 * arguments["vid_dim"], block_type=layers * ["mmdit_sr"],
        window=layers * [window], window_method=layers // 2 * ["720pwin_by_size_bysize", "720pswin_by_size_bysize"],
    ).eval()  # fmt: skip


def filled(model):
    """A model with the tests' weights."""
    foreign.fill(dict(model.double().named_parameters()))
    return model


def unused(module: str, last: int, text: bool) -> bool:
    """Reports whether a module of the last block has no influence on the image, given whether the call is for the text."""
    if not module.startswith(f"blocks.{last}.") or not (module.endswith("txt") or ".txt." in module or (".all" in module and text)):
        return False
    return not re.search("attn_norm|proj_qkv|norm_[qk]", module)


def in_order(model, module: str, tensor, shape):
    """A tensor of a norm of queries or keys, put back from the order of windows to that of the image's tokens."""
    na = sys.modules[type(model).__module__.rpartition(".")[0] + ".na"]
    attention = model.get_submodule(re.match(r"blocks\.\d+\.attn", module)[0])

    def windows(x):
        return [x[t, h, w] for t, h, w in attention.window_op(tuple(x.shape[:3]), attention.window)]

    return na.window_idx(torch.tensor([[1, *shape]]), windows)[1](tensor)


def watch(recorder, model, name: str):
    """Hooks a NaDiT."""
    shape = SIZE[0] // 2, SIZE[1] // 2
    streams = {}

    def change(module, output):
        stream = streams[module] = 1 - streams.get(module, 1)  # of modules for both: the image's and then the text's
        if unused(module, len(model.blocks) - 1, stream == 1):
            return None
        if (m := NORM.fullmatch(module)) and (stream == 0 or m[1] == "vid"):
            output = in_order(model, module, output, shape)
        if re.search(r"\.ada\b|vid_out_ada|\.attn\.attn|rope", module):
            return None  # not modules there
        return output[0] if re.fullmatch(r"blocks\.\d+(\.attn)?", module) else output

    recorder.watch(model, name, change)


def autoencoder(config=VAE):
    from models.video_vae_v3.modules.attn_video_vae import VideoAutoencoderKLWrapper

    levels = len(config["block_out_channels"])
    return VideoAutoencoderKLWrapper(
        **config, in_channels=3, out_channels=3, act_fn="silu", temporal_scale_num=2, inflation_mode="pad", slicing_sample_min_size=4,
        down_block_types=levels * ("DownEncoderBlock3D",), up_block_types=levels * ("UpDecoderBlock3D",), use_quant_conv=False,
        use_post_quant_conv=False, spatial_downsample_factor=8, temporal_downsample_factor=4, freeze_encoder=False,
    ).eval()  # fmt: skip


def watch_autoencoder(recorder, model):
    def change(name, output):
        return None if re.search(r"upscale_conv|dropout|temporal_modules|to_out\.1", name) else output

    recorder.watch(model, "vae", change)


def runner(vae, dit, dtype: str = "float64"):
    """The makers' pipeline, with its settings for one step."""
    from omegaconf import OmegaConf
    from projects.video_diffusion_sr import infer

    infer.get_device = lambda: torch.device("cpu")
    config = {
        "vae": {"dtype": dtype, "scaling_factor": 0.9152, "grouping": False, "use_sample": False, "model": {}},
        "diffusion": {
            "schedule": {"type": "lerp", "T": 1000.0},
            "sampler": {"type": "euler", "prediction_type": "v_lerp"},
            "timesteps": {"sampling": {"type": "uniform_trailing", "steps": 1}, "transform": True},
            "cfg": {"scale": 1.0, "rescale": 0},
        },
    }
    run = infer.VideoDiffusionInfer(OmegaConf.create(config))
    run.vae, run.dit = vae, dit
    run.configure_diffusion()
    return run


def wavelet(content, style):
    """The details of one image with the colours of another: StableSR's wavelet_reconstruction, which the makers use."""

    def low(x):
        kernel = torch.tensor([1.0, 2, 1], dtype=x.dtype)
        kernel = (kernel[:, None] * kernel / 16).expand(3, 1, 3, 3)
        for level in range(5):
            d = 2**level
            x = functional.conv2d(functional.pad(x, (d, d, d, d), mode="replicate"), kernel, groups=3, dilation=d)
        return x

    return content - low(content) + low(style)


class Recorder(record.Recorder):
    """Records the network's tensors as gomflux has them: streams with the axis of a batch, and the network's own as images."""

    network, shape = None, (0, 0)  # of tokens

    def _tap(self, component, name, tensor, module):
        m = re.fullmatch(r"upscaler\.?(.*)@0(#1)?(:.*)?", name)
        if m:
            path, text, point = m[1], m[2] is not None, m[3] or ""
            last = len(self.network.blocks) - 1
            if unused(path, last, text) or point == ":out.1" and path in (f"blocks.{last}", f"blocks.{last}.attn"):
                return
            if norm := NORM.fullmatch(path):
                if norm[1] == "vid" or norm[1] == "all" and not text:
                    tensor = in_order(self.network, path, tensor, self.shape)
                if norm[1] == "all":  # gomflux computes the text's first
                    name = f"upscaler.{path}@0{'' if text else '#1'}{point}"
            if not path and point != ":in.txt" and tensor.is_floating_point() and tensor.dim() == 2:
                tensor = self.image(tensor)
            elif tensor.is_floating_point() and not path.startswith("emb_in") and tensor.dim() > 1:
                tensor = tensor[None]
        super()._tap(component, name, tensor, module)

    def image(self, tokens):
        """Latents [h·w, C] as [1, C, h, w]."""
        return tokens.unflatten(0, [2 * n for n in self.shape]).permute(2, 0, 1)[None]


def file_of(folder: Path, *patterns: str) -> Path:
    found = next((f for p in patterns for f in sorted(folder.glob(p))), None)
    if not found:
        raise SystemExit(f"{folder}: has no {' or '.join(patterns)}")
    return found


def loaded(model: Path):
    """The networks of a file or folder that gomflux upscale takes, with the weights, and the embeddings of the prompt."""
    folder = model if model.is_dir() else model.parent
    file = file_of(model, "upscaler/*.safetensors", "seedvr2*3b*.safetensors", "seedvr2*7b*.safetensors") if model.is_dir() else model
    state, vae = load_file(file), load_file(file_of(folder, "vae/*.safetensors", "*ema_vae*.safetensors", "../vae/*ema_vae*.safetensors"))
    if bad := next((k for k, t in state.items() if t.dtype not in (torch.float16, torch.bfloat16, torch.float32)), None):
        raise SystemExit(f"{file}: {bad} is {state[bad].dtype}: the makers' code takes files of 16 or 32 bits")
    config = file.parent / "config.json"
    window = (4, *json.loads(config.read_text(encoding="utf-8")).get("window", (3, 3))) if config.exists() else (4, 3, 3)
    layers = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("blocks."))
    qkv, head = state["blocks.0.attn.proj_qkv.vid.weight"], len(state["blocks.0.attn.norm_q.vid.weight"])
    shapes = {
        "vid_in_channels": state["vid_in.proj.weight"].shape[1] // 4, "vid_out_channels": len(state["vid_out.proj.weight"]) // 4,
        "txt_in_dim": state["txt_in.weight"].shape[1], "vid_dim": qkv.shape[1], "heads": len(qkv) // 3 // head, "head_dim": head,
        "num_layers": layers,
    }  # fmt: skip
    if "vid_out_norm.weight" in state:
        shapes |= {"mm_layers": sum(f"blocks.{i}.attn.proj_qkv.vid.weight" in state for i in range(layers)), "rope_dim": head}
    dit = transformer(MODELS["3b" if "vid_out_norm.weight" in state else "7b"] | shapes, window)
    text = state.pop("positive_conditioning", None)
    if text is None:
        text = next(iter(load_file(file_of(folder, "prompt/*.safetensors", "pos_emb.safetensors")).values()))
    missing = dit.load_state_dict(state, strict=False)
    if wrong := [k for k in missing.missing_keys if "rope" not in k] + [k for k in missing.unexpected_keys if "conditioning" not in k]:
        raise SystemExit(f"{file}: does not fit the makers' network: {', '.join(wrong[:3])}")
    widths = tuple(len(vae[f"encoder.down_blocks.{i}.resnets.0.conv1.weight"]) for i in range(4))
    sizes = {
        "block_out_channels": widths, "latent_channels": vae["decoder.conv_in.weight"].shape[1],
        "layers_per_block": sum(f"encoder.down_blocks.0.resnets.{i}.conv1.weight" in vae for i in range(9)),
        "norm_num_groups": 32 if widths[0] % 32 == 0 else 4,
    }  # fmt: skip
    coder = autoencoder(sizes)
    coder.load_state_dict(vae)
    return dit, coder, text


def run(recorder, model: Path, picture, size, seed, compute, source) -> dict:
    """Restores a picture with the makers' pipeline at a size, with gomflux's noise and the mean of its latents."""
    if not all(size) or any(n % 16 for n in size):
        raise SystemExit("--framework seedvr2 needs --height and --width, multiples of 16: the makers crop other images")
    foreign.clone(source, REPOSITORY, COMMIT)
    stand_ins()
    dtype = getattr(torch, compute)
    dit, vae, text = loaded(model)
    dit, vae, text = dit.to(dtype), vae.to(dtype), text.to(dtype)
    whole = runner(vae, dit, compute)
    recorder.network, recorder.shape = dit, tuple(n // 16 for n in size)
    recorder.watch("upscaler", dit, True)
    recorder.watch("vae", vae)
    pixels = foreign.pixels(picture.resize(size[::-1], Image.Resampling.BICUBIC))
    recorder.put("image.in", pixels)
    content = pixels.permute(2, 0, 1).to(dtype) / 255 * 2 - 1
    recorder.put("vae.encode.in", content[None])
    dump.wrap(vae, "encode", after=lambda out: recorder.put("vae.encode.out", record.still(out.posterior.mode())))
    dump.wrap(vae, "decode", lambda z: recorder.put("vae.decode.in", z))
    dump.wrap(vae, "decode", after=lambda out: recorder.put("vae.decode.out", out.sample.reshape(1, 3, *size)))
    latents = whole.vae_encode([content[:, None]])[0]  # [1, h, w, C]
    recorder.put("latents.image", latents.permute(0, 3, 1, 2))
    shape = 1, latents.shape[-1], *latents.shape[1:3]
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    recorder.put("latents.init", noise)
    dit.register_forward_hook(lambda _m, _i, out: recorder.put("noise_pred@0", recorder.image(out.vid_sample)))
    dump.wrap(whole, "vae_decode", lambda all: recorder.put("latents@0", all[0].permute(0, 3, 1, 2)))
    noises = [noise.permute(0, 2, 3, 1)]
    condition = whole.get_condition(noises[0], task="sr", latent_blur=latents)
    out = whole.inference(noises=noises, conditions=[condition], texts_pos=[text], texts_neg=[text], cfg_scale=1.0)[0]
    image = wavelet(out.reshape(1, 3, *size), content[None])[0]
    return {"image": image.permute(1, 2, 0).div(2).add(0.5).clamp(0, 1).mul(255).round().byte(), "color_correction": "wavelet"}


def small(folder: Path):
    """Writes a small model of the first kind, whose image of 64x96 pixels has windows of several sizes, as gomflux lays it out."""
    sizes = {"mm_layers": 1, "num_layers": 2}
    config = {
        "_class_name": "NaDiT", "vid_in_channels": 9, "vid_out_channels": 4, "txt_in_dim": 24, "vid_dim": 32, "heads": 2, "head_dim": 16,
        "mlp_type": "swiglu", "mlp_dim": 256, "vid_out_norm": True, "rope_type": "mmrope3d", "rope_dim": 16, "norm_eps": 1e-5,
        "window": (20, 20), **sizes,
    }  # fmt: skip
    vae = VAE | {"block_out_channels": (8, 8, 8, 16)}
    files = {
        "upscaler": (config, filled(transformer(MODELS["3b"] | sizes))),
        "vae": (vae | {"_class_name": "VideoAutoencoderKL", "temporal_scale_num": 2, "scaling_factor": 0.9152}, filled(autoencoder(vae))),
    }
    for name, (config, model) in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        save_file({k: p.detach().half() for k, p in model.named_parameters()}, folder / name / "model.safetensors")
    (folder / "prompt").mkdir(exist_ok=True)
    save_file({"embedding": foreign.signed(TEXT, 24, offset=1).half()}, folder / "prompt" / "model.safetensors")


def golden(folder: Path, source: Path):
    """Writes some values of the output of every module, for weights and inputs that the tests make too. folder is the project's."""
    foreign.clone(source, REPOSITORY, COMMIT)
    stand_ins()
    for name in MODELS:
        recorder, model = foreign.Recorder(), filled(transformer(MODELS[name]))
        watch(recorder, model, "transformer")
        c = 2 * MODELS[name]["vid_out_channels"] + 1
        latents = foreign.signed(c, *SIZE)
        latents[-1] = 1  # the mask
        with torch.no_grad():
            out = model(
                vid=latents.permute(1, 2, 0).flatten(0, 1), txt=foreign.signed(TEXT, MODELS[name]["txt_in_dim"], offset=1),
                vid_shape=torch.tensor([[1, *SIZE]]), txt_shape=torch.tensor([[TEXT]]), timestep=torch.tensor([1000.0]),
            ).vid_sample  # fmt: skip
        recorder.add("transformer", out.unflatten(0, SIZE).permute(2, 0, 1))
        save_file(recorder.found, folder / f"transformer/testdata/seedvr2-{name}.safetensors")

    recorder, vae = foreign.Recorder(), filled(autoencoder())
    watch_autoencoder(recorder, vae)
    image = foreign.pattern(3, 48, 80) / 125 - 1
    with torch.no_grad():
        recorder.add("latents", vae.encode(image[None]).posterior.mode())
        recorder.add("image", vae.decode(foreign.signed(1, 4, 6, 10)).sample)
    save_file(recorder.found, folder / "vae/testdata/seedvr2.safetensors")

    size = 8 * SIZE[0], 8 * SIZE[1]
    image, recorder = foreign.pattern(3, *size).div(125).sub(1), foreign.Recorder()
    for name in MODELS:
        run = runner(filled(autoencoder()), filled(transformer(MODELS[name])))
        with torch.no_grad():
            latents = run.vae_encode([image[:, None]])
            noise = foreign.signed(4, *SIZE, offset=2).permute(1, 2, 0)[None]
            condition = run.get_condition(noise, task="sr", latent_blur=latents[0])
            text = foreign.signed(TEXT, MODELS[name]["txt_in_dim"], offset=1)
            out = run.inference(noises=[noise], conditions=[condition], texts_pos=[text], texts_neg=[text], cfg_scale=1.0)[0]
        recorder.add(name, out)
        recorder.add(f"{name}, colours of the image", wavelet(out.reshape(1, 3, *size), image[None]))
    save_file(recorder.found, folder / "upscaler/testdata/seedvr2.safetensors")
    from . import goldens

    at = folder / "upscaler/testdata/runs/seedvr2"
    small(at / "model")
    goldens.draw(48, 32).save(at / "image.png")
    taps = ["upscaler*", "vae.*.mid_block*", "vae.decoder.up_blocks.0.resnets*", "vae.encoder.down_blocks.3*", "!vae.*_blocks*:in.*"]
    foreign.dump(
        "seedvr2", at / "model", at / "dump", at / "image.png", 64, 96, 3, "float64", source, taps, 0, MEMORY,
    )  # fmt: skip

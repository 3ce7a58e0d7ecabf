"""What SeedVR2's makers' code computes in float64, with small random networks."""

import re
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from . import foreign

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


def transformer(name: str):
    """A NaDiT with the tests' weights."""
    if name == "3b":
        from models.dit_v2 import rope
        from models.dit_v2.nadit import NaDiT
    else:
        from models.dit import rope
        from models.dit.nadit import NaDiT
    arguments, layers = MODELS[name], MODELS[name]["num_layers"]
    of = rope.RotaryEmbeddingBase
    if not hasattr(of, "whole"):  # a table of 1024x128x128 positions, of which few are used
        of.whole = of.get_axial_freqs
        of.get_axial_freqs = lambda self, *dims: self.whole(*(min(n, 64) if max(dims) == 1024 else n for n in dims))
    model = NaDiT(
        **arguments, txt_dim=arguments["vid_dim"], emb_dim=6 * arguments["vid_dim"], block_type=layers * ["mmdit_sr"],
        window=layers * [WINDOW], window_method=layers // 2 * ["720pwin_by_size_bysize", "720pswin_by_size_bysize"],
    ).double().eval()  # fmt: skip
    foreign.fill(dict(model.named_parameters()))
    return model


def watch(recorder, model, name: str):
    """Hooks a NaDiT. Norms of queries and keys are put back from the order of windows to that of the image."""
    na = sys.modules[type(model).__module__.rpartition(".")[0] + ".na"]
    shape = torch.tensor([[1, SIZE[0] // 2, SIZE[1] // 2]])
    streams = {}

    def change(module, output):
        last = f"blocks.{len(model.blocks) - 1}."
        stream = streams[module] = 1 - streams.get(module, 1)  # of modules for both: the image's and then the text's
        if module.startswith(last) and (module.endswith("txt") or ".txt." in module or (".all" in module and stream)):
            if not re.search("attn_norm|proj_qkv|norm_[qk]", module):
                return None  # without an influence on the image
        if m := re.fullmatch(r"(blocks\.\d+\.attn)\.norm_[qk]\.(vid|all)", module):
            if stream == 0 or m[2] == "vid":
                attention = model.get_submodule(m[1])

                def windows(x):
                    return [x[t, h, w] for t, h, w in attention.window_op(tuple(x.shape[:3]), attention.window)]

                output = na.window_idx(shape, windows)[1](output)
        if re.search(r"\.ada\b|vid_out_ada|\.attn\.attn|rope", module):
            return None  # not modules there
        return output[0] if re.fullmatch(r"blocks\.\d+(\.attn)?", module) else output

    recorder.watch(model, name, change)


def autoencoder():
    from models.video_vae_v3.modules.attn_video_vae import VideoAutoencoderKLWrapper

    levels = len(VAE["block_out_channels"])
    model = VideoAutoencoderKLWrapper(
        **VAE, in_channels=3, out_channels=3, act_fn="silu", temporal_scale_num=2, inflation_mode="pad", slicing_sample_min_size=4,
        down_block_types=levels * ("DownEncoderBlock3D",), up_block_types=levels * ("UpDecoderBlock3D",), use_quant_conv=False,
        use_post_quant_conv=False, spatial_downsample_factor=8, temporal_downsample_factor=4, freeze_encoder=False,
    ).double().eval()  # fmt: skip
    foreign.fill(dict(model.named_parameters()))
    return model


def watch_autoencoder(recorder, model):
    def change(name, output):
        return None if re.search(r"upscale_conv|dropout|temporal_modules|to_out\.1", name) else output

    recorder.watch(model, "vae", change)


def runner(vae, dit):
    """The makers' pipeline, with its settings for one step."""
    from omegaconf import OmegaConf
    from projects.video_diffusion_sr import infer

    infer.get_device = lambda: torch.device("cpu")
    config = {
        "vae": {"dtype": "float64", "scaling_factor": 0.9152, "grouping": False, "use_sample": False, "model": {}},
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


def golden(folder: Path, source: Path):
    """Writes some values of the output of every module, for weights and inputs that the tests make too. folder is the project's."""
    foreign.clone(source, REPOSITORY, COMMIT)
    stand_ins()
    for name in MODELS:
        recorder, model = foreign.Recorder(), transformer(name)
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

    recorder, vae = foreign.Recorder(), autoencoder()
    watch_autoencoder(recorder, vae)
    image = foreign.pattern(3, 48, 80) / 125 - 1
    with torch.no_grad():
        recorder.add("latents", vae.encode(image[None]).posterior.mode())
        recorder.add("image", vae.decode(foreign.signed(1, 4, 6, 10)).sample)
    save_file(recorder.found, folder / "vae/testdata/seedvr2.safetensors")

    size = 8 * SIZE[0], 8 * SIZE[1]
    image, recorder = foreign.pattern(3, *size).div(125).sub(1), foreign.Recorder()
    for name in MODELS:
        run = runner(autoencoder(), transformer(name))
        with torch.no_grad():
            latents = run.vae_encode([image[:, None]])
            noise = foreign.signed(4, *SIZE, offset=2).permute(1, 2, 0)[None]
            condition = run.get_condition(noise, task="sr", latent_blur=latents[0])
            text = foreign.signed(TEXT, MODELS[name]["txt_in_dim"], offset=1)
            out = run.inference(noises=[noise], conditions=[condition], texts_pos=[text], texts_neg=[text], cfg_scale=1.0)[0]
        recorder.add(name, out)
        recorder.add(f"{name}, colours of the image", wavelet(out.reshape(1, 3, *size), image[None]))
    save_file(recorder.found, folder / "upscaler/testdata/seedvr2.safetensors")

"""Makes the goldens of AutoencoderKLFlux2, AutoencoderKLQwenImage, AutoencoderKLQwenImage21 and
AutoencoderTiny in this folder: two or three small random models of each, and what diffusers 0.42.1 computes
with them in float64.

    python make.py    # with torch, diffusers and safetensors
"""

import json
import math
import pathlib

import diffusers
import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import Flux2KleinPipeline
from safetensors.torch import save_file

assert diffusers.__version__ == "0.42.1", diffusers.__version__

BLOCKS = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
MODELS = {
    # name: (height, width of the picture, config)
    "flux2-quant": (48, 80, {
        "block_out_channels": (4, 6, 6, 8), "decoder_block_out_channels": (6, 4, 10, 8), "layers_per_block": 1,
        "latent_channels": 5, "norm_num_groups": 2,
    }),
    "flux2-plain": (112, 208, {
        "block_out_channels": (3, 6, 9), "layers_per_block": 2, "latent_channels": 3, "norm_num_groups": 3,
        "use_quant_conv": False, "use_post_quant_conv": False, "batch_norm_eps": 1e-2,
    }),
}
QWENIMAGE = {
    "qwenimage-thin": (48, 80, {
        "base_dim": 4, "dim_mult": [1, 1, 2, 1], "num_res_blocks": 1, "z_dim": 5, "temperal_downsample": [False, True, True],
        "latents_mean": [-0.7571, 0.1075, 1.5508, 0.4134, -0.0715], "latents_std": [2.8184, 1.4541, 0.3275, 1.2196, 3.2687],
    }),
    "qwenimage-odd": (112, 208, {
        "base_dim": 5, "dim_mult": [1, 2, 1, 1], "num_res_blocks": 2, "z_dim": 3, "temperal_downsample": [True, False, False],
        "latents_mean": [0.9653, -0.2921, -0.9113], "latents_std": [0.7083, 2.6052, 1.1253],
    }),
}
QWENIMAGE21 = {
    "qwenimage21-thin": (48, 80, {  # means of 2, 8 and 4 values, and 4, 8, 16 and 2 copies
        "base_dim": 6, "decoder_base_dim": 4, "dim_mult": [2, 2, 4, 2, 2], "num_res_blocks": 1, "z_dim": 5,
        "temperal_downsample": [False, True, True, False],
        "latents_mean": [-0.7571, 0.1075, 1.5508, 0.4134, -0.0715], "latents_std": [2.8184, 1.4541, 0.3275, 1.2196, 3.2687],
    }),
    "qwenimage21-odd": (112, 208, {
        "base_dim": 5, "decoder_base_dim": None, "dim_mult": [1, 1, 2, 2], "num_res_blocks": 2, "z_dim": 3,
        "temperal_downsample": [True, False, False],
        "latents_mean": [0.9653, -0.2921, -0.9113], "latents_std": [0.7083, 2.6052, 1.1253],
    }),
}
TINY = {
    # name: (height, width of the picture, patch size, config)
    "tiny-thin": (48, 80, 1, {
        "encoder_block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (12, 12, 12, 12), "latent_channels": 5,
        "scaling_factor": 0.7, "shift_factor": 0.2,
    }),
    "tiny-odd": (112, 208, 1, {
        "encoder_block_out_channels": (5, 5, 5), "decoder_block_out_channels": (7, 7, 7), "latent_channels": 3,
        "num_encoder_blocks": (0, 1, 2), "num_decoder_blocks": (2, 1, 0),
    }),
    "tiny-preview": (24, 40, 1, {  # for the latents of zimage-ordinary in models/testdata
        "encoder_block_out_channels": (4, 4, 4), "decoder_block_out_channels": (4, 4, 4), "latent_channels": 4,
        "num_encoder_blocks": (1, 1, 1), "num_decoder_blocks": (1, 1, 1),
    }),
    "tiny-pool": (48, 80, 2, {
        "encoder_block_out_channels": (6, 6, 6, 6), "decoder_block_out_channels": (8, 8, 8, 8), "latent_channels": 3,
        "num_decoder_blocks": (2, 1, 1, 1), "num_encoder_blocks": (1, 1, 1, 2),
    }),
}
SAMPLE = 23  # of a decoded picture, one value of so many is kept


def pattern(*shape):
    """What the test makes in the same way: values from -1 to 1."""
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    return ((i * i * 31 + i * 7) % 251).double().div(125).sub(1).float().double().reshape(shape)


def save(name, tensors):
    tensors = {k: v.float().contiguous() for k, v in tensors.items()}
    save_file(tensors, pathlib.Path(__file__).parent / name / "expected.safetensors")


def flux2():
    for seed, (name, (height, width, config)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        levels = len(config["block_out_channels"])
        model = diffusers.AutoencoderKLFlux2(**config, **{k: v * levels for k, v in BLOCKS.items()}).eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                if p.ndim == 1:  # biases are not 0, norms' weights not 1
                    p.add_(0.2 * torch.randn_like(p))
            model.bn.running_mean.normal_(0, 0.5)
            model.bn.running_var.uniform_(0.1, 2)
            model.to(torch.bfloat16).save_pretrained(pathlib.Path(__file__).parent / name)
            model.double()  # the same values
            mean = model.bn.running_mean.view(1, -1, 1, 1)
            std = torch.sqrt(model.bn.running_var.view(1, -1, 1, 1) + model.config.batch_norm_eps)
            encoded = model.encode(pattern(1, 3, height, width)).latent_dist.mode()
            latents = Flux2KleinPipeline._patchify_latents(encoded)
            given = pattern(*latents.shape)
            unscaled = Flux2KleinPipeline._unpatchify_latents(given * std + mean)
            decoded = model.decode(unscaled).sample
            tensors = {"encoded": encoded, "scaled": (latents - mean) / std, "unscaled": unscaled}
            tensors["decoded"] = decoded.flatten()[::SAMPLE]
        save(name, tensors)


def qwenimage(cls, models, first, channels):
    for seed, (name, (height, width, config)) in enumerate(models.items()):
        torch.manual_seed(first + seed)
        model = cls(**config).eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                if key.endswith(".weight"):  # as large as one frame needs it
                    p.normal_(0, 0.8 / math.sqrt(p[0, :, 0].numel() if p.ndim == 5 else p[0].numel()))
                else:  # large biases keep pixels away from zero, where the norm is ill-conditioned
                    p.add_((0.7 if key.endswith("bias") else 0.2) * torch.randn_like(p))
            model.decoder.conv_out.weight.mul_(1.5)  # some pixels are clamped
            model.to(torch.bfloat16).save_pretrained(pathlib.Path(__file__).parent / name)
            model.double()  # the same values
            # as the pipelines do; the frames' axis is dropped here
            mean = torch.tensor(config["latents_mean"]).view(1, -1, 1, 1, 1).double()
            std = torch.tensor(config["latents_std"]).view(1, -1, 1, 1, 1).double()
            encoded = model.encode(pattern(1, channels, 1, height, width)).latent_dist.mode()
            unscaled = pattern(*encoded.shape) / (1 / std) + mean
            decoded = model.decode(unscaled).sample
            tensors = {"encoded": encoded, "scaled": (encoded - mean) / std, "unscaled": unscaled}
            tensors = {k: v[:, :, 0] for k, v in tensors.items()} | {"decoded": decoded.flatten()[::SAMPLE]}
            clamped = (decoded.abs() == 1).double().mean()
            single = cls.from_pretrained(pathlib.Path(__file__).parent / name, torch_dtype=torch.float32)
            for what, got, want in (
                ("encode", single.encode(pattern(1, channels, 1, height, width).float()).latent_dist.mode(), encoded),
                ("decode", single.decode(unscaled.float()).sample, decoded),
            ):
                off, largest = (got.double() - want).abs().max(), want.abs().max()
                print(f"{name} {what}: largest value {largest:.3g}, {clamped:.0%} clamped, float32 is off by {off / largest:.2g}")
        save(name, tensors)


def add_pool(block):
    """Gives an AutoencoderTinyBlock the branch that those of TAEF2 have at the lowest resolution, and
    diffusers' class lacks: github.com/madebyollin/taesd, taesd.py, Block with use_midblock_gn."""
    width = block.conv[0].in_channels
    block.pool = torch.nn.Sequential(
        torch.nn.Conv2d(width, 4 * width, 1, bias=False), torch.nn.GroupNorm(4, 4 * width), torch.nn.ReLU(),
        torch.nn.Conv2d(4 * width, width, 1, bias=False))
    plain = block.forward
    block.forward = lambda x: plain(x + block.pool(x))


def tiny():
    for seed, (name, (height, width, patch, config)) in enumerate(TINY.items()):
        torch.manual_seed(200 + seed)
        model = diffusers.AutoencoderTiny(**config).eval()
        folder = pathlib.Path(__file__).parent / name
        if patch > 1:
            is_block = lambda layer: hasattr(layer, "fuse")
            first = model.config.num_decoder_blocks[0]
            for block in [b for b in model.decoder.layers if is_block(b)][:first]:
                add_pool(block)
            last = model.config.num_encoder_blocks[-1]
            for block in [b for b in model.encoder.layers if is_block(b)][-last:]:
                add_pool(block)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if p.ndim == 4:  # keeps the residual stream at a magnitude of about 1
                    p.normal_(0, 0.9 / math.sqrt(p[0].numel()))
                else:
                    p.add_(0.2 * torch.randn_like(p))
            model.to(torch.bfloat16).save_pretrained(folder)
            if patch > 1:
                file = folder / "config.json"
                keys = json.loads(file.read_text()) | {"use_midblock_gn": True, "patch_size": patch}
                file.write_text(json.dumps(keys, indent=2) + "\n")
            model.double()  # the same values
            scaling, shift = model.config.scaling_factor, model.config.shift_factor
            pack, unpack = (lambda x: x), (lambda x: x)
            if patch > 1:
                pack, unpack = Flux2KleinPipeline._patchify_latents, Flux2KleinPipeline._unpatchify_latents
            encoded = model.encode(pattern(1, 3, height, width)).latents
            scaled = pack((encoded - shift) * scaling)
            unscaled = unpack(pattern(*scaled.shape)) / scaling + shift
            decoded = model.decode(unscaled).sample
            print(f"{name}: latents to {encoded.abs().max():.3g}, pixels to {decoded.abs().max():.3g}")
        save(name, {"encoded": encoded, "scaled": scaled, "unscaled": unscaled, "decoded": decoded.flatten()[::SAMPLE]})


def main():
    flux2()
    qwenimage(diffusers.AutoencoderKLQwenImage, QWENIMAGE, 100, 3)
    qwenimage(diffusers.AutoencoderKLQwenImage21, QWENIMAGE21, 300, 4)
    tiny()


if __name__ == "__main__":
    main()

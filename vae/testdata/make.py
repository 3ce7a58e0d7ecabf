"""Makes the goldens of AutoencoderKLFlux2 in this folder: two small random models,
and what diffusers 0.42.1 computes with them in float64.

    python make.py    # with torch, diffusers and safetensors
"""

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
SAMPLE = 23  # of a decoded picture, one value of so many is kept


def pattern(*shape):
    """What the test makes in the same way: values from -1 to 1."""
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    return ((i * i * 31 + i * 7) % 251).double().div(125).sub(1).float().double().reshape(shape)


def main():
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
        save_file({k: v.float().contiguous() for k, v in tensors.items()}, pathlib.Path(__file__).parent / name / "expected.safetensors")


if __name__ == "__main__":
    main()

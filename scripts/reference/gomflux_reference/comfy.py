"""Matrices that comfy-kitchen, ComfyUI's library for quantized weights, has quantized."""

import json
from pathlib import Path

import torch
from comfy_kitchen.tensor import TensorCoreConvRotW4A4Layout, TensorCoreMXFP8Layout, TensorCoreNVFP4Layout, TensorWiseINT8Layout
from safetensors.torch import save_file

INT8 = "int8_tensorwise"
# the rows and columns of each matrix, its layout, the arguments of quantize, and what the file says of it
MATRICES = {
    "tensor": ((5, 24), TensorWiseINT8Layout, {}, {"format": INT8}),
    "rows": ((5, 24), TensorWiseINT8Layout, {"per_channel": True}, {"format": INT8, "per_row": True}),
    "rotated": ((6, 512), TensorWiseINT8Layout, {"per_channel": True, "convrot": True}, {"format": INT8, "convrot": True}),
    "small": (
        (7, 48),
        TensorWiseINT8Layout,
        {"per_channel": True, "convrot": True, "convrot_groupsize": 16},
        {"format": INT8, "convrot": True, "convrot_groupsize": 16},
    ),
    "int4": ((9, 256), TensorCoreConvRotW4A4Layout, {"convrot_groupsize": 64}, {"format": "convrot_w4a4", "convrot_groupsize": 64}),
    # more than one tile of scales in both directions
    "mxfp8": ((160, 160), TensorCoreMXFP8Layout, {}, {"format": "mxfp8"}),
    "nvfp4": ((144, 80), TensorCoreNVFP4Layout, {}, {"format": "nvfp4"}),
}


def golden(folder: Path, seed: int = 0):
    """Writes quantized.safetensors and expected.safetensors, and one of the matrices with its format in metadata.safetensors.
    rotation.safetensors has a rotation that does not exist."""
    generator = torch.Generator().manual_seed(seed)
    tensors, expected, layers = {}, {}, {}
    for name, (shape, layout, arguments, config) in MATRICES.items():
        weight = torch.randn(shape, generator=generator)
        weight[:, 3] *= 20  # such an outlier is what rotations are for
        packed, parameters = layout.quantize(weight, **arguments)
        for suffix, tensor in layout.state_dict_tensors(packed, parameters).items():
            tensors[f"{name}.weight{suffix}"] = tensor.contiguous()
        expected[f"{name}.weight"] = layout.dequantize(packed, parameters)
        layers[name] = config
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format_version": "1.0", "layers": {"rows": layers["rows"]}})
    rows = {name: tensor for name, tensor in tensors.items() if name.startswith("rows.")}
    save_file(rows, folder / "metadata.safetensors", {"_quantization_metadata": text})
    for name, config in layers.items():
        tensors[f"{name}.comfy_quant"] = encoded(config)
    save_file(tensors, folder / "quantized.safetensors")
    small = {name: tensor for name, tensor in tensors.items() if name.startswith("small.")}
    small["small.comfy_quant"] = encoded(layers["small"] | {"convrot_groupsize": 24})
    save_file(small, folder / "rotation.safetensors")
    save_file(expected, folder / "expected.safetensors")


def encoded(config: dict) -> torch.Tensor:
    """A format as files have it: JSON as numbers."""
    return torch.tensor(list(json.dumps(config).encode()), dtype=torch.uint8)

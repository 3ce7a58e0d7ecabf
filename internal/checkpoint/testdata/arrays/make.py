"""Makes the files in this folder, with NumPy and the safetensors package:

    python make.py
"""

import numpy as np
import torch
from safetensors.torch import save_file

values = {
    "f8": np.array([[1.5, -2.25, np.pi], [np.inf, -0.0, 1e300]], "<f8"),
    "f4": np.arange(24, dtype="<f4").reshape(2, 3, 4) / 7,
    "f2": np.array([1, -2.5, 65504, 6e-8, 1 / 3, np.inf, np.nan], "<f2"),
    "i8": np.array([-(2**62) - 1, 2**62 + 1], "<i8"),
    "i4": np.array([[-5], [7]], "<i4"),
    "i2": np.array([-300, 300], "<i2"),
    "i1": np.array([-128, 127], "i1"),
    "u8": np.array([2**64 - 1], "<u8"),
    "u4": np.array([2**32 - 1], "<u4"),
    "u2": np.array([65535], "<u2"),
    "u1": np.array([0, 255], "u1"),
    "b1": np.array([True, False, True]),
    "scalar": np.array(3.5, "<f4"),
    "empty": np.zeros((2, 0, 3), "<f4"),
}
np.savez("stored.npz", **values)
np.savez_compressed("deflated.npz", **values)
f4 = values["f4"]
np.save("c.npy", f4)
np.save("fortran.npy", np.asfortranarray(f4))
np.save("big-endian.npy", f4.astype(">f4"))
with open("version2.npy", "wb") as f:
    np.lib.format.write_array(f, f4, version=(2, 0))
with open("version3.npy", "wb") as f:
    np.lib.format.write_array(f, f4, version=(3, 0))
np.save("objects.npy", np.array([{}], dtype=object))
np.save("complex.npy", np.array([1j]))
np.save("structured.npy", np.zeros(2, dtype=[("a", "<f4")]))
# for the scripts of the command
np.save("nan.npy", np.full((1, 4, 6, 10), np.nan, "<f4"))
np.save("ids.npy", np.array([[99999, 1]], "<i4"))
latents = np.linspace(-2, 2, 4 * 2 * 3).reshape(1, 4, 2, 3)
np.savez("latents.npz", latents=latents.astype("<f4"), double=latents.astype("<f4").astype("<f8"))
tensors = {name: torch.from_numpy(v.copy()) for name, v in values.items()}
tensors["bf16"] = torch.tensor([1, -1 / 3, 3e38, float("nan")]).bfloat16()
save_file(tensors, "all.safetensors", {"made by": "make.py"})

"""What torch.randn draws on the CPU, for many seeds and sizes, as JSON."""

from pathlib import Path

import torch

from .files import write_json

SEEDS = (0, 1, 42, 2**31, 2**32 - 1, 2**32 + 5, 123456789012345)
# below 16, multiples of 16, and what is left over; the last needs several states of the Mersenne Twister
SIZES = (1, 2, 7, 15, 16, 17, 31, 32, 100, 4099)


def write(file: Path):
    cases = []
    for seed in SEEDS:
        for n in SIZES:
            x = torch.randn(n, generator=torch.Generator("cpu").manual_seed(seed))
            kept = x if n <= 32 else torch.cat([x[:4], x[-20:]])
            cases.append({"seed": seed, "n": n, "values": [float(v) for v in kept]})
    write_json(file, {"torch": torch.__version__, "cases": cases})

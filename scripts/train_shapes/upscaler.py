"""Trains the network of models/shapes/model/upscaler, which enlarges images of shapes four times, in minutes:

    python upscaler.py --out ../../models/shapes/model/upscaler

The network there had 4000 steps of crops from anywhere, and then, by --start, 2500 steps of these,
all on one thread of a CPU.

It is SRVGGNetCompact of Real-ESRGAN with 16 features and 4 convolutions. Large images are drawn; the small ones are
their means over 4x4 pixels. In the end it prints the PSNR of held-out scenes beside that of Pillow's bicubic filter.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import scenes

SCALE, FEATURES, CONVS = 4, 16, 4


class Compact(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, channels = nn.ModuleList(), 3
        for _ in range(1 + CONVS):
            self.body += [nn.Conv2d(channels, FEATURES, 3, 1, 1), nn.PReLU(FEATURES)]
            channels = FEATURES
        self.body.append(nn.Conv2d(channels, 3 * SCALE**2, 3, 1, 1))

    def forward(self, x):
        y = x
        for layer in self.body:
            y = layer(y)
        return functional.pixel_shuffle(y, SCALE) + functional.interpolate(x, scale_factor=SCALE, mode="nearest")


def held_out(*choice):
    return ~scenes.allowed(*choice)


def images(rng, n, keep=scenes.allowed):
    """Large images [n, 3, 256, 256] of scenes, in steps of 1/255, and small ones."""
    drawn = [scenes.draw_uint8(scenes.sample(rng, 10, keep)) for _ in range(n // 10)]
    large = torch.from_numpy(np.concatenate(drawn)).permute(0, 3, 1, 2).float() / 255
    return large, (functional.avg_pool2d(large, SCALE) * 255).round() / 255


def psnr(found, expected):
    return -10 * torch.log10(((found.clamp(0, 1) * 255).round() / 255 - expected).square().mean((1, 2, 3)))


def bicubic(small):
    pixels = (small * 255).round().byte().permute(0, 2, 3, 1).numpy()
    size = (pixels.shape[2] * SCALE, pixels.shape[1] * SCALE)
    large = np.stack([np.asarray(Image.fromarray(p).resize(size, Image.Resampling.BICUBIC)) for p in pixels])
    return torch.from_numpy(large).permute(0, 3, 1, 2).float() / 255


def train(model, rng, seconds):
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters())
    large, small = images(rng, 400)
    edges = (small[:, :, 1:, 1:] != small[:, :, :-1, :-1]).any(1).nonzero().numpy()
    start, step = time.monotonic(), 0
    while (done := (time.monotonic() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - done) ** 1.5 + 1e-5
        crops = []
        for i, y, x in edges[rng.integers(0, len(edges), 24)]:  # the rest is flat
            crops.append((i, *np.clip([y - rng.integers(4, 12), x - rng.integers(4, 12)], 0, 64 - 16)))
        found = model(torch.stack([small[i, :, y : y + 16, x : x + 16] for i, y, x in crops]).to(device))
        expected = torch.stack([large[i, :, 4 * y : 4 * y + 64, 4 * x : 4 * x + 64] for i, y, x in crops])
        loss = (found - expected.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}, {done:.0%}: PSNR of crops {-10 * loss.log10().item():.2f} dB", flush=True)
        step += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the network")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--start", type=Path, help="file of a network to go on from")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Compact().to("cuda" if torch.cuda.is_available() else "cpu")
    if args.start:
        model.load_state_dict(load_file(args.start))
    train(model, np.random.default_rng(0), args.seconds)
    model.cpu()
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), args.out / "diffusion_pytorch_model.safetensors")
    config = {"_class_name": "SRVGGNetCompact", "num_in_ch": 3, "num_out_ch": 3, "num_feat": FEATURES, "num_conv": CONVS, "upscale": SCALE}
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    large, small = images(np.random.default_rng(1), 100, held_out)
    with torch.inference_mode():
        own, filtered = psnr(model(small), large), psnr(bicubic(small), large)
    print(f"PSNR of 100 held-out scenes: {own.mean():.2f} dB, bicubic {filtered.mean():.2f} dB; better in {(own > filtered).sum()}")


if __name__ == "__main__":
    main()

"""Times RRDB x4 (Real-ESRGAN's network) with random weights in gomflux and in PyTorch, from pixels to pixels, in turn.

    python scripts/bench/upscale.py --gomflux bin/gomflux                       # 1024x1024 in bfloat16, on a GPU
    python scripts/bench/upscale.py --gomflux bin/gomflux --size 128 --dtype float32 --no-compile
    python scripts/bench/upscale.py --convs         # the milliseconds of convolutions alone in PyTorch

The layouts of dense blocks, and the same convolutions, in gomflux: go test ./upscaler -run XXX -bench .
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional


def conv(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, 1, 1)


def leaky(x):
    return functional.leaky_relu(x, 0.2)


class Dense(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        for i in range(5):
            setattr(self, f"conv{i + 1}", conv(width + i * growth, growth if i < 4 else width))

    def forward(self, x):
        parts = [x]
        for i in range(4):
            parts.append(leaky(getattr(self, f"conv{i + 1}")(torch.cat(parts, 1))))
        return x + 0.2 * self.conv5(torch.cat(parts, 1))


class Block(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (Dense(width, growth) for _ in range(3))

    def forward(self, x):
        return x + 0.2 * self.rdb3(self.rdb2(self.rdb1(x)))


class RRDBNet(nn.Module):
    def __init__(self, blocks, width=64, growth=32):
        super().__init__()
        self.conv_first, self.conv_body = conv(3, width), conv(width, width)
        self.body = nn.Sequential(*(Block(width, growth) for _ in range(blocks)))
        self.conv_up1, self.conv_up2, self.conv_hr = (conv(width, width) for _ in range(3))
        self.conv_last = conv(width, 3)

    def forward(self, x):
        x = self.conv_first(x)
        x = x + self.conv_body(self.body(x))
        for up in (self.conv_up1, self.conv_up2):
            x = leaky(up(functional.interpolate(x, scale_factor=2, mode="nearest")))
        return self.conv_last(leaky(self.conv_hr(x)))


def in_torch(model, pixels, runs, dtype, compiled):
    """Returns the seconds of each run after one to warm up, and those of the processors for each."""
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    model = model.to(device, dtype, memory_format=torch.channels_last).eval()
    function = torch.compile(model, dynamic=False) if compiled else model

    def run():
        x = pixels.to(device).permute(2, 0, 1)[None].to(dtype, memory_format=torch.channels_last) / 255
        return function(x)[0].permute(1, 2, 0).float().clamp(0, 1).mul(255).round().to(torch.uint8).cpu()

    with torch.inference_mode():
        run()
        begun, seconds = processor(resource.RUSAGE_SELF), []
        for _ in range(runs):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return seconds, (processor(resource.RUSAGE_SELF) - begun) / runs


def in_gomflux(program, folder, runs, dtype):
    """The same for gomflux, whose processor time is that of the whole program."""
    image = str(folder / "image.png")
    arguments = [program, "upscale", *[image] * (runs + 1), "--model", str(folder / "network.safetensors"), "--dtype", dtype, "--json"]
    begun = processor(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*arguments, "-o", str(folder / "{name}_large.png")], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    made = [line for line in lines if line["message_type"] == "image"]
    taken = (processor(resource.RUSAGE_CHILDREN) - begun) / (runs + 1)
    return [line["seconds"]["upscale"] for line in made[1:]], taken, made[-1]["peak_memory_bytes"], made[-1]["device"]


def convs(size, dtype, runs):
    """Returns the milliseconds of convolutions by inputs and outputs, each the median of runs of ten."""
    device, took = "cuda" if torch.cuda.is_available() else "cpu", {}
    with torch.inference_mode():
        for inputs, outputs in ((64, 32), (96, 32), (128, 32), (160, 32), (192, 64), (64, 192), (32, 160), (32, 128), (32, 96),
                                (32, 64), (64, 64), (64, 3), (64, 8)):
            layer = conv(inputs, outputs).to(device, dtype, memory_format=torch.channels_last)
            x = torch.randn(1, inputs, size, size).to(device, dtype, memory_format=torch.channels_last)
            seconds = []
            for _ in range(runs + 1):
                start = time.perf_counter()
                for _ in range(10):
                    y = layer(x)
                y.flatten()[:1].cpu()  # waits
                seconds.append(time.perf_counter() - start)
            took[f"{inputs}to{outputs}"] = statistics.median(seconds[1:]) * 100
    return took


def processor(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gomflux", help="the program")
    parser.add_argument("--convs", action="store_true", help="time convolutions in PyTorch only")
    parser.add_argument("--size", type=int, default=1024, help="height and width of the image")
    parser.add_argument("--blocks", type=int, default=23)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-compile", dest="compiled", action="store_false", help="without torch.compile")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    if args.convs:
        print(json.dumps(convs(args.size, getattr(torch, args.dtype), args.runs), indent=2))
        return
    model = RRDBNet(args.blocks)
    pixels = torch.randint(0, 256, (args.size, args.size, 3), dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        Image.fromarray(pixels.numpy()).save(folder / "image.png")
        save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, folder / "network.safetensors")
        own, own_cpu, peak, device = in_gomflux(args.gomflux, folder, args.runs, args.dtype)
    other, other_cpu = in_torch(model, pixels, args.runs, getattr(torch, args.dtype), args.compiled)
    report = {
        "size": args.size, "blocks": args.blocks, "dtype": args.dtype, "device": device, "compiled": args.compiled,
        "gomflux": {"median": statistics.median(own), "seconds": own, "processor_seconds": own_cpu, "peak_bytes": peak},
        "torch": {"median": statistics.median(other), "seconds": other, "processor_seconds": other_cpu, "version": torch.__version__},
        "ratio": statistics.median(own) / statistics.median(other),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

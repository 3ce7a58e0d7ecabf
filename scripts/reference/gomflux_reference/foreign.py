"""References that are not diffusers: another library, or the code of a model's makers in a clone of their repository at one commit.

A module of FRAMEWORKS has run(record, model, picture, size, seed, compute, source), which enlarges a picture with record
watching the modules, and returns more settings; and the class Recorder, if record.Recorder does not do."""

import argparse
import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from . import record, runs
from .arguments import looking_arguments, tap_arguments
from .stats import attach

FRAMEWORKS = {"seedvr2": "seedvr2", "spandrel": "upscaler"}
PACKAGES = {"seedvr2": ("torch", "numpy", "pillow"), "spandrel": ("spandrel", "torch", "numpy", "pillow")}
SAME = ("height", "width", "seed", "compute")  # of a run that is repeated
SOURCES = Path(os.environ.get("GOMFLUX_REFERENCE_SOURCES") or Path(sys.prefix) / "sources")  # clones

SAMPLES = 12  # of each output


def clone(folder: Path, repository: str, commit: str):
    """Clones a repository into a folder unless it is there, and checks that it has the commit. Its modules can be imported then."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", repository, folder], check=True)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", commit], check=True)
    found = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if found != commit:
        raise SystemExit(f"{folder}: has commit {found}, expected {commit} of {repository}")
    sys.path.insert(0, str(folder))


def pattern(*shape, offset=0):
    """Whole numbers from 0 to 250, which the tests make in the same way."""
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    return ((i * i * 31 + i * 7 + offset * 13) % 251).double().reshape(shape)


def signed(*shape, offset=0):
    """pattern from -1 to 1."""
    return pattern(*shape, offset=offset).div(125).sub(1).float().double()


def fill(parameters: dict):
    """Sets parameters by their names to numbers that the tests make too: matrices and convolutions keep the size of their input."""
    with torch.no_grad():
        for offset, (name, p) in enumerate(sorted(parameters.items())):
            factor = math.sqrt(3 / p[0].numel()) if p.ndim > 1 else 0.2
            one = p.ndim == 1 and "norm" in name and name.endswith("weight")
            p.copy_((signed(*p.shape, offset=offset) * factor + one).float())


def samples(output) -> torch.Tensor:
    values = output.detach().flatten()
    return values[:: len(values) // SAMPLES + 1].float().clone()


def parse(framework: str, argv) -> dict:
    usual = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(prog=f"gomflux-reference dump --framework {framework}", formatter_class=usual)
    parser.add_argument("model", type=Path, help="the file or folder of a network that enlarges images, as gomflux upscale takes it")
    parser.add_argument("out", type=Path)
    parser.add_argument("--framework", choices=FRAMEWORKS)
    parser.add_argument("--picture", type=Path, required=True, help="the image to enlarge")
    parser.add_argument("--height", type=int, help="of the result; for networks of one scale that follows")
    parser.add_argument("--width", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute", choices=("float32", "float64"), default="float32")
    parser.add_argument("--source", type=Path, default=SOURCES / framework, help="the makers' repository; cloned if it is not there")
    tap_arguments(parser)
    looking_arguments(parser)
    return vars(parser.parse_args(argv))


def dump(framework, model, out, picture, height, width, seed, compute, source, taps, sample, memory, stats=()):
    """Records how a network enlarges a picture."""
    module = importlib.import_module(f".{FRAMEWORKS[framework]}", __package__)
    recorder = getattr(module, "Recorder", record.Recorder)(out, taps, sample, memory)
    attach(recorder, stats)
    image = Image.open(picture).convert("RGB")
    with recorder, torch.no_grad():
        found = module.run(recorder, model, image, (height, width), seed, compute, source)
        recorder.put("image", found.pop("image"))
    near = os.path.relpath(picture, out), os.path.relpath(model, out.parent)
    recorder.finish(
        {
            "command": "dump", "framework": framework, "upscaler": True, "model": near[1], "picture": near[0], "height": height,
            "width": width, "seed": seed, "compute": compute, "taps": taps, **found,
            "versions": runs.versions(PACKAGES[framework]),
        }
    )  # fmt: skip


def again(folder: Path, out: Path, settings: dict, model, **looks):
    """Repeats a run by its settings."""
    same = {key: settings.get(key) for key in SAME}
    dump(settings["framework"], Path(model), out, folder / settings["picture"], **same, source=SOURCES / settings["framework"], **looks)


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


class Recorder:
    """Keeps some values of the outputs of modules, in the order of the calls: name#1 is the second of a module."""

    def __init__(self):
        self.found, self.calls = {}, {}

    def add(self, name: str, output):
        call = self.calls[name] = self.calls.get(name, -1) + 1
        self.found[f"{name}#{call}" if call else name] = samples(output)

    def watch(self, model, prefix: str, change=lambda name, output: output):
        """Hooks the modules of a model. change may return a tensor in place of the output, or None for none."""

        def hook(name):
            def keep(_module, _inputs, output):
                output = change(name, output)
                if isinstance(output, torch.Tensor):
                    self.add(f"{prefix}.{name}", output)

            return keep

        for name, module in model.named_modules():
            if name:
                module.register_forward_hook(hook(name))

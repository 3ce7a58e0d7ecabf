"""References that are not libraries: the code of a model's makers, in a clone of their repository at one commit."""

import math
import subprocess
import sys
from pathlib import Path

import torch

SAMPLES = 12  # of each output


def clone(folder: Path, repository: str, commit: str):
    """Clones a repository into a folder unless it is there, and checks that it has the commit. Its modules can be imported then."""
    if not folder.exists():
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

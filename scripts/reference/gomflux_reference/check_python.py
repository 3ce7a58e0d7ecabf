"""Checks the packages of a Python that was not installed by run.sh: check_python.py requirements.txt. It imports none of them."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# What another version may change. Others matter only if an import fails.
MATTERS = {
    "diffusers": "pipelines, names of modules and what they compute",
    "transformers": "text encoders, tokenizers and names of modules",
    "torch": "last bits, so that goldens differ, and kernels",
    "tokenizers": "the ids of prompts",
    "pillow": "pixels of resized images",
}
NEEDED = ("torch", "diffusers", "transformers", "tokenizers", "safetensors", "numpy", "pillow")


def main(requirements: str):
    if sys.version_info < (3, 11):
        raise SystemExit(f"{sys.executable} is Python {sys.version.split()[0]}: 3.11 or newer is needed")
    pins = dict(line.split("==") for line in Path(requirements).read_text(encoding="utf-8").split() if "==" in line)
    found, missing = {}, []
    for package in pins:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            missing += [f"{package}=={pins[package]}"] if package in NEEDED else []
    if missing:
        raise SystemExit(f"{sys.executable} lacks {' '.join(missing)} (without PYTHON, run.sh installs its own)")
    for package, own in found.items():
        if package in MATTERS and own != pins[package]:
            print(f"{sys.executable}: {package} {own}, tried with {pins[package]}: it may change {MATTERS[package]}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])

"""Arguments that commands share. Nothing here imports diffusers."""

import argparse
import re
import sys
from pathlib import Path

from . import runs
from .files import HEUN, LINEAR, MEMORY

MODEL = "a folder in the layout of diffusers, or owner/name on the hub"  # for help


def diffusers_arguments(c):
    """The arguments of dump with diffusers."""
    dump_arguments(c, (HEUN, LINEAR))
    mask_arguments(c)
    c.add_argument(
        "--sample-posterior", action="store_true", help="draw the picture's latents as diffusers does; default: their mean",
    )  # fmt: skip
    cfg_arguments(c)
    lora_argument(c)
    c.add_argument(
        "--load", action="append", default=[], dest="loads", metavar="NAME=FILE[:KEY]",
        help="replace a tensor by one of a file, or by one that either side has saved; may be repeated",
    )  # fmt: skip
    c.add_argument("--unchecked", action="store_true", help="record it although a check has found a problem")


def check_dump(argv, parser):
    """Checks the arguments of dump, with a class of parsers, and without diffusers."""
    c = parser(prog="gomflux-reference dump", description="record a generation")
    diffusers_arguments(c)
    args = c.parse_args(argv)
    if args.framework != "diffusers":
        c.error("--framework mflux: the debugger runs PyTorch only")


def dump_arguments(c, schedulers):
    run_arguments(c, schedulers)
    c.add_argument("--framework", choices=("diffusers", "mflux", "seedvr2", "spandrel"), default="diffusers", help="the program to record")
    tap_arguments(c, None)
    looking_arguments(c)
    c.add_argument("--step-cache", metavar="RULE", help="leave out most of the transformer in some steps: first-block:THRESHOLD")


def run_arguments(c, schedulers):
    """Where a run goes, and what it is made of."""
    c.add_argument("model", help=MODEL)
    c.add_argument("out", type=Path, nargs="?", help="folder; default: the latest run of the reference in --log-dir")
    c.add_argument("--log-dir", type=Path, default=runs.default_root(), help="GOMFLUX_LOG_DIR sets another default")
    generation_arguments(c, schedulers)


def generation_arguments(c, schedulers):
    c.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps, ...")
    c.add_argument("--compute", choices=("float32", "bfloat16", "float16"), default="float32")
    c.add_argument("--threads", type=int, default=1, help="more are faster, but do not always give the same bits")
    c.add_argument("--prompt", required=True)
    c.add_argument("--negative-prompt")
    c.add_argument("--steps", type=int, required=True)
    c.add_argument("--guidance", type=float, help="guidance scale; default: 0, whatever the model's own is")
    c.add_argument("--seed", type=int, default=0, help="seed of the initial latents")
    c.add_argument("--height", type=int, required=True)
    c.add_argument("--width", type=int, required=True)
    c.add_argument("--max-sequence-length", type=int, default=512)
    c.add_argument("--picture", type=Path, help="image-to-image from this image, with --image-strength")
    c.add_argument("--image-strength", type=float, default=0.4, help="how much of the image is kept, as in mflux")
    c.add_argument("--references", type=Path, nargs="+", default=[], metavar="PICTURE", help="edit these images")
    c.add_argument("--scheduler", choices=schedulers, help="scheduler; default: the model's own")


def guided(args: dict) -> dict:
    """Fills in the guidance scale of a generation, and says so: gomflux's default is the model's own."""
    if "guidance" in args and args["guidance"] is None:
        args["guidance"] = 0.0
        print("--guidance was not given: 0 here, while gomflux generate takes the model's own (gomflux show MODEL)", file=sys.stderr)
    return args


def lora_argument(c):
    c.add_argument(
        "--lora", nargs="+", action="append", default=[], dest="loras", metavar=("FILE", "SCALE"),
        help="load a LoRA, with a scale other than 1; may be repeated",
    )  # fmt: skip


def specs_of(given: list[list[str]] | None) -> list[tuple[str, float]]:
    """Files and scales of the flags --lora FILE [SCALE]."""
    found = []
    for words in given or []:
        if len(words) > 2:
            raise SystemExit(f"--lora {' '.join(words)}: expected FILE [SCALE] (the model comes before --lora)")
        try:
            found.append((words[0], float(words[1]) if len(words) > 1 else 1.0))
        except ValueError:
            raise SystemExit(f"--lora {words[0]} {words[1]}: expected a number as the scale") from None
    return found


def profile_arguments(c):
    c.description = (
        "Runs a generation once while it is observed, and writes PROFILE.md and profile.json: which files and functions "
        "of diffusers, transformers and torch.nn were executed, by component and module, with calls and own times (which "
        "include a part of the observer's), which of several implementations ran, and the lines that were not reached."
    )
    run_arguments(c, (HEUN, LINEAR))
    lora_argument(c)
    c.add_argument("--unchecked", action="store_true", help="profile it although a check has found a problem")
    c.add_argument("--compare", action="store_true", help="run it once more without observing, and report the slow-down")
    c.add_argument("--modules", type=Path, metavar="FILE", help="write only a list of the modules, without a profile")


def mask_arguments(c):
    c.add_argument("--mask", type=Path, metavar="PICTURE", help="inpaint the part of --picture that is white here (strength 0: anew)")
    c.add_argument("--mask-crop", type=int, metavar="PADDING", help="show the model only the part around the mask")


def cfg_arguments(c):
    """What classifier-free guidance has besides a scale; see Family.cfg."""
    c.add_argument("--true-cfg-scale", type=float, help="classifier-free guidance, with a negative prompt, besides another guidance")
    c.add_argument("--cfg-normalization", type=float, help="the largest norm of a guided prediction; 1 is diffusers' True")
    c.add_argument("--cfg-truncation", type=float, help="the time from 0 to 1 after which nothing is guided")


def looking_arguments(c):
    c.add_argument(
        "--stats", nargs="+", action="extend", default=[], metavar="GLOB",
        help="tensors whose statistics are written to traces/stats.jsonl; !GLOB excludes",
    )  # fmt: skip


def tap_arguments(c, default=("*",)):
    usual = "" if default else "; default: all, or none with --stats"
    c.add_argument(
        "--taps", nargs="+", default=default and list(default), metavar="GLOB",
        help=f"tensors to record; !GLOB excludes{usual}",
    )  # fmt: skip
    c.add_argument("--sample", type=int, default=0, metavar="N", help="keep N random values of modules' larger tensors")
    c.add_argument(
        "--max-memory", type=size, default=MEMORY, dest="memory", metavar="SIZE",
        help="size of the tensors in memory before they are written: bytes, or for example 64MB",
    )  # fmt: skip


def prune_arguments(c):
    c.description = (
        "Copies diffusers and transformers with the files that a generation executes, into a folder for PYTHONPATH. "
        "Functions that it does not call raise an error there. The generation is repeated with the copy, and if any "
        "tensor differs nothing is left of it. What is installed stays as it is."
    )
    c.add_argument("model", help=MODEL)
    c.add_argument("out", type=Path, help="a new or empty folder")
    generation_arguments(c, (HEUN, LINEAR))
    lora_argument(c)
    c.add_argument("--unchecked", action="store_true", help="go on although a check has found a problem")
    tap_arguments(c)


def size(text: str) -> int:
    """Bytes, of a number with or without KB, MB or GB."""
    match = re.fullmatch(r"([0-9.]+)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is no size: expected a number with or without KB, MB or GB")
    return int(float(match[1]) * 1000 ** " KMG".index(match[2].upper() or " "))

"""What spandrel's networks, which enlarge images, compute in float64."""

import math
import re
from pathlib import Path

import spandrel
import torch
from safetensors.torch import save_file
from spandrel.architectures.Compact import Compact
from spandrel.architectures.ESRGAN import ESRGAN

from .files import MEMORY
from .foreign import dump, fill, pattern, pixels, samples

FEATURES = {"num_filters": 8}  # the dense blocks of spandrel always have 32 channels more
# name: the class, its arguments, and the height and width of the image
MODELS = {
    "rrdb-x4": (ESRGAN, FEATURES | {"num_blocks": 2}, (10, 13)),
    "rrdb-x2": (ESRGAN, FEATURES | {"num_blocks": 1, "in_nc": 12, "shuffle_factor": 2}, (9, 7)),
    "rrdb-x1": (ESRGAN, FEATURES | {"num_blocks": 1, "in_nc": 48, "shuffle_factor": 4}, (13, 10)),
    "rrdb-alpha": (ESRGAN, FEATURES | {"num_blocks": 1, "in_nc": 4, "out_nc": 4, "scale": 2}, (6, 5)),
    "compact-x4": (Compact, {"num_feat": 8, "num_conv": 3}, (7, 6)),
    "compact-x2": (Compact, {"num_feat": 12, "num_conv": 1, "upscale": 2, "num_in_ch": 1, "num_out_ch": 1}, (5, 8)),
}


def basicsr(name: str, ups: int) -> str:
    """A module or tensor of spandrel's ESRGAN by its name in BasicSR, whose names most files have, or "" without one."""
    last = {3 * i: f"conv_up{i}" for i in range(1, ups + 1)} | {0: "conv_first", 3 * ups + 2: "conv_hr", 3 * ups + 4: "conv_last"}
    for old, new in (
        (r"model\.1\.sub\.(\d+)\.RDB(\d)\.conv(\d)\.0", r"body.\1.rdb\2.conv\3"),
        (r"model\.1\.sub\.(\d+)\.RDB(\d)", r"body.\1.rdb\2"),
        (r"model\.1\.sub\.(\d+)", r"body.\1"),
    ):
        if re.fullmatch(old, name):
            return re.sub(old, new, name)
    if m := re.fullmatch(r"model\.(\d+)", name):
        return last.get(int(m[1]), "")
    return ""


def run(recorder, model: Path, picture, _size, _seed, compute, _source) -> dict:
    """Enlarges a picture by a network of spandrel, whose modules have the names of BasicSR."""
    try:
        network = spandrel.ModelLoader().load_from_file(model).model
    except (OSError, ValueError, spandrel.UnsupportedModelError) as e:
        raise SystemExit(f"{model}: no network that spandrel knows: {e or type(e).__name__}") from e
    if not isinstance(network, ESRGAN | Compact):
        raise SystemExit(f"{model}: has the network {type(network).__name__}, expected RRDBNet or SRVGGNetCompact")
    network = network.to(getattr(torch, compute)).eval()
    names = {m: m for m, _ in network.named_modules() if m.startswith("body.")}
    if isinstance(network, ESRGAN):
        blocks = len(network.model[1].sub) - 1
        names = {m: basicsr(m, int(math.log2(network.scale))) for m, _ in network.named_modules()}
        names[f"model.1.sub.{blocks}"] = "conv_body"
    recorder.watch("upscaler", network, True, rename=lambda m: m and (names.get(m) or None))
    x = pixels(picture)
    recorder.put("image.in", x)
    y = network(x.permute(2, 0, 1)[None].to(getattr(torch, compute)) / 255)
    return {"image": y[0].permute(1, 2, 0).clamp(0, 1).mul(255).round().byte(), "height": y.shape[2], "width": y.shape[3]}


def golden(folder: Path):
    """Writes some values of the output of every module, for weights and images that the tests make too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (cls, arguments, size) in MODELS.items():
        model = cls(**arguments).double().eval()
        names = {module: own for module, own in ((m, m) for m, _ in model.named_modules()) if module.startswith("body.")}
        channels = arguments.get("num_in_ch", 3)
        if cls is ESRGAN:
            blocks, ups = arguments["num_blocks"], int(math.log2(arguments.get("scale", 4)))
            names = {m: basicsr(m, ups) for m, _ in model.named_modules()} | {f"model.1.sub.{blocks}": "conv_body"}
            channels = arguments.get("out_nc", 3)
        parameters = {}
        for key, p in model.named_parameters():
            module, _, kind = key.rpartition(".")
            parameters[f"{names[module]}.{kind}"] = p
        with torch.no_grad():
            for offset, (key, p) in enumerate(sorted(parameters.items())):
                factor = math.sqrt(3 / p[0].numel()) if p.ndim == 4 else 0.2
                p.copy_((pattern(*p.shape, offset=offset).div(125).sub(1) * factor).float())
        found = {}

        def keep(own):
            def hook(_module, _inputs, output):
                found[own] = samples(output)

            return hook

        for module, m in model.named_modules():
            if names.get(module) or module == "":
                m.register_forward_hook(keep(names.get(module) or "output"))
        with torch.no_grad():
            model(pattern(1, channels, *size) / 255)
        save_file(found, folder / f"{name}.safetensors")
    torch.manual_seed(0)
    tiny = Compact(num_feat=4, num_conv=0, upscale=2)  # for tests of the command
    save_file({name: p.detach().half() for name, p in tiny.named_parameters()}, folder / "network.safetensors")
    recorded(folder / "runs/real-esrgan")


def recorded(at: Path):
    """Writes a small network of Real-ESRGAN x2, and a run of it."""
    from . import goldens

    at.mkdir(parents=True, exist_ok=True)
    network = ESRGAN(**MODELS["rrdb-x2"][1])
    names = {m: basicsr(m, 2) for m, _ in network.named_modules()} | {"model.1.sub.1": "conv_body"}
    parameters = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": p for key, p in network.named_parameters()}
    fill(parameters)
    save_file({name: p.detach().half().contiguous() for name, p in parameters.items()}, at / "model.safetensors")
    goldens.draw(15, 12).save(at / "image.png")
    dump("spandrel", at / "model.safetensors", at / "dump", at / "image.png", None, None, 0, "float64", None, ["*"], 0, MEMORY)

"""again: records a run that was recorded before once more, with other taps."""

import json
from pathlib import Path

from . import foreign
from .foreign import FRAMEWORKS

SAME = ("prompt", "negative_prompt", "steps", "guidance", "seed", "height", "width", "max_sequence_length", "compute")
CFG = ("true_cfg_scale", "cfg_normalization", "cfg_truncation")


def repeat(
    folder: Path, out: Path, taps, memory: int, model: str | None = None, sample: int = 0, stats=()
):
    """Repeats a run by its settings and dumps it to the folder out. The model is the run's unless another one is given."""
    try:
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    except OSError as e:
        raise SystemExit(f"{folder} is no run: {e}") from e
    if settings.get("command") != "dump":
        raise SystemExit(f"{folder / 'settings.json'}: {settings.get('command')} is not a generation that was dumped")
    if settings.get("framework") in FRAMEWORKS:
        where = model or find(folder, settings["model"]) or missing(folder, f"model {settings['model']}")
        return foreign.again(folder, out, settings, where, taps=taps, memory=memory, sample=sample, stats=stats)
    same = {key: settings[key] for key in SAME}
    same |= {key: settings[key] for key in CFG if key in settings}
    same |= {"image_strength": settings.get("image_strength"), "scheduler": settings.get("scheduler")}

    def picture(name):
        return find(folder, name) or missing(folder, f"picture {name}")

    same["picture"] = picture(settings["picture"]) if settings.get("picture") else None
    mask = picture(settings["mask"]) if settings.get("mask") else None
    same["references"] = [picture(name) for name in settings.get("references", [])]
    if not model:
        found = find(folder, settings["model"])
        model = str(found) if found else settings["model"]  # on the hub
    more = {"device": settings.get("device", "cpu"), "threads": settings.get("threads", 1), "log_dir": None}
    if settings.get("framework") == "mflux":
        from . import mflux_side

        looks = {"sample": sample, "stats": stats}
        mflux_side.pipeline(model, out, taps=taps, memory=memory, rng=settings["rng"], **same, **more, **looks)
    else:
        from . import dump

        def lora(name):
            return str(find(folder, name) or missing(folder, f"LoRA {name}"))

        more["loras"] = [(lora(given["file"]), given["scale"]) for given in settings.get("loras", [])]
        more["loads"] = [f"{name}={source}" for name, source in settings.get("replaced", {}).items()]
        more["unchecked"] = "problems" in settings
        more["step_cache"] = settings.get("step_cache")
        more |= {"mask": mask, "mask_crop": settings.get("mask_crop"), "sample_posterior": "posterior" in settings}
        more |= {"sample": sample, "stats": stats}
        dump.pipeline(model, out, taps=taps, memory=memory, **same, **more)


def find(run: Path, name: str) -> Path | None:
    """A file or folder of the settings: as it is, or in the run's folder, the one around it, or the one around that."""
    run = run.resolve()
    candidates = [Path(name), *(folder / name for folder in (run, run.parent, run.parent.parent))]
    return next((c for c in candidates if c.exists()), None)


def missing(run: Path, what: str):
    raise SystemExit(f"{run}: its {what} is not there")

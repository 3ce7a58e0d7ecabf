"""The command check."""

import tempfile
from pathlib import Path

from PIL import Image

from . import dump
from .families import FAMILIES
from .inpaint import Pictures
from .record import Recorder


def check(model: str, compute: str = "float32"):
    """Runs a model for two steps of a small image, and prints all problems."""
    dump.prepare()
    pipe, name = dump.load(model, compute)
    family = FAMILIES[name]
    side = 5 * 2 * pipe.vae_scale_factor
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        references = []
        for i in range(min(family.references)):
            references.append(folder / f"{i}.png")
            Image.new("RGB", (side, side + side // 2), "gray").save(references[-1])
        settings = dict(prompt="a red circle", negative_prompt=None, steps=2, guidance=1.0, seed=0, height=side)
        settings |= dict(width=side, max_sequence_length=64)
        record = Recorder(folder / "run", (), keep=False)
        _, _, more = dump.generate(
            pipe, family, record, settings, Pictures(references=references), None, None, folder / "run", unchecked=True
        )
    problems = more.get("problems", [])
    if problems:
        raise SystemExit(f"{model}: {len(problems)} problem{'s' if len(problems) > 1 else ''}")
    print(f"{model}: {name}, no problems found")

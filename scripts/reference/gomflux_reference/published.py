"""make parity: gomflux against diffusers, on small models with the small files of published ones.

`go run ./scripts/published -write` writes them: configs with fewer layers and channels, tokenizers and schedulers as they
are published, and random weights with the names, dtypes and files of the published ones, which must be all that
diffusers and transformers ask for, and nothing else.
"""

import os
import random
import subprocess
import tempfile
from pathlib import Path

import diffusers
import transformers

from . import dump
from .families import FAMILIES
from .families.text_encoders import QWEN3_VL_CHAT
from .files import index_file, read_json

ENV = "GOMFLUX_REAL"
REPOSITORY = Path(__file__).parents[3]


def there() -> bool:
    """Reports whether the published files are on this machine."""
    return Path(os.environ.get(ENV) or REPOSITORY.parent / "shared" / "real").is_dir()


def make(folder: Path, chosen: str) -> list[Path]:
    """Writes the chosen models, and returns their folders."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as skeletons:
        command = ["go", "run", "./scripts/published", "-write", skeletons, "-only", chosen]
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        models = []
        for skeleton in sorted(Path(skeletons).iterdir()):
            models.append(folder / skeleton.name / "model")
            models[-1].parent.mkdir(parents=True)
            skeleton.rename(models[-1])
    for model in models:
        processor = model / "processor"
        if processor.exists() and not (processor / "chat_template.jinja").exists():
            (processor / "chat_template.jinja").write_text(QWEN3_VL_CHAT)  # transformers needs one, and no pipeline has it
    return models


def check_names(model: Path):
    """Loads each component by itself, and fails if its files lack a tensor or have one of which the class knows nothing."""
    for component, value in read_json(index_file(model)).items():
        if not isinstance(value, list) or len(value) not in (2, 3) or not (model / component / "config.json").exists():
            continue
        library, class_name = value[:2]
        cls = getattr(diffusers if library == "diffusers" else transformers, class_name)
        _, info = cls.from_pretrained(model / component, output_loading_info=True)
        wrong = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(key)}
        if wrong:
            raise SystemExit(f"{model}/{component}: {class_name} and the files differ: {wrong}")


def rows(gomflux: Path, folder: Path, families: list[str], chosen: str, replay, while_running):
    """Replays a run of diffusers with each chosen model of some families, an edit where the model needs an image, and if there
    is a while_running, compares another one while it goes on."""
    for model in make(folder, chosen):
        pipeline = read_json(index_file(model))["_class_name"]
        alike = [name for name, f in FAMILIES.items() if f.pipeline.__name__ == pipeline]
        if set(alike) & set(families):
            check_names(model)
            _, family = dump.load(model)
            references = FAMILIES[family].references[0]
            kind = f"edit of {references}" if references else "text"
            yield replay(gomflux, model, family, kind, random.Random(f"published/{model.parent.name}"))
            if while_running:
                yield from while_running(gomflux, model, family, random.Random(f"published/{model.parent.name}/live"))

"""make parity: gomflux against diffusers, on small models with the small files of published ones.

`go run ./scripts/skeletons` writes them: configs with fewer layers and channels, and tokenizers, schedulers and indexes
as they are published. Here they get random weights.
"""

import fnmatch
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import diffusers
import torch
import transformers

from . import dump, tiny
from .families import FAMILIES, Family
from .families.text_encoders import QWEN3_VL_CHAT
from .files import read_json, write_json

ENV = "GOMFLUX_REAL"
REPOSITORY = Path(__file__).parents[3]


def there() -> bool:
    """Reports whether the published files are on this machine."""
    return Path(os.environ.get(ENV) or REPOSITORY.parent / "shared" / "real").is_dir()


def make(folder: Path) -> list[Path]:
    """Writes the models without weights, and returns their folders."""
    with tempfile.TemporaryDirectory() as skeletons:
        subprocess.run(["go", "run", "./scripts/skeletons", skeletons], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        made = []
        for skeleton in sorted(Path(skeletons).iterdir()):
            made.append(folder / skeleton.name / "model")
            shutil.copytree(skeleton, made[-1], symlinks=True, dirs_exist_ok=True)
            add_processor_files(made[-1])
    return made


def add_processor_files(model: Path):
    """Writes what transformers needs of a processor besides the files that are there, and no pipeline here looks at."""
    processor = read_json(model / "model_index.json").get("processor")
    if not processor or (model / "processor" / "video_preprocessor_config.json").exists():
        return
    video = processor[1].replace("Processor", "VideoProcessor")
    write_json(model / "processor" / "video_preprocessor_config.json", {"video_processor_type": video})
    if not (model / "processor" / "chat_template.jinja").exists():
        (model / "processor" / "chat_template.jinja").write_text(QWEN3_VL_CHAT)


def add_weights(model: Path, family: Family):
    """Writes random weights for a model's configs, which stay as they are."""
    for component, value in read_json(model / "model_index.json").items():
        if not isinstance(value, list) or len(value) != 2 or not (model / component / "config.json").exists():
            continue
        library, class_name = value
        if library == "diffusers":
            module = getattr(diffusers, class_name).from_config(read_json(model / component / "config.json"))
        else:
            cls = getattr(transformers, class_name)
            module = cls(cls.config_class.from_pretrained(model / component))
        tiny.fill(component, module, family, 1, "ordinary")
        with tempfile.TemporaryDirectory() as saved:
            module.to(torch.bfloat16).save_pretrained(saved)
            for file in Path(saved).glob("*.safetensors"):
                shutil.copy(file, model / component)


def rows(gomflux: Path, folder: Path, families: list[str], chosen: str, replay, while_running):
    """Replays a run of diffusers with each chosen model of some families, an edit where the model needs an image, and if there
    is a while_running, compares another one while it goes on."""
    for model in make(folder):
        if not fnmatch.fnmatch(model.parent.name, chosen):
            continue
        pipeline = read_json(model / "model_index.json")["_class_name"]
        alike = [name for name, f in FAMILIES.items() if f.pipeline.__name__ == pipeline]
        if set(alike) & set(families):
            add_weights(model, FAMILIES[alike[0]])
            _, family = dump.load(model)
            references = FAMILIES[family].references[0]
            kind = f"edit of {references}" if references else "text"
            yield replay(gomflux, model, family, kind, random.Random(f"published/{model.parent.name}"))
            if while_running:
                yield from while_running(gomflux, model, family, random.Random(f"published/{model.parent.name}/live"))

"""JSON files, lines of source files, and constants. Nothing here needs torch."""

import json
from pathlib import Path

EULER, HEUN, LINEAR = "flow_match_euler_discrete", "flow_match_heun_discrete", "linear"  # schedulers
# The components of pipelines that run once per step.
STEPPED = ("transformer", "transformer_2", "unet", "controlnet", "prior")
INDEX, MODULAR_INDEX = "model_index.json", "modular_model_index.json"  # which name a folder's components
MEMORY = 256 << 20  # bytes of tensors that are held before they are written
AROUND = 5  # lines before and after a place in a source file


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value, indent: int | None = 2):
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def index_file(folder: Path) -> Path:
    """Returns the file that names a folder's components."""
    return folder / INDEX if (folder / INDEX).exists() else folder / MODULAR_INDEX


def code_context(at: dict) -> dict | None:
    try:
        lines = Path(at["file"]).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return None
    start, end = max(1, at["line"] - AROUND), min(len(lines), at["line"] + AROUND)
    return {"start_line": start, "end_line": end, "lines": {str(n): lines[n - 1] for n in range(start, end + 1)}}

"""gomflux, measured by its own command: gomflux bench --random."""

import json
import sys
import tempfile

from .cases import PARTS, Case
from .process import Failed, run


def measure(case: Case, program: str, device: str | None, repeats: int, limit: float | None) -> dict:
    """Runs gomflux bench in a process of its own, and returns its measurements by part."""
    with tempfile.TemporaryDirectory() as folder:
        model = case.spec.random
        if case.tiny or not model:
            write_configs(case, folder, limit)
            model = folder
        return parse(case, run(command(case, program, model, device, repeats), limit), repeats)


def command(case: Case, program: str, model: str, device: str | None, repeats: int) -> list:
    words = [
        program, "bench", "--random", model, "--size", case.size, "--prompt-tokens", case.own_tokens,
        "--guidance", case.guidance, "--dtype", case.dtype, "--repeat", repeats, "--json", "--quiet",
    ]  # fmt: skip
    if case.images and not case.inpaint:
        words += ["--references", case.images]
    if case.inpaint:
        words += ["--inpaint"]
    if case.quantize:
        words += ["--quantize", case.quantize]
    if device:
        words += ["--device", "cpu" if device == "cpu" else "gpu"]
    return [str(w) for w in words]


def write_configs(case: Case, folder: str, limit: float | None):
    words = [sys.executable, "-m", __package__, "configs", folder, "--family", case.family]
    run(words + ["--tiny"] * case.tiny, limit)


def parse(case: Case, text: str, repeats: int) -> dict:
    """Returns what gomflux bench has printed as measurements of the parts of a case."""
    try:
        report = json.loads(text)
        phases = {p["name"]: p for p in report["phases"]}
        measured = {
            part: {
                **{name: phases[part][name] for name in ("first_s", "min_s", "max_s")},
                "median_s": phases[part]["steady_s"],
                "repeats": repeats,
                "peak_memory_bytes": report["peak_memory_bytes"],
                "device": report["machine"].get("device_name") or report["device"],
                "versions": {k: v for k, v in report["versions"].items() if v},
                "share_of_matmul": phases[part].get("share_of_matmul"),
            }
            for part in PARTS
        }
        seen = report["prompt_tokens"], report["image_tokens"]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Failed(f"gomflux bench printed no measurements: {type(e).__name__}: {e}") from e
    if seen != (case.prompt_tokens, case.image_tokens):
        expected = f"{case.prompt_tokens} and {case.image_tokens}"
        raise Failed(f"gomflux measured {seen[0]} tokens of the prompt and {seen[1]} of images, expected {expected}")
    return measured

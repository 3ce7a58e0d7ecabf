"""Tests of profile.py."""

import io
from contextlib import redirect_stdout
from pathlib import Path

from . import profile
from .files import read_json

REQUEST = dict(
    prompt="a red circle", negative_prompt=None, steps=2, guidance=0.0, seed=1, height=24, width=40, max_sequence_length=64
)


def profiled(scratch: Path, root: Path):
    """What a profile says of a run of Z-Image, next to what is known of it."""
    scratch.mkdir(parents=True)
    kept = scratch / "settings.json"
    kept.write_text("{}")
    with redirect_stdout(io.StringIO()) as printed:
        profile.run(str(root / "zimage-ordinary" / "model"), scratch, **REQUEST, compare=True)
        profile.run(str(root / "zimage-ordinary" / "model"), None, **REQUEST, log_dir=scratch)
    latest = scratch / "runs" / "latest" / "reference"
    assert printed.getvalue().split() == [str(scratch / "PROFILE.md"), str(latest / "PROFILE.md")]
    assert kept.read_text() == "{}" and read_json(latest / "settings.json")["command"] == "profile"
    assert (latest / "images" / "image.png").exists() and "ended" in read_json(latest / "settings.json")
    found, text = read_json(scratch / "profile.json"), (scratch / "PROFILE.md").read_text(encoding="utf-8")
    assert 0 < found["seconds"]["observer"] < found["seconds"]["running"] and found["seconds"]["slow_down"] > 0
    modules, functions = functions_of(found)
    implementations_of(found)
    attention = "ZSingleStreamAttnProcessor.__call__"
    for name in (attention, "Qwen3Model.forward", "## Modules", "**hot**", "if noise_mask is not None"):
        assert name in text, name
    calls = sum(m["calls"] for m in modules if m["module"].endswith(".attention"))
    assert functions[attention]["calls"] == calls > 0
    assert sum(f["own_seconds"] for f in functions.values()) < found["seconds"]["running"]
    by_component = {c["component"]: c for c in found["components"]}
    assert {"transformer", "text_encoder", "vae", "scheduler", "pipeline", "tokenizer"} == by_component.keys()
    for component, file in (
        ("transformer", "transformer_z_image.py"), ("text_encoder", "modeling_qwen3.py"), ("vae", "autoencoder_kl.py"),
        ("scheduler", "scheduling_flow_match_euler_discrete.py"), ("pipeline", "pipeline_z_image.py"),
        ("tokenizer", "tokenization_utils_base.py"),
    ):  # fmt: skip
        files = {Path(f["file"]).name: f for f in by_component[component]["files"]}
        assert Path(files[file]["file"]).is_absolute() and files[file]["hot"] == (files[file]["calls"] > 100), component
    loaded = {Path(f["file"]).name: f["functions"] for f in found["loading"]}
    assert "DiffusionPipeline.from_pretrained" in loaded["pipeline_utils.py"]


def functions_of(found: dict):
    modules = found["modules"]
    called = {m["module"]: m["calls"] for m in modules}
    assert called["transformer"] == 2 and called["text_encoder"] == 1 and not called["vae.encoder"], called
    functions = {f["function"]: f for f in found["functions"]}
    block = functions["ZImageTransformerBlock.forward"]
    source = Path(block["file"]).read_text(encoding="utf-8").split("\n")
    [missed] = [r for r in block["not_reached"] if r.get("branch") == "if noise_mask is not None"]
    assert "if noise_mask is not None:" in source[missed["first"] - 2] or source[missed["first"] - 2].strip()[0] == "#"
    assert source[missed["last"]].strip() == "else:", source[missed["last"]]
    assert {w["module"] for w in block["where"]} == {
        "transformer.layers.N", "transformer.noise_refiner.N", "transformer.context_refiner.N",
    }  # fmt: skip
    for name in ("AutoencoderKL.encode", "Qwen3ForCausalLM.forward"):
        assert name not in functions, name
    return modules, functions


def implementations_of(found: dict):
    ran = {i["ran"]["name"]: i for i in found["implementations"]}
    for name, kind, other in (
        ("native", "attention backend", "flex"), ("sdpa", "attention function", "eager"),
        ("Qwen3Model", "class", "Qwen3ForCausalLM"), ("modeling_qwen3.py", "file", "modeling_qwen2_5_vl.py"),
        ("AttnProcessor2_0", "class", "AttnProcessor"), ("autoencoder_kl.py", "file", "autoencoder_kl_flux2.py"),
    ):  # fmt: skip
        assert ran[name]["kind"] == kind and other in {o["name"] for o in ran[name]["not_run"]}, name
    assert not ran["ZSingleStreamAttnProcessor"]["not_run"]
    assert ran["Qwen2Tokenizer"]["ran"]["fast"] and ran["Qwen2Tokenizer"]["ran"]["component"] == "tokenizer"

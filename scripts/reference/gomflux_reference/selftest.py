"""Checks of this package itself."""

import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest import mock

import diffusers
import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from . import adapters, again, arguments, debug, dump, goldens, lies, profile_test, prune_test, runs, stream_test, tiny, tracing_test
from .debugger import debugger_test
from .families import FAMILIES, text_encoders
from .families import autoencoders as autoencoders_of
from .files import read_json
from .record import Dump


def check(root: Path, only: list[str] | None = None, quick: bool = False, brief: bool = False):
    """Checks that this package makes the committed goldens, and checks everything that they do not cover."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in only or (BRIEF if brief else QUICK if quick else names()):
            start = time.monotonic()
            TESTS[name](Path(scratch) / name, root)
            print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
    print("ok")


def names() -> list[str]:
    return list(TESTS)


def files(folder: Path) -> dict:
    return {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file() and p.suffix != ".md"}


def same_goldens(scratch: Path, root: Path):
    subprocess.run([sys.executable, "-m", "gomflux_reference", "goldens", scratch], check=True)
    ours, theirs = files(scratch), files(root)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or ours[name].read_bytes() != theirs[name].read_bytes():
            raise SystemExit(f"{root / name}: differs from the file that `goldens` makes")


def both_layouts(scratch: Path, root: Path):
    """The same pipelines from both layouts of their folders."""
    for family in FAMILIES:
        pipes = []
        for layout, shards in (("hub", 3), ("v5", 1)):
            folder = scratch / family / layout
            tiny.make(folder, family, 5, "ordinary", layout, shards, "bf16", {})
            pipe, name = dump.load(folder)
            assert name == family, f"{name} instead of {family}"
            pipes.append(pipe)
        for part in dump.modules_of(pipes[0]):
            a, b = (getattr(p, part).state_dict() for p in pipes)
            assert a.keys() == b.keys(), part
            assert all(torch.equal(a[k], b[k]) for k in a), part
            assert all(t.dtype == torch.float32 for t in a.values() if t.is_floating_point()), part
        for text in (goldens.PROMPT, goldens.NEGATIVE, "<|im_start|>user\n<think> x</think>\r\n\n  y", ""):
            if hasattr(pipes[0], "processor"):
                a, b = (p.processor(text=f"<|image_pad|>{text}", images=goldens.draw(70, 45)) for p in pipes)
                assert a.input_ids == b.input_ids and torch.equal(a.pixel_values, b.pixel_values), (family, text)
            for part in FAMILIES[family].text_encoders:
                a, b = (getattr(p, part.replace("text_encoder", "tokenizer"))(text).input_ids for p in pipes)
                assert a == b, (family, part, text)


def record(root: Path, out: Path | None, taps, **more):
    request = dict(negative_prompt="blue", steps=2, guidance=2.0, seed=1, height=24, width=40, max_sequence_length=64)
    dump.pipeline(root / "zimage-ordinary" / "model", out, prompt="a red circle", taps=taps, **request, **more)


# attention's module, the call, which of its modules has the unrotated q, and which gets what comes out, axis of tokens
ATTENTIONS = {
    "zimage-inner": (
        ("transformer.noise_refiner.0.attention", "@0", "norm_q", "to_out.0", 1),
        ("transformer.context_refiner.0.attention", "@1", "norm_q", "to_out.0", 1),
        ("transformer.layers.1.attention", "@1", "norm_q", "to_out.0", 1),
        ("text_encoder.layers.0.self_attn", "", "q_norm", "o_proj", 2),
        ("text_encoder.layers.1.self_attn", "#1", "q_norm", "o_proj", 2),
        ("vae.decoder.mid_block.attentions.0", "", None, "to_out.0", 2),
    ),
    "flux1-schnell-ordinary": (
        ("transformer.single_transformer_blocks.1.attn", "@1", "norm_q", "", 1),
        ("text_encoder.encoder.layers.1.self_attn", "", None, "out_proj", 2),
        ("text_encoder_2.encoder.block.0.layer.0.SelfAttention", "", None, "o", 2),
        ("text_encoder_2.encoder.block.1.layer.0.SelfAttention", "", None, "o", 2),
    ),
    "qwen-edit-plus": (
        ("text_encoder.model.language_model.layers.0.self_attn", "", "q_proj", "o_proj", 2),
        ("text_encoder.model.language_model.layers.1.self_attn", "", "q_proj", "o_proj", 2),
    ),
    "flux2-klein-base": (
        ("text_encoder.model.layers.0.self_attn", "", "q_norm", "o_proj", 2),
        ("text_encoder.model.layers.1.self_attn", "#1", "q_norm", "o_proj", 2),
    ),
}


def inner_values(scratch: Path, root: Path):
    """Checks that the inputs of attention and its weights give its result."""
    globs = ["*attention*", "*Attention*", "*attn*", "*:[qkv]*", "*:weights", "*:entropy"]
    for golden, modules in ATTENTIONS.items():
        again.repeat(root / golden / "dump", scratch / golden, globs, 1 << 30)
        check_attentions(Dump(scratch / golden), modules)
    for golden in ("flux1-schnell-ordinary", "qwen-edit-plus"):
        d = Dump(scratch / golden)
        # [text, image] before the rotation
        parts = [d[f"transformer.transformer_blocks.0.attn.{norm}@1"] for norm in ("norm_added_q", "norm_q")]
        assert torch.equal(d["transformer.transformer_blocks.0.attn@1:q.unrotated"], torch.cat(parts, 1))
    record(root, scratch, ["*"])
    assert not any(":q" in name or ":weights" in name for name in Dump(scratch).tensors), "an inner value for *"


def check_attentions(d: Dump, modules):
    for module, call, norm, out, axis in modules:
        q, k, v, weights, entropy = (d[f"{module}{call}:{p}"] for p in ("q", "k", "v", "weights", "entropy"))
        if axis == 1:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        found = (weights @ v).transpose(1, 2).flatten(2)
        handed = d[f"{module}.{out}{call}:in.0"] if out else d[module + call]
        torch.testing.assert_close(found, handed, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(entropy, torch.special.entr(weights).sum(-1))
        if norm:
            before = d[f"{module}.{norm}{call}"]
            before = before.unflatten(-1, (-1, q.shape[-1])) if before.dim() == 3 else before
            before = before if axis == 1 else before.transpose(1, 2)
            assert torch.equal(d[f"{module}{call}:q.unrotated"], before), module
            assert not torch.equal(d[f"{module}{call}:q"], d[f"{module}{call}:q.unrotated"]), module
        else:
            assert f"{module}{call}:q.unrotated" not in d, module


def memory_bound(scratch: Path, root: Path):
    """However little is held, the tensors are the same."""
    for name, memory in (("small", 20_000), ("large", 1 << 30)):
        record(root, scratch / name, ["transformer*"], memory=memory)
    small, large = Dump(scratch / "small"), Dump(scratch / "large")
    assert len(small.settings["files"]) > 10 and len(large.settings["files"]) == 1
    assert small.tensors.keys() == large.tensors.keys()
    assert all(torch.equal(t, large[name]) for name, t in small.tensors.items())
    assert all((scratch / "small" / f).stat().st_size < 250_000 for f in small.settings["files"])
    try:
        record(root, scratch / "refused", ["*:weights"], memory=20_000)
    except SystemExit as e:
        assert "--max-memory" in str(e) and not (scratch / "refused" / "settings.json").exists()
    else:
        raise AssertionError("weights that do not fit into the memory were recorded")


def autoencoders(scratch: Path, root: Path):
    """Checks that an image through an autoencoder of videos alone gives the same as in a pipeline."""
    model, edit = root / "qwen-edit" / "model", root / "qwen-edit"
    pictures = Dump(edit / "dump")
    Image.fromarray(pictures["image.in"].numpy()).save(scratch.with_suffix(".png"))
    dump.encode(model, scratch / "encode", scratch.with_suffix(".png"), "float32", ["vae.quant_conv"], 0)
    assert torch.equal(Dump(scratch / "encode")["vae.encode.out"], pictures["vae.encode.out"])
    latent = f"{edit / 'dump' / 'tensors.safetensors'}:vae.decode.in"
    dump.decode(model, scratch / "decode", latent, 0, 0, 0, "float32", ["vae.decoder"], 0)
    decoded = Dump(scratch / "decode")
    assert torch.equal(decoded["vae.decode.out"], pictures["vae.decode.out"])
    assert torch.equal(decoded["vae.decoder"].clamp(-1, 1), decoded["vae.decode.out"])


def own_runs(scratch: Path, root: Path):
    """Runs go to the archive, and do not mix."""
    latest = scratch / "runs" / "latest" / "reference"
    record(root, None, ["transformer@*"], log_dir=scratch)
    first = Dump(latest)
    record(root, None, ["transformer@*"], log_dir=scratch, compute="bfloat16")
    second = Dump(latest)
    assert second["transformer@1"].dtype == torch.bfloat16 and (latest / "images" / "image.png").exists()
    [archived] = (scratch / "runs" / "archive").iterdir()
    assert archived.name == f"{first.settings['began']}-reference"
    assert torch.equal(Dump(archived)["image"], first["image"])
    ignored = scratch / "runs" / ".gitignore"
    assert ignored.read_text() == "*\n"
    ignored.write_text("archive\n")
    going, other = runs.Run(scratch), runs.Run(scratch)
    assert ignored.read_text() == "archive\n"
    assert going.folder == latest and other.folder.parent.name == "archive"
    other.end()
    going.end()


def once_more(scratch: Path, root: Path):
    """A run that is repeated with other taps is the same run."""
    for golden, module in (
        ("zimage-image-resized", "transformer.layers.0.attention"),
        ("zimage-heun", "transformer.layers.0.attention"),
        ("flux1-dev-image", "transformer.single_transformer_blocks.0.attn"),
        ("flux1-kontext", "transformer.single_transformer_blocks.0.attn"),
        ("flux2-klein-edit2", "transformer.single_transformer_blocks.0.attn"),
        ("qwen-edit", "transformer.transformer_blocks.0.attn"),
        ("qwen-edit-plus3", "transformer.transformer_blocks.1.attn"),
    ):
        again.repeat(root / golden / "dump", scratch / golden, [f"{module}@*:v"], 1 << 30)
        before, after = Dump(root / golden / "dump"), Dump(scratch / golden)
        assert torch.equal(before["image"], after["image"]), golden
        last = f"{module}@{before.settings['steps'] - 1}:v"
        assert last in after and last not in before, golden


def pictures(scratch: Path, root: Path):
    """Checks that reference images are cropped around their centre, and that all tensors of them are recorded."""
    d = Dump(root / "flux2-klein-edit2" / "dump")
    for i, (file, left, top, width, height) in enumerate((("first.png", 3, 1, 64, 64), ("second.png", 1, 0, 80, 64))):
        call = f"#{i}" if i else ""
        picture = torch.from_numpy(np.array(Image.open(root / "flux2-klein-edit2" / file)))
        assert torch.equal(d[f"image.in{call}"], picture[top : top + height, left : left + width]), file
        assert list(d[f"vae.encode.in{call}"].shape) == [1, 3, height, width], file
        assert list(d[f"latents.reference{call}"].shape) == [1, 16, height // 16, width // 16], file
    # tokens of the generated image, and then of the two references
    tokens = [d[name].flatten(2).mT for name in ("latents.init", "latents.reference", "latents.reference#1")]
    assert torch.equal(d["transformer@0:in.hidden_states"], torch.cat(tokens, 1))
    kontext_pictures(root)
    qwen_pictures(root)


def kontext_pictures(root: Path):
    """References have the preferred size whose ratio is nearest to that of their size in whole patches."""
    for golden, reference, made in (("flux1-kontext", (40, 56), (24, 40)), ("flux1-kontext-small", (48, 48), (80, 48))):
        d = Dump(root / golden / "dump")
        assert d["image.in"].shape == (*reference, 3) and d["image"].shape == (*made, 3), golden
        patch = 2 ** len(read_json(root / golden / "model" / "vae" / "config.json")["block_out_channels"])
        grids = [(i, h // patch, w // patch) for i, (h, w) in enumerate((made, reference))]
        ids = [[i, y, x] for i, h, w in grids for y in range(h) for x in range(w)]
        assert d["transformer@0:in.img_ids"].tolist() == ids, golden


def qwen_pictures(root: Path):
    """Checks that images are resized to the model's areas, and that their tokens have positions on two axes."""
    d = Dump(root / "qwen-edit-plus" / "dump")
    for i, (vae, condition, grid) in enumerate((((32, 64), (32, 64), (6, 12)), ((64, 32), (96, 32), (16, 4)))):
        call = f"#{i}" if i else ""
        assert d[f"image.in{call}"].shape == (*vae, 3) and d[f"image.condition{call}"].shape == (*condition, 3), i
        assert d[f"vae.encode.in{call}"].shape == (1, 3, *vae), i
        assert d[f"latents.reference{call}"].shape == (1, 4, vae[0] // 8, vae[1] // 8), i
        assert d["vision.grid_thw"][i].tolist() == [1, *grid], i
    assert d["image.in"].float().mean() > 1 and torch.equal(d["image.in"], d["image.condition"])
    positions, at = [], 0
    ids = d["prompt.input_ids"][0].tolist()
    image = read_json(root / "qwen-edit-plus" / "model" / "text_encoder" / "config.json")["image_token_id"]
    grids = iter(d["vision.grid_thw"].tolist())
    while len(positions) < len(ids):
        if ids[len(positions)] != image:
            positions.append((at, at, at))
            at += 1
        else:
            _, h, w = next(grids)
            positions += [(at, at + y, at + x) for y in range(h // 2) for x in range(w // 2)]
            at += max(h, w) // 2
    found = d["text_encoder.model.language_model.rotary_emb:in.1"][:, 0].T
    assert found.tolist() == [list(p) for p in positions]


def encoders(scratch: Path, root: Path):
    """Of CLIP the last recorded row is the one that is used, and a Qwen3's layers are those that are named."""
    d = Dump(root / "flux1-schnell-ordinary" / "dump")
    valid = d.settings["tokens"]["prompt"]["valid"]
    assert d["text_encoder.final_layer_norm"].shape[1] == valid < 77
    assert torch.equal(d["text_encoder.final_layer_norm"][0, -1], d["prompt.pooled_embeds"])
    d = Dump(root / "flux2-klein" / "dump")
    layers = [d[f"text_encoder.model.layers.{n - 1}"][0] for n in (1, 2, 4)]
    assert torch.equal(d["prompt.embeds"], torch.cat(layers, -1))
    for golden, dropped in (("qwen-image-ordinary", 34), ("qwen-edit", 64), ("qwen-edit-plus", 64)):
        d = Dump(root / golden / "dump")
        last = "text_encoder.model" if "text_encoder.model" in d else "text_encoder.model.language_model"
        assert torch.equal(d["prompt.embeds"], d[last][0, dropped:]), golden


def unpadded(scratch: Path, root: Path):
    """Krea 2 computes the same with the padding that its dumps do not have."""
    pipe, name = dump.load(root / "krea-2-raw" / "model")
    settings = dict(prompt="a red circle", negative_prompt="dark", guidance_scale=3.0, num_inference_steps=2, height=24)

    def latents():
        generator = torch.Generator().manual_seed(1)
        return pipe(**settings, width=40, max_sequence_length=64, generator=generator, output_type="latent").images

    with FAMILIES[name].running(pipe):
        short = latents()
    torch.testing.assert_close(short, latents(), rtol=1e-4, atol=1e-5)


def one_by_one(scratch: Path, root: Path):
    """ERNIE-Image computes the same for both prompts in a batch, with padding that its dumps do not have."""
    pipe, name = dump.load(root / "ernie-image" / "model")
    settings = dict(prompt="a red circle", negative_prompt="dark", guidance_scale=3.0, num_inference_steps=2, height=48)

    def latents():
        generator = torch.Generator().manual_seed(1)
        return pipe(**settings, width=64, generator=generator, output_type="latent", use_pe=False).images

    with FAMILIES[name].running(pipe):
        alone = latents()
    torch.testing.assert_close(alone, latents(), rtol=1e-4, atol=1e-5)


def empty_prompt(scratch: Path, root: Path):
    """Anima computes the same with the text encoder, for an empty prompt, that its dumps do without."""
    pipe, name = dump.load(root / "anima" / "model")
    settings = FAMILIES[name].call(pipe, 3.0, None) | dict(prompt="a red circle", num_inference_steps=2, height=32, width=48)

    def image():
        generator = torch.Generator().manual_seed(1)
        return torch.from_numpy(pipe(**settings, generator=generator, output_type="np").images[0])

    with FAMILIES[name].running(pipe):
        short = image()
    assert torch.equal(short, image())


def undescribed(scratch: Path, root: Path):
    """A pipeline without a family is recorded: one that has a family has the same tensors then, except the prompt's."""
    record(root, scratch / "described", ["*"])
    with mock.patch.object(dump, "family_of", lambda pipe, described: None), redirect_stderr(io.StringIO()) as printed:
        record(root, scratch / "bare", ["*"])
    assert "describes ZImagePipeline" in printed.getvalue() and "Missing: prompt.*" in printed.getvalue()
    described, bare = Dump(scratch / "described"), Dump(scratch / "bare")
    only = [n for n in described.names() if n not in bare]
    assert all(n.startswith(("prompt.", "negative.")) for n in only) and only, only
    cropped = [n for n in described.names() if n in bare and not n.startswith("text_encoder")]
    assert all(torch.equal(described[n], bare[n]) for n in cropped) and len(cropped) > 100
    d = FAMILIES["flux1-dev"].dims | {"shift_factor": None}
    parts = text_encoders.clip_and_t5(d)
    text = parts["text_encoder_2"]
    transformer = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=1, cross_attention_dim=16,
        sample_size=16, patch_size=2, caption_channels=text.config.d_model,
    )  # fmt: skip
    pipe = diffusers.PixArtSigmaPipeline(
        tokenizer=parts["tokenizer_2"], text_encoder=text, vae=autoencoders_of.kl(d), transformer=transformer,
        scheduler=diffusers.DPMSolverMultistepScheduler(),
    )  # fmt: skip
    pipe.save_pretrained(scratch / "model")
    request = dict(negative_prompt="blue", steps=2, guidance=3.0, seed=1, height=32, width=48, max_sequence_length=64)
    dump.pipeline(scratch / "model", scratch / "pixart", prompt="a red circle", taps=["*"], **request)
    d = Dump(scratch / "pixart")
    assert d.settings["pipeline"] == "PixArtSigmaPipeline" and d["image"].shape == (32, 48, 3)
    assert torch.equal(d["transformer@0:in.0"][:1], d["latents.init"])
    torch.testing.assert_close(d["latents@1"] / pipe.vae.config.scaling_factor, d["vae.decode.in"])


@contextmanager
def logs_in(folder: Path):
    before = os.environ.get("GOMFLUX_LOG_DIR")
    os.environ["GOMFLUX_LOG_DIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["GOMFLUX_LOG_DIR"]
        if before is not None:
            os.environ["GOMFLUX_LOG_DIR"] = before


def own_tensors(scratch: Path, root: Path):
    """debug_save, debug_load, debug_checkpoint and convert."""
    x = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    x[1, 1], x[2, 3] = torch.nan, -torch.inf
    with logs_in(scratch):
        debug.debug_save(x, "a.b@2:in.0")
        file = debug.debug_save(2 * x, "a.b@2:in.0")
        assert file.name == "a.b@2#1%3Ain.0.safetensors"
        assert torch.equal(debug.debug_load("a.b@2#1:in.0", like=x).nan_to_num(), (2 * x).nan_to_num())
        other = scratch / "runs" / "latest" / "gomflux" / "tensors"
        other.mkdir(parents=True)
        np.save(other / "theirs.npy", np.float32([[1, 2]]))
        assert debug.debug_load("theirs").tolist() == [[1, 2]]
        assert debug.debug_load("theirs", like=torch.zeros(1, 2, dtype=torch.float16), cast=True).dtype == torch.float16
        for error, what, more in (
            (FileNotFoundError, "theirs", {"name": "their"}),
            (ValueError, "expected [2, 1]", {"name": "theirs", "like": torch.zeros(2, 1)}),
            (ValueError, "cast=True", {"name": "theirs", "like": torch.zeros(1, 2, dtype=torch.float16)}),
        ):
            try:
                debug.debug_load(**more)
            except error as e:
                assert what in str(e), e
            else:
                raise AssertionError(f"no error about {what}")
        file = debug.debug_checkpoint("here", latents=x, step=3, metadata={"block": 1})
    said = json.loads(file.read_text(encoding="utf-8"))
    assert file.name == "checkpoint_here_hit001.json" and said["checkpoint_name"] == "here" and said["hit_count"] == 1
    assert said["location"]["function"] == "own_tensors" and said["variables"]["step"]["value"] == 3
    known = said["variables"]["latents"]
    assert known["shape"] == [3, 4] and known["dtype"] == "torch.bfloat16" and known["preview"][5] == "NaN"
    assert known["stats"]["nan"] == 1 and known["stats"]["inf"] == 1 and known["stats"]["max"] == 10
    torch.save({"a": [x, {"b": x.T}]}, scratch / "x.pt")
    debug.convert(scratch / "x.pt", scratch / "x.safetensors")
    with safe_open(scratch / "x.safetensors", "pt") as f:
        assert torch.equal(f.get_tensor("a.1.b").nan_to_num(), x.T.nan_to_num())


def fails(what: str, call, *args, **more):
    """Checks that a call ends the program with a message of one line that has these words."""
    with redirect_stderr(io.StringIO()):
        try:
            call(*args, **more)
        except SystemExit as e:
            assert what in str(e) and "\n" not in str(e), e
        else:
            raise AssertionError(f"no error about {what}")


def saved_debug(scratch: Path, root: Path):
    """debug_show_all and debug_clear."""
    with logs_in(scratch), redirect_stdout(io.StringIO()) as printed:
        folder = scratch / "runs" / "latest" / "gomflux" / "tensors"
        folder.mkdir(parents=True)
        np.save(folder / "theirs.npy", np.float32([[1, 2], [3, np.inf]]))
        ours = scratch / "runs" / "latest" / "reference" / "tensors"
        ours.mkdir(parents=True)
        save_file({"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.bfloat16)}, ours / "two.safetensors")
        save_file({"theirs": torch.zeros(1)}, ours / "theirs.safetensors")
        listed = debug.debug_show_all()
        assert [(t["name"], t["side"], t["shape"], t["dtype"], t["bytes"]) for t in listed] == [
            ("theirs", "gomflux", [2, 2], "float32", 16), ("a", "reference", [3], "float32", 12),
            ("b", "reference", [2], "bfloat16", 4), ("theirs", "reference", [1], "float32", 4),
        ]  # fmt: skip
        assert "4 tensors" in printed.getvalue() and "bfloat16" in printed.getvalue()
        for error, call in (
            (ValueError, lambda: debug.debug_clear("a", confirm=False)),  # the file has another
            (FileNotFoundError, lambda: debug.debug_clear("c", confirm=False)),
            (ValueError, lambda: debug.debug_clear(side="mine")),
        ):
            try:
                call()
            except error:
                continue
            raise AssertionError(f"no {error.__name__}")
        with mock.patch("builtins.input", lambda text: "n"):
            assert debug.debug_clear() == {"removed": 0, "bytes": 0} and len(debug.debug_show_all()) == 4
        assert debug.debug_clear("theirs", confirm=False)["removed"] == 1
        assert [t["side"] for t in debug.debug_show_all() if t["name"] == "theirs"] == ["gomflux"]
        with mock.patch("builtins.input", lambda text: "y"):
            assert debug.debug_clear()["removed"] == 1
        assert debug.debug_clear(confirm=False, side="both")["removed"] == 1 and not debug.debug_show_all()


def statistics(scratch: Path, root: Path):
    """Lines of statistics are those of the tensors, and need none."""
    taps = ["transformer.layers.0*@0*", "!*feed_forward*"]
    record(root, scratch / "both", taps, stats=[*taps, "latents", "latents.init", "prompt.embeds"])
    d, lines = Dump(scratch / "both"), stats_of(scratch / "both")
    assert d.settings["stats"] == len(lines) and set(taps) <= set(d.settings["stats_globs"])
    assert {line["name"] for line in lines if line["class"]} == {n for n in d.names() if n.startswith("transformer")}
    for line in lines:
        t = d[line["name"]]
        assert line["shape"] == list(t.shape) and line["dtype"] == str(t.dtype).removeprefix("torch."), line
        assert abs(line["stats"]["mean"] - t.double().mean()) < 1e-9 and line["preview"] == t.flatten()[:10].tolist()
    said = {line["name"]: line for line in lines}
    block = said["transformer.layers.0@0"]
    source = Path(block["location"]["file"]).read_text(encoding="utf-8").split("\n")
    assert block["class"] == "ZImageTransformerBlock" and block["point"] == "output" and block["hit_count"] == 1
    assert "def forward" in source[block["location"]["line"] - 1] and "ZImage" in block["location"]["function"]
    assert said["latents@0"]["location"]["file"].endswith("pipeline_z_image.py") and said["latents@0"]["class"] == ""
    assert said["transformer.layers.0@0:in.0"]["point"] == "input"
    record(root, scratch / "alone", None, stats=["*"])
    assert not list((scratch / "alone").glob("*.safetensors")) and Dump(scratch / "alone").settings["files"] == []
    alone = {line["name"]: line for line in stats_of(scratch / "alone")}
    assert all(alone[name]["stats"] == line["stats"] for name, line in said.items()) and "image" in alone
    for option in ("taps", "stats"):
        globs = {"taps": None, option: ["transformer.lajers.0"]}
        fails("near: transformer.layers.0", record, root, scratch / "typo", **globs)


def stats_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "traces" / "stats.jsonl").read_text(encoding="utf-8").splitlines()]


def samples(scratch: Path, root: Path):
    """A dump of samples has the values of the whole one, and values of the pipeline whole."""
    for name, sample in (("whole", 0), ("some", 50)):
        record(root, scratch / name, ["transformer.layers*@0"], sample=sample)
    whole, some = Dump(scratch / "whole"), Dump(scratch / "some")
    assert some.settings["sample"] == 50 and torch.equal(some["latents.init"], whole["latents.init"])
    name = "transformer.layers.1@0"
    assert name not in some and some.settings["shapes"][name] == list(whole[name].shape)
    assert torch.equal(some[f"{name}:samples"], whole[name].flatten()[some[f"{name}:positions"].long()])


def replacements(scratch: Path, root: Path):
    """Replaced tensors are what the run goes on with, and what cannot replace one is refused."""
    whole, out = scratch / "whole", scratch / "out"
    record(root, whole, ["*"])
    file, d = whole / "tensors.safetensors", Dump(whole)
    # replaced by itself, a tensor changes nothing; by that of another step, all that comes after it
    names = ("transformer.layers.0.attention@0", "transformer.layers.1@1:in.0", "prompt.embeds", "latents.init",
             "noise_pred@0", "latents@0", "vae.decode.in", "vae.decode.out")  # fmt: skip
    for name in names:
        record(root, out, ["transformer@*"], loads=[f"{name}={file}"])
        assert torch.equal(Dump(out)["image"], d["image"]), name
        assert list(Dump(out).settings["replaced"]) == [name]
    for name, other in (("transformer.layers.0.attention@0", "transformer.layers.0.attention@1"),
                        ("latents@0", "latents.init"), ("noise_pred@1", "noise_pred@0"), ("latents.init", "latents@0"),
                        ("transformer.layers.1.feed_forward@1:in.0", "transformer.layers.1@1:in.0"),
                        ("prompt.embeds", None)):  # fmt: skip
        source = f"{file}:{other}"
        if not other:
            save_file({"x": d[name].flip(0).contiguous()}, scratch / "flipped.safetensors")
            source = scratch / "flipped.safetensors"
        record(root, out, ["*"], loads=[f"{name}={source}"])
        found = Dump(out)
        assert torch.equal(found[name], d[other] if other else d[name].flip(0)), name
        assert not torch.equal(found["latents@1"], d["latents@1"]), name
    again.repeat(out, scratch / "again", ["*"], 1 << 30)
    assert torch.equal(Dump(scratch / "again")["image"], found["image"]), "again does not repeat what was replaced"
    np.savez(scratch / "pickled.npz", x=np.array([{}], dtype=object))
    for what, load in (
        ("expected float32 [1, 4, 6, 10]", f"latents.init={file}:prompt.embeds"),
        ("expected float32", f"latents={file}:prompt.input_ids"),
        ("near: transformer.layers.0.attention", f"transformer.layers.0.atention={file}:latents@0"),
        ("no such tensor (near: latents@", f"latents@5={file}:latents@1"),
        ("no tensor latents@5 (near: latents@", f"latents={file}:latents@5"),
        ("no such file", "latents=nothing.npy"),
        ("expected NAME=FILE", f"={file}"),
        ("Object arrays cannot be loaded", f"latents={scratch / 'pickled.npz'}"),
    ):
        fails(what, record, root, out, ["image"], loads=[load])


def lora_runs(scratch: Path, root: Path):
    """A run with LoRAs is repeated with them, has the names of one without, and refuses those that do not fit."""
    dump.prepare()
    pipe, _ = dump.load(root / "zimage-ordinary" / "model")
    scratch.mkdir()
    files = [scratch / "a.safetensors", scratch / "b.safetensors"]
    for i, file in enumerate(files):
        adapters.draw(pipe, file, random.Random(i))
    record(root, scratch / "plain", ["*"])
    record(root, scratch / "out", ["*"], loras=[(str(files[0]), 0.75), (str(files[1]), -0.5)])
    plain, d = Dump(scratch / "plain"), Dump(scratch / "out")
    assert plain.names() == d.names() and not torch.equal(plain["image"], d["image"])
    assert [lora["scale"] for lora in d.settings["loras"]] == [0.75, -0.5]
    # what a layer computes has both changes
    changes = [load_file(file) for file in files]
    path = next(k for k in changes[0] if k in changes[1] and k.endswith("lora_A.weight") and ".layers." in k)
    path = path.removesuffix(".lora_A.weight")
    x, y = d[f"{path}@0:in.0"], d[f"{path}@0"]
    layer = pipe.transformer.get_submodule(path.removeprefix("transformer."))
    for scale, change in zip((0.75, -0.5), changes):
        y = y - scale * x @ change[f"{path}.lora_A.weight"].mT @ change[f"{path}.lora_B.weight"].mT
    torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-4)
    again.repeat(scratch / "out", scratch / "again", ["image"], 1 << 30)
    assert torch.equal(Dump(scratch / "again")["image"], d["image"])
    for file in ("flux-kohya.safetensors", "zimage-kohya.safetensors", "flux-peft-dora", "nothing"):
        what = "no such LoRA" if file == "nothing" else "does not fit the model"
        file = root.parent / "lora" / "testdata" / file
        fails(what, record, root, scratch / "bad", ["image"], loras=[(str(file), 1.0)])
    fails("expected a number", arguments.specs_of, [["a.safetensors", "much"]])


def interrupted_runs(scratch: Path, root: Path):
    """A run's folder has what it printed, and how it ended."""
    latest = scratch / "runs" / "latest" / "reference"
    with redirect_stderr(io.StringIO()):
        record(root, None, ["transformer@*", "*:nothing"], log_dir=scratch)
    settings = Dump(latest).settings
    assert settings["ended"] > settings["began"] and "interrupted" not in settings
    assert "*:nothing matches no tensor" in (latest / "output.log").read_text(encoding="utf-8")
    with mock.patch.object(Image.Image, "save", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        record(root, None, ["transformer@*"], log_dir=scratch, stats=["latents*"])
    broken = Dump(latest)
    assert broken.settings["interrupted"] and "ended" not in broken.settings and "transformer@1" in broken
    assert broken.settings["stats"] == len(stats_of(latest)) == 3
    assert "KeyboardInterrupt" in (latest / "output.log").read_text(encoding="utf-8")
    # killed: neither, and what was written until then
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        run = runs.Run(scratch)
        run.begin({"command": "dump"})
        print("50%\r100%\x1b[0m\nhalf a line", end="")
        sys.stdout, sys.stderr = run._log._streams
    assert not {"ended", "interrupted"} & read_json(run.folder / "settings.json").keys()
    run.end()
    assert (run.folder / "output.log").read_text(encoding="utf-8") == "100%\nhalf a line\n"


TESTS = {
    test.__name__: test
    for test in (
        same_goldens, both_layouts, inner_values, memory_bound, own_runs, once_more, pictures, encoders, autoencoders,
        own_tensors, prune_test.copies, prune_test.wrong_copies, saved_debug, statistics, samples, replacements,
        unpadded, one_by_one, empty_prompt, undescribed, lora_runs, interrupted_runs, lies.real, lies.planted, lies.refused,
        tracing_test.observed,
        profile_test.profiled, prune_test.functions_reduced, prune_test.families_apart, stream_test.sent, stream_test.ends,
        *debugger_test.TESTS,
    )
}  # fmt: skip
# The tests of `make parity`: they compare no bytes, which depend on the processor, and take seconds.
QUICK = tuple(TESTS)[list(TESTS).index(saved_debug.__name__) :]
# Those of CI: without the ones that start many processes, each of which imports torch.
MANY = (stream_test.ends, prune_test.functions_reduced, debugger_test.debug_both, debugger_test.debug_scripts, debugger_test.debug_signals)
BRIEF = tuple(name for name in QUICK if name not in {test.__name__ for test in MANY})

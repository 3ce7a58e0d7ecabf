"""Checks of this package itself."""

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open

from . import again, debug, dump, goldens, runs, tiny
from .families import FAMILIES
from .files import read_json


def check(root: Path):
    """Checks that this package makes the committed goldens, and checks everything that they do not cover."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for test in (
            same_goldens, both_layouts, inner_values, memory_bound, own_runs, once_more, pictures, encoders,
            autoencoders, own_tensors,
        ):  # fmt: skip
            test(scratch / test.__name__, root)
    print("ok")


def files(folder: Path) -> dict:
    return {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file() and p.suffix != ".md"}


def same_goldens(scratch: Path, root: Path):
    goldens.make(scratch)
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


class Dump:
    def __init__(self, folder: Path):
        self.settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        self.tensors = {}
        for file in self.settings["files"]:
            with safe_open(folder / file, "pt") as f:
                self.tensors |= {k: f.get_tensor(k) for k in f.keys()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[self.settings["aliases"].get(name, name)]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or name in self.settings["aliases"]


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

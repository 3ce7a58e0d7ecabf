"""Checks of stream.py and sender.py."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load

from . import dump, stream
from .files import read_json

# golden -> what is run with its model; pictures are next to it
RUNS = {
    "zimage-ordinary": dict(prompt="a red circle", negative_prompt="blue", guidance=2.0),
    "zimage-image": dict(prompt="a red circle", negative_prompt=None, guidance=0.0, picture="picture.png", image_strength=0.5),
    "flux1-dev-image": dict(prompt="a red circle", negative_prompt=None, guidance=3.0, picture="picture.png", image_strength=0.5),
    "flux2-klein-base": dict(prompt="a red circle", negative_prompt=None, guidance=3.0),
    "zimage-inpaint-crop": dict(
        prompt="a red circle", negative_prompt=None, guidance=0.0, picture="picture.png", image_strength=0.3, mask="mask.png",
        mask_crop=5,
    ),
    "qwen-edit": dict(prompt="a red circle", negative_prompt="blue", guidance=2.0, references=["first.png"]),
}  # fmt: skip
EARLY = ("latents.init", "prompt.embeds", "negative.embeds", "sigmas")


def sent(scratch: Path, root: Path):
    """A stream has every tensor of a dump once, bit for bit, and values before what gomflux computes from them."""
    for golden, request in RUNS.items():
        folder, out = root / golden, scratch / golden
        out.mkdir(parents=True)
        model = str(folder.parent / read_json(folder / "dump" / "settings.json")["model"])
        request = request | dict(steps=2, seed=1, height=64, width=80, max_sequence_length=64)
        request |= {key: folder / request[key] for key in ("picture", "mask") if key in request}
        request["references"] = [folder / name for name in request.get("references", [])]
        dump.pipeline(model, out / "dump", taps=["*", "*:[qkv]*"], **request)
        with open(out / "stream", "wb") as file:
            stream.run(file, model, **request)
        parts = list(parts_of((out / "stream").read_bytes()))
        settings = json.loads(parts[0][0]["settings"])
        assert parts[-1] == ({"end": ""}, {}) and "transformer" in settings["modules"], golden
        assert settings.get("pasted", False) == ("mask_crop" in request), golden
        assert [Path(name).name for name in settings.get("references", [])] == [f.name for f in request["references"]]
        found, at, finished = {}, {}, {}
        for i, (metadata, tensors) in enumerate(parts):
            assert not found.keys() & tensors.keys(), f"{golden}: {tensors.keys()} comes twice"
            found |= tensors
            at |= dict.fromkeys(tensors, i)
            if name := metadata.get("finished"):
                finished[name] = i
        d = read_json(out / "dump" / "settings.json")
        whole = {}
        for name in d["files"]:
            whole |= load((out / "dump" / name).read_bytes())
        whole |= {name: whole[stored] for name, stored in d["aliases"].items()}
        assert found.keys() == whole.keys(), f"{golden}: {sorted(found.keys() ^ whole.keys())}"
        differ = [name for name, x in found.items() if x.dtype != whole[name].dtype or not torch.equal(x, whole[name])]
        assert not differ, f"{golden}: {differ}"
        assert len(finished) > 100, f"{golden}: {len(finished)} calls"
        for name in at:
            module = name.partition(":")[0]
            assert module not in finished or at[name] < finished[module], f"{golden}: {name} comes after its call"
        began = min(i for name, i in at.items() if name.startswith("transformer"))
        late = [name for name in EARLY if at.get(name, 0) > began]
        assert not late and at["latents.init"] == 1, f"{golden}: {late} come after the transformer begins"


def parts_of(data: bytes):
    """The metadata and the tensors of each file in a stream."""
    while data:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header.pop("__metadata__", {})
        size = 8 + int.from_bytes(data[:8], "little") + max((t["data_offsets"][1] for t in header.values()), default=0)
        yield metadata, load(data[:size]) if header else {}
        data = data[size:]


def heed_interrupts():
    """A shell starts programs in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ends(scratch: Path, root: Path):
    """The process ends with its input, with who reads it, and after an error, without a traceback."""
    model = root / "zimage-ordinary" / "model"
    given = ["--prompt", "x", "--steps", "500", "--height", "64", "--width", "64"]
    for what in ("input", "reader", "interrupt", "model"):
        command = [sys.executable, "-m", __package__, "stream", str(root if what == "model" else model), *given]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        p = subprocess.Popen(command, **pipes, preexec_fn=heed_interrupts)
        if what != "model":
            p.stdout.read(100_000)  # it runs
        if what == "input":
            p.stdin.close()
        elif what == "reader":
            p.stdout.close()
        elif what == "interrupt":
            p.send_signal(signal.SIGINT)
        rest = b"" if p.stdout.closed else p.stdout.read()
        error = p.stderr.read().decode()
        assert p.wait(60) in (1, 128 + signal.SIGINT), what
        assert "Traceback" not in error and bool(error) == (what == "model"), f"{what}: {error}"
        assert what != "model" or not rest, "the error went to standard output"

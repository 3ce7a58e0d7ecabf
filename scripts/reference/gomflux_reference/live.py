"""make parity: gomflux against diffusers, on small models that nobody has seen before."""

import functools
import json
import math
import random
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file

from . import adapters, dump, goldens, inpaint, language, schedules, tiny
from . import published as small_files
from .families import FAMILIES, Family, module_of
from .files import read_json, write_json

SCENES = (
    "a red circle left of a blue square",
    "the old lighthouse at dusk, painted in oil",
    "“L’été” à la cafe\u0301",
    "夕阳下的灯塔 🙂",
    "Ein kleines Haus am Fluß",
    "3.5 x [y] {z} <a> #tag",
    "",
)
TAPS = ["*", "*:[qkv]*"]
LARGE = 512  # pixels, once per family
REFERENCE = f"{shlex.quote(sys.executable)} -m {__package__}"  # the command


@dataclass
class Row:
    what: str
    settings: str
    result: str
    ok: bool
    seconds: float = 0


def check(
    gomflux: Path, seed: int | None, keep: Path | None, families: list[str], models: int, pictures: int, searches: int, published: str
):  # fmt: skip
    """Makes random models of every family, runs diffusers on them, and replays the runs with gomflux.

    What a family's first and second model differ in takes turns among the families if each has one model, and so
    does what costs most.
    """
    gomflux = gomflux.resolve()
    seed = secrets.randbits(32) if seed is None else seed
    print(f"PARITY_SEED={seed} repeats these models and runs\n")
    rows, thorough = [], of_each_module(families, seed)
    searched = random.Random(f"{seed}/searches").sample(sorted(thorough), min(searches, len(thorough)))
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        for turn, family in enumerate(families):
            made = []
            for i in [turn % 2] if models == 1 else range(models):
                name = f"{family}-{i + 1}"
                made.append(Path(folder, name, "model"))
                r = random.Random(f"{seed}/{name}")
                settings = make_model(made[-1], family, r, i)
                print(f"{name}: {settings}", flush=True)
                for kind in kinds(FAMILIES[family], i, turn // 2 if models == 1 else None):
                    rows.append(replay(gomflux, made[-1], family, kind, r))
                    report(rows[-1])
            if made and family in thorough:
                rows.append(half_precision(gomflux, made[0], family, random.Random(f"{seed}/{family}/float16")))
                report(rows[-1])
            if made and family in searched:
                rows.append(narrow(gomflux, made[0], family, random.Random(f"{seed}/{family}/fault")))
                report(rows[-1])
                for row in while_running(gomflux, made[0], family, random.Random(f"{seed}/{family}/live")):
                    rows.append(row)
                    report(row)
            masked = 1 if family in thorough and FAMILIES[family].inpaint_pipeline else 0
            for n in range(min(pictures, masked) if FAMILIES[family].fills else pictures):
                r = random.Random(f"{seed}/{family}/seed {n}")
                rows.append(same_seed(gomflux, made[n % len(made)], family, n, r, n < masked))
                report(rows[-1])
        if families == list(FAMILIES):
            print("language models:")
            began = time.monotonic()
            for row in language.rows(gomflux, Path(folder, "language"), seed, models > 1, run):
                rows.append(Row(*row, time.monotonic() - began))
                began = time.monotonic()
                report(rows[-1])
        if published and small_files.there():
            print("small files of published models:")
            live = while_running if searches else None
            for row in small_files.rows(gomflux, Path(folder, "published"), families, published, replay, live):
                rows.append(row)
                report(row)
        elif published:
            print("the small files of published models are not there: no run with them")
    failed = [row for row in rows if not row.ok]
    print(f"\n{len(rows) - len(failed)} of {len(rows)} hold; PARITY_SEED={seed}")
    if keep:
        print(f"models, dumps and images are in {keep}")
    if failed:
        print("failed:")
        for row in failed:
            report(row)
        sys.exit(1)


@functools.lru_cache(maxsize=1)
def loaded(model: Path):
    """Returns a model's pipeline, from which requests are drawn. It must not be changed."""
    return dump.load(model)[0]


def of_each_module(names: list[str], seed: int) -> set[str]:
    """Chooses one family of each module, for checks that take long."""
    alike = {}
    for name in names:
        alike.setdefault(module_of(name), []).append(name)
    return {random.Random(f"{seed}/{module}").choice(found) for module, found in alike.items()}


def report(row: Row):
    mark = "ok  " if row.ok else "FAIL"
    print(f"  {mark} {row.what:38} {row.settings:72} {row.seconds:4.1f} s  {row.result}", flush=True)


def kinds(family: Family, i: int, turn: int | None = None) -> list[str]:
    """What the i-th model of a family is run for; with a turn, one of the three that cost most."""
    found = [f"edit of {n}" if n else "text" for n in family.references]
    if family.image_pipeline:
        found.append("picture")
    if family.inpaint_pipeline and (i % 2 or not family.fills):  # whose every run has a mask
        found.append("inpaint crop" if i % 2 else "inpaint")
    most = ["large", "long prompt", "LoRAs"]
    return found + ([] if i else most if turn is None else [most[turn % 3]])


def make_model(folder: Path, family: str, r: random.Random, i: int) -> str:
    """The kinds and layouts take turns. Returns them, and the dimensions, as the flags of `tiny`."""
    dims = FAMILIES[family].draw(r)
    while i == 0 and len(dims["vae_channels"]) < 4:  # attention over a large picture's latents
        dims = FAMILIES[family].draw(r)
    kind = ("ordinary", "small-activations")[i % 2]
    layout = ("hub", "v5")[(i + i // 2) % 2]
    shards, seed = r.randint(1, 3), r.getrandbits(31)
    tiny.make(folder, family, seed, kind, layout, shards, r.choice(("bf16", "f32")), dims)
    given = " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in dims.items())
    return f"seed={seed} kind={kind} layout={layout} shards={shards} {given}"


def draw_request(pipe, family: Family, r: random.Random) -> dict:
    """A prompt, a size and so on, in the terms of dump.pipeline."""
    unit = 2 * pipe.vae_scale_factor
    scenes = r.sample(SCENES[:-1], r.randint(1, 5))
    rows, columns = r.choice([(h, w) for h in range(1, 8) for w in range(1, 8) if h * w > 1])  # one token may be at the origin
    request = dict(
        prompt=", ".join(scenes),
        negative_prompt=r.choice((None, *SCENES)) if family.negative_prompt else None,
        steps=r.randint(*family.steps),
        guidance=family.guidance(r),
        seed=r.getrandbits(r.choice((8, 31, 32, 48))),
        height=unit * rows,
        width=unit * columns,
        max_sequence_length=r.randint(140, 300),
    )
    if sigmas := pipe.config.get("sample_sigmas"):  # a distilled model has these only
        request["steps"] = len(sigmas)
    if request["guidance"] or not family.one_batch:  # otherwise there is nothing to bound
        request |= {name: draw(r) for name, draw in family.cfg.items() if r.random() < 0.5}
    return request


def draw_picture(file: Path, r: random.Random, least: int, most: int) -> Path:
    goldens.draw(r.randint(least, most), r.randint(least, most)).save(file)
    return file


def draw_references(folder: Path, family: Family, n: int, r: random.Random) -> list[Path]:
    """Draws images to edit. Their file names begin with the folder's name."""
    files = [draw_picture(Path(f"{folder}-{i + 1}.png"), r, *family.reference_sides) for i in range(n)]
    for file in files[1:] if family.transparent else ():
        image = Image.open(file)
        image.putalpha(goldens.draw_mask(*image.size))
        image.save(file)
    return files


def draw_images(
    stem: Path, pipe, family: Family, request: dict, n: int, r: random.Random, inpaints=False, crop=False, inverts=True
):
    """Adds to a request what it needs: n images to edit, or one with a mask, in whose size it may be. Their file names begin
    with stem's."""
    if not (inpaints or family.fills):
        request["references"] = draw_references(stem, family, n, r)
        return
    size = draw_size(pipe, family, request, crop, r)
    request |= {"picture": Path(f"{stem}.png"), "mask": Path(f"{stem}-mask.png"), "image_strength": 0.0}
    goldens.draw(*size).save(request["picture"])
    scale = 1 if crop else r.choice((1, 1, 2, 3))  # a mask may be larger than its picture
    while True:
        mask = goldens.draw_mask(scale * size[0], scale * size[1], r.uniform(0.2, 0.8), r.uniform(0.2, 0.8))
        mask = ImageOps.invert(mask) if inverts and not crop and r.random() < 0.3 else mask
        if crop:
            request["mask_crop"] = r.randint(0, 20)
        if changes(pipe, mask, request):
            break
    mask.save(request["mask"])
    if not family.fills:
        request["image_strength"] = r.choice((0.0, round(r.uniform(0.05, 0.7), 3)))
    alone = crop and not family.inpaint_resized  # see Pictures.check
    request["references"] = draw_references(stem, family, 0 if alone else r.choice(family.inpaint_references), r)


def pictures_of(request: dict) -> inpaint.Pictures:
    keys = ("picture", "image_strength", "references", "mask", "mask_crop")
    return inpaint.Pictures(**{key: request[key] for key in keys if key in request})


def changes(pipe, mask: Image.Image, request: dict) -> bool:
    """Reports whether a mask changes latents: those of the pixels that each stand for a latent (of the autoencoder), or of
    the four in the middle of each patch."""
    width, height = request["width"], request["height"]
    if "mask_crop" in request:
        region = pipe.image_processor.get_crop_region(mask, width, height, request["mask_crop"])
        mask = pipe.image_processor.resize(mask.crop(region), height, width, "fill").convert("L")
    white = np.asarray(mask.resize((width, height), Image.Resampling.LANCZOS)) >= 128
    scale = pipe.vae_scale_factor
    patches = white[: height // (2 * scale) * 2 * scale, : width // (2 * scale) * 2 * scale]
    middle = [patches[y :: 2 * scale, x :: 2 * scale].any() for y in (scale - 1, scale) for x in (scale - 1, scale)]
    return bool(white[::scale, ::scale].any() and any(middle))


def draw_size(pipe, family: Family, request: dict, crop: bool, r: random.Random) -> tuple:
    """Draws the width and height of a picture to inpaint. The request gets the size that the pipeline chooses for it."""
    while True:
        size = r.randint(20, 120), r.randint(20, 120)
        chosen = inpaint.chosen_size(pipe, family, *size, crop)
        if not chosen:
            return size
        if min(chosen) == 0:
            continue
        if crop and inpaint.chosen_before(family):
            size = chosen
        if inpaint.chosen_size(pipe, family, *size, crop) == chosen:
            request |= {"width": chosen[0], "height": chosen[1]}
            return size


def described(request: dict) -> str:
    text = f"{request['width']}x{request['height']}, {request['steps']} steps, guidance {request['guidance']:g}"
    for key in ("seed", "true_cfg_scale", "cfg_normalization", "cfg_truncation", "image_strength", "mask_crop", "scheduler"):
        if request.get(key) is not None:
            text += f", {key.removeprefix('image_').removeprefix('mask_')} {request[key]}"
    return text


def replay(gomflux: Path, model: Path, family: str, kind: str, r: random.Random) -> Row:
    """Dumps a generation and has the harness replay it, freely and module by module."""
    start = time.monotonic()
    pipe = loaded(model)
    request = draw_request(pipe, FAMILIES[family], r)
    name, taps = kind.replace(" ", "-"), TAPS
    references = int(kind[-1]) if kind.startswith("edit") else min(FAMILIES[family].references)
    inpaints, crop = kind.startswith("inpaint"), kind.endswith("crop")
    # In a large hole all positions are alike, and attention over them magnifies every rounding error.
    draw_images(model.parent / name, pipe, FAMILIES[family], request, references, r, inpaints, crop, inverts=kind != "large")
    if kind == "picture":
        first = r.randint(1, request["steps"] - 1)
        # between two steps, where no rounding decides which is the first
        request["image_strength"] = round((first + 0.5) / request["steps"], 3)
        request["picture"] = draw_picture(model.parent / "picture.png", r, 20, 120)
    elif kind == "large":
        request |= {"width": LARGE, "height": LARGE, "steps": FAMILIES[family].steps[0]}
        taps = ["transformer@*"]
    elif kind == "long prompt":  # which is cut
        request |= {"prompt": ", ".join(SCENES[:-1]), "max_sequence_length": r.randint(20, 60)}
    elif kind == "text" and FAMILIES[family].schedulers and r.random() < 0.4:
        request["scheduler"] = r.choice(FAMILIES[family].schedulers)
        # Heun's divides by its last sigma, a thousandth unless shifted: diffusers' own float32 is off by 2e-5 there
        if request["scheduler"] == schedules.HEUN and pipe.scheduler.config.shift < 3:
            del request["scheduler"]
    flags = []
    if kind == "LoRAs":
        request["loras"], flags = draw_loras(pipe, model, r)
    out, images = model.parent / name, pictures_of(request)
    cls = type(images.pipeline(pipe, FAMILIES[family]))
    if cls is not type(pipe) and kind != "large":
        model = saved_as(cls, model, model.parent / f"{name}-model")
    dump.pipeline(model, out, taps=taps, **request)
    page = model.parent / f"{name}.html"
    ran = run(gomflux, "parity", "run", out, "--model", model, "--dtype", "float32", "--json", "--html", page, *flags)
    try:
        result, ok = verdict(json.loads(ran.stdout)), ran.returncode == 0
        (model.parent / f"{name}.json").write_text(ran.stdout, encoding="utf-8")
    except ValueError:
        result, ok = f"exit status {ran.returncode}: {ran.stderr.strip()}", False
    return Row(f"{model.parent.name} {kind}", described(request), result, ok, time.monotonic() - start)


def saved_as(cls, model: Path, folder: Path) -> Path:
    """Returns a folder with a model as another pipeline of diffusers saves it."""
    folder.mkdir()
    inpaint.recast(loaded(model), cls).save_config(folder)
    index = read_json(model / "model_index.json") | {"_class_name": read_json(folder / "model_index.json")["_class_name"]}
    write_json(folder / "model_index.json", index)
    for component in model.iterdir():
        if component.is_dir():
            (folder / component.name).symlink_to(component.resolve())
    return folder


def half_precision(gomflux: Path, model: Path, family: str, r: random.Random) -> Row:
    """Dumps a generation in float16 and in float32, and compares the rounding errors of both programs in float16."""
    start = time.monotonic()
    pipe = loaded(model)
    request = draw_request(pipe, FAMILIES[family], r) | {"steps": FAMILIES[family].steps[0]}
    out = {dtype: model.parent / dtype for dtype in ("float16", "float32")}
    draw_images(model.parent / "half", pipe, FAMILIES[family], request, min(FAMILIES[family].references), r)
    for dtype, folder in out.items():
        dump.pipeline(model, folder, taps=["*"], compute=dtype, **request)
    flags = ["--precise", out["float32"], "--model", model, "--dtype", "float16"]
    ran = run(gomflux, "parity", "run", out["float16"], *flags, "--json")
    try:
        found = json.loads(ran.stdout)
        result, ok = found["verdict"]["text"], ran.returncode == 0
        if ok:  # otherwise the run may differ in float32 already, and there are no modules
            worst = max(found["modules"], key=lambda m: m["multiple"] if m["multiple"] is not None else math.inf)
            rounding = f"the largest is {worst['multiple']:.2f} times diffusers' ({worst['module']})"
            result = f"rounding errors of {len(found['modules'])} modules: {rounding}"
    except ValueError:
        result, ok = f"exit status {ran.returncode}: {ran.stderr.strip()}", False
    return Row(f"{model.parent.name} float16", described(request), result, ok, time.monotonic() - start)


def draw_loras(pipe, model: Path, r: random.Random) -> tuple[list, list[str]]:
    """Draws one or two LoRAs, and the flags that have gomflux apply them.

    Baked into weights of 16 bits they would be rounded as those are, and the reference adds them in float32.
    """
    loras, flags = [], ["--no-bake-lora"] if stored(model) != torch.float32 else []
    for i in range(r.randint(1, 2)):
        file, scale = model.parent / f"lora-{i + 1}.safetensors", round(r.uniform(-1.5, 1.5), 2) or 1.0
        adapters.draw(pipe, file, r)
        loras.append((str(file), scale))
        flags += ["--lora", file, str(scale)]
    return loras, flags


def stored(model: Path) -> torch.dtype:
    """The dtype of a model's transformer in its files."""
    file = sorted((model / "transformer").glob("*.safetensors"))[0]
    return next(iter(load_file(file).values())).dtype


def narrow(gomflux: Path, model: Path, family: str, r: random.Random) -> Row:
    """Turns the rows of one of gomflux's weights around, and has parity bisect find it from a dump of little."""
    start = time.monotonic()
    pipe = loaded(model)
    request = draw_request(pipe, FAMILIES[family], r)
    folder = model.parent / "bisect"
    folder.mkdir(exist_ok=True)
    draw_images(folder / "edited", pipe, FAMILIES[family], request, min(FAMILIES[family].references), r)
    dump.pipeline(model, folder / "dump", taps=["image"], **request)
    wrong = folder / "model"
    expected = damage(model, wrong, FAMILIES[family].without_effect(pipe.transformer.config), r)
    flags = ("--model", wrong, "--dtype", "float32", "--reference", REFERENCE, "--json")
    ran = run(gomflux, "parity", "bisect", folder / "dump", *flags)
    try:
        found = json.loads(ran.stdout)
        module = found["verdict"].get("module")
        result, ok = f"found {module} in {len(found['rounds'])} rounds", module == expected
        if not ok:
            result += f", expected {expected}: {found['verdict']['text']}"
    except ValueError:
        result, ok = f"exit status {ran.returncode}: {ran.stderr.strip()}", False
    return Row(f"{model.parent.name} bisect", described(request), result, ok, time.monotonic() - start)


def damage(model: Path, wrong: Path, idle: str, r: random.Random, step: int = 0) -> str:
    """Copies a model with the rows of one of the transformer's weights turned around, and returns the module's name at a
    step, which is the first one of the run.

    idle is a pattern of the weights that have no effect.
    """
    shutil.copytree(model, wrong, dirs_exist_ok=True)
    shards = {file: load_file(file) for file in sorted((wrong / "transformer").glob("*.safetensors"))}
    weights = [(file, key) for file, shard in shards.items() for key in sorted(shard) if key.endswith(".weight")]
    file, key = r.choice([(f, k) for f, k in weights if shards[f][k].ndim == 2 and not re.search(idle, k)])
    shards[file][key] = shards[file][key].flip(0).contiguous()
    save_file(shards[file], file, {"format": "pt"})
    return f"transformer.{key.removesuffix('.weight')}@{step}"


def while_running(gomflux: Path, model: Path, family: str, r: random.Random) -> list[Row]:
    """Has parity live compare a run while it goes on, with the model itself, and with a damaged one in less memory than
    the tensors take."""
    pipe = loaded(model)
    request = draw_request(pipe, FAMILIES[family], r)
    folder = model.parent / "live"
    folder.mkdir(exist_ok=True)
    wrong = folder / "model"
    inpaints, crop = bool(FAMILIES[family].inpaint_pipeline) and r.random() < 0.5, r.random() < 0.5
    draw_images(folder / "edited", pipe, FAMILIES[family], request, min(FAMILIES[family].references), r, inpaints, inpaints and crop)
    first = pictures_of(request).first_step(request["steps"])
    expected = damage(model, wrong, FAMILIES[family].without_effect(pipe.transformer.config), r, first)
    given = [f"--references={file}" for file in request["references"]]
    for key, value in request.items():
        if key != "references" and value is not None and (key, value) != ("image_strength", 0):
            given.append(f"--{'image' if key == 'picture' else key.replace('_', '-')}={value}")
    rows, memory = [], 50_000_000
    for ours in (model, wrong):
        start = time.monotonic()
        flags = ("--model", ours, "--reference-model", model, "--max-memory", str(memory), "--dtype", "float32")
        ran = run(gomflux, "parity", "live", *flags, "--reference", REFERENCE, "--json", *given)
        try:
            found = json.loads(ran.stdout)
            size = sum(4 * math.prod(tensor["reference_shape"]) for tensor in found["tensors"])
            result = f"{size / 1e6:.1f} MB, at most {memory / 1e6:.1f} MB at a time; {verdict(found)}"
            memory = size * 3 // 4
            module = found["verdict"].get("module")
            ok = ran.returncode == 0 if ours == model else module == expected
            if not ok and ours == wrong:
                result = f"found {module}, expected {expected}: {found['verdict']['text']}"
        except ValueError:
            result, ok = f"exit status {ran.returncode}: {ran.stderr.strip()}", False
        what = f"{model.parent.name} live" + (" inpaint" if "mask" in request else "") + (" damaged" if ours == wrong else "")
        rows.append(Row(what, described(request), result, ok, time.monotonic() - start))
    return rows


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


def verdict(report: dict) -> str:
    """One line of a report of gomflux parity run --json."""
    stages = report["stages"]
    free, isolated = (max(s.get(reading) or 0 for s in stages) for reading in ("free", "isolated"))
    text = f"{len(report['tensors'])} tensors, worst {free:.0e} from the start, {isolated:.0e} by itself"
    return text if report["verdict"]["ok"] else f"{text}; {report['verdict']['text']}"


def same_seed(gomflux: Path, model: Path, family: str, n: int, r: random.Random, inpaints: bool) -> Row:
    """Compares the images of a prompt and a seed, without a dump: both programs draw the noise themselves."""
    start = time.monotonic()
    dump.prepare()
    pipe, _ = dump.load(model)
    request = draw_request(pipe, FAMILIES[family], r)
    what = f"{model.parent.name}{' inpaint' if inpaints else ''} --rng torch"
    if family.startswith("qwen") and request["negative_prompt"] == "":
        request["negative_prompt"] = " "  # an empty one means gomflux's default, which is this
    folder = model.parent / "pictures"
    folder.mkdir(exist_ok=True)
    crop = inpaints and r.random() < 0.5
    draw_images(folder / f"{n}-edited", pipe, FAMILIES[family], request, min(FAMILIES[family].references), r, inpaints, crop)
    images = pictures_of(request)
    theirs = made_by_diffusers(pipe, FAMILIES[family], request, images)
    theirs.save(folder / f"{n}-diffusers.png")
    ours = folder / f"{n}-gomflux.png"
    flags = {"model": model, "prompt": request["prompt"], "output": ours, "rng": "torch", "dtype": "float32"}
    flags |= {k: request[k] for k in ("steps", "guidance", "seed", "height", "width")}
    flags["max-sequence-length"] = request["max_sequence_length"]
    if request["negative_prompt"] is not None:
        flags["negative-prompt"] = request["negative_prompt"]
    elif family.startswith("qwen"):
        flags["guidance"] = 1  # diffusers guides by a negative prompt only, and ours has one by default
    cfg = {name: request[name] for name in FAMILIES[family].cfg if name in request}
    if request["negative_prompt"] is None:
        cfg.pop("true_cfg_scale", None)  # the same
    flags |= {name.replace("_", "-"): value for name, value in cfg.items()}
    given = [f"--{k}={v}" for k, v in flags.items()]
    if inpaints:
        given += [f"--mask={images.mask}", "--mask-blur=0", f"--image-strength={images.image_strength}"]
        given += [f"--mask-crop={images.mask_crop}"] if crop else []
        given += [] if inpaint.pastes(images.pipeline(pipe, FAMILIES[family]), FAMILIES[family], images) else ["--no-paste-back"]
    given += [f"--image={file}" for file in (images.picture, *images.references) if file]
    command = "inpaint" if inpaints else "edit" if images.references else "generate"
    ran = run(gomflux, command, "--overwrite", "--quiet", *given)
    if ran.returncode:
        return Row(what, described(request), f"exit status {ran.returncode}: {ran.stderr.strip()}", False)
    made = FAMILIES[family].read(pipe, ours).convert(theirs.mode)
    off = np.abs(np.asarray(theirs, int) - np.asarray(made, int))
    result = f"largest difference {off.max()}, of {np.count_nonzero(off)} in {off.size} values"
    return Row(what, described(request), result, off.max() <= 1, time.monotonic() - start)


def made_by_diffusers(pipe, family: Family, request: dict, images: inpaint.Pictures) -> Image.Image:
    """Runs diffusers for a prompt, a seed and images. It takes the mean of the autoencoder's distribution, as gomflux."""
    height, width = request["height"], request["width"]
    given = {"generator": torch.Generator().manual_seed(request["seed"])}
    if images.mask:
        pipe = images.pipeline(pipe, family)
        dump.quiet(pipe)
        dump.take_means(pipe)
        if not family.inpaint_pastes:  # gomflux is asked for the image before that
            pipe.image_processor.apply_overlay = lambda mask, photo, image, region=None: image
        given |= inpaint.arguments(pipe, family, images, height, width)
    elif images.references:
        given["image"] = dump.editable(family, images.references)
    with family.running(pipe):
        image = pipe(
            prompt=request["prompt"],
            num_inference_steps=request["steps"],
            **dump.accepted(pipe, height=height, width=width, max_sequence_length=request["max_sequence_length"]),
            **family.call(pipe, request["guidance"], request["negative_prompt"]),
            **{name: request[name] for name in family.cfg if name in request},
            **given,
        ).images[0]
    if images.mask_crop is not None and not inpaint.crops_itself(pipe):
        return inpaint.paste(pipe, images, image, height, width)
    return image

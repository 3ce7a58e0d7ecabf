"""Runs pipelines and autoencoders of diffusers and records their tensors."""

import functools
import inspect
import os
import re
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import diffusers
import numpy as np
import torch
from PIL import Image
from safetensors import safe_open

from . import adapters, check, inner, inpaint, modular, replace, runs, schedules, stepcache
from .families import FAMILIES, Family, bare, family_of
from .files import read_json
from .inpaint import Pictures
from .record import MEMORY, Recorder, Taps, near, still
from .stats import attach


def prepare(threads: int = 1, device: str = "cpu"):
    """With one thread sums have one order, and a second run gives the same bits."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=device != "cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what CUDA needs for that
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)


def settle(module: torch.nn.Module):
    """Copies weights to fresh memory: a file's offsets are unaligned, and BLAS rounds differently there."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()


def load(model, compute: str = "float32", device: str = "cpu", described: bool = True):
    """A pipeline, from a folder or by its hub id, and the name of its family. Unless it must be described, that may be None."""
    if not os.path.isdir(model) and (os.path.exists(model) or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(model))):
        raise SystemExit(f"{model}: expected a folder in the layout of diffusers, or owner/name on the hub")
    try:
        if index := modular.index_of(model):
            pipe = modular.load(model, index, FAMILIES, getattr(torch, compute))
        else:
            pipe = diffusers.DiffusionPipeline.from_pretrained(model, dtype=getattr(torch, compute))
    except OSError as e:
        if e.filename:
            raise
        raise SystemExit(f"{model}: {str(e).splitlines()[0]}") from e
    family = family_of(pipe, described)
    if family:
        if type(pipe) is not FAMILIES[family].pipeline:  # one for other inputs
            pipe = inpaint.recast(pipe, FAMILIES[family].pipeline)
        FAMILIES[family].prepare(pipe)
    quiet(pipe)
    for part in modules_of(pipe).values():
        settle(part)
    return pipe.to(device), family


def quiet(pipe):
    if modular.is_modular(type(pipe)):
        modular.quiet(pipe)
    else:
        pipe.set_progress_bar_config(disable=True)


def modules_of(pipe) -> dict:
    return {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}


def describe(command: str, **settings) -> dict:
    return {"command": command, **settings, "versions": runs.versions()}


def wrap(owner, method: str, before=None, after=None):
    """Observes one bound method of one object. What before or after return takes the place of the first argument or of
    the result."""
    inner = getattr(owner, method)

    @functools.wraps(inner)  # pipelines look at the parameters of their scheduler's methods
    def observed(*args, **kwargs):
        if before and (first := before(*args, **kwargs)) is not None:
            args = (first, *args[1:])
        result = inner(*args, **kwargs)
        if after and (other := after(result)) is not None:
            return other
        return result

    setattr(owner, method, observed)


def pipeline(
    model: str, out: Path | None, prompt, negative_prompt, steps, guidance, seed, height, width, max_sequence_length, taps,
    picture: Path | None = None, image_strength: float | None = None, references: list[Path] | None = None,
    scheduler: str | None = None,
    compute: str = "float32", device: str = "cpu", threads: int = 1, memory: int = MEMORY, log_dir: Path | None = None,
    sample: int = 0, stats=(), loras=(), loads=(), unchecked: bool = False,
    step_cache: str | None = None, mask: Path | None = None, mask_crop: int | None = None, sample_posterior: bool = False,
    **cfg,
):  # fmt: skip
    """Records one generation, from initial latents that are drawn here, or from an image and such latents.

    For the images see inpaint.Pictures. It goes into the folder out, or else is the latest run of the reference in
    log_dir. cfg has arguments of Family.cfg. taps are globs of the tensors to keep, stats of those to describe; taps are everything
    unless others are given. loras are pairs of file and scale, loads the tensors to replace (see replace.py).
    """
    given = replace.Replacements(loads, log_dir)
    images = Pictures(picture, image_strength, references, mask, mask_crop, sample_posterior)
    pipe, name, family = opened(model, negative_prompt, images, scheduler, compute, device, threads, loras, cfg)
    modules = names_of(pipe)
    given.check(modules)
    if family.bare and "latents.init" in given.sources:
        raise SystemExit(f"--load latents.init: {type(pipe).__name__} draws its own, since no module in families describes it")
    for option, globs in (("taps", taps or ()), ("stats", stats)):
        check_globs(option, globs, modules)
    taps = taps or ([] if stats else ["*"])
    run = None if out else runs.Run(log_dir)
    record = Recorder(out, taps, sample, memory, run, keep=bool(taps), given=given)
    with run or nullcontext(), record:
        record.taps.unwanted += family.untapped
        attach(record, stats, family.untapped)
        settings = dict(
            model=os.path.abspath(model) if run and os.path.isdir(model) else str(model), prompt=prompt,
            negative_prompt=negative_prompt, steps=steps_of(pipe, steps), guidance=guidance, seed=seed, height=height, width=width,
            max_sequence_length=max_sequence_length, compute=compute, **given_only(cfg),
        )  # fmt: skip
        if step_cache:
            settings["step_cache"] = step_cache
        more = {k: v for k, v, usual in (("device", device, "cpu"), ("threads", threads, 1)) if v != usual}
        more |= options(run, sample, stats, loras, given)
        if run:
            more |= run.settings() | {"device": device, "threads": threads}
            run.begin({"command": "dump", "family": name, **settings, "taps": taps, **more})
        image, tokens, generated = generate(
            pipe, family, record, settings, images, scheduler, run, out, unchecked
        )
        if device.startswith("cuda"):
            more["device_name"] = torch.cuda.get_device_name(device)
        if run:
            image.save(run.folder / "images" / "image.png")
        record.finish(
            describe(
                "dump", family=name, pipeline=generated.pop("pipeline"), **settings, tokens=tokens, taps=taps,
                **generated, **more,
            ),
        )  # fmt: skip
        for option, globs in (("taps", record.taps), *((o.option, t) for t, o in record.observers)):
            report_unmatched(option, globs, record.seen)
    if run:
        print(run.folder)
    given.end(record.seen)


def opened(model, negative_prompt, images: Pictures, scheduler, compute, device, threads, loras, cfg=None):
    """Loads what a generation needs: the pipeline, the name of its family, and the family. Refuses what it cannot do."""
    prepare(threads, device)
    pipe, name = load(model, compute, device, described=False)
    family = FAMILIES[name] if name else bare(pipe)
    images.check(name or type(pipe).__name__, family, scheduler)
    if negative_prompt is not None and not family.negative_prompt:
        raise SystemExit(f"{name} has no negative prompt of one's own")
    if foreign := given_only(cfg or {}).keys() - family.cfg.keys():
        raise SystemExit(f"{name} has no {', '.join(sorted(foreign))}")
    adapters.apply(pipe, loras)
    if scheduler:
        pipe.scheduler = schedules.scheduler_of(scheduler, pipe.scheduler.config)
    return pipe, name, family


def given_only(cfg: dict) -> dict:
    return {name: value for name, value in cfg.items() if value is not None}


def steps_of(pipe, steps: int) -> int:
    """Returns the number of steps that a pipeline runs: a distilled model's sample_sigmas decide it, whatever it is asked for."""
    own = len(pipe.config.get("sample_sigmas") or ()) or steps
    if own != steps:
        print(f"diffusers ignores --steps {steps}: the model's sample_sigmas are {own} steps", file=sys.stderr)
    return own


BARE = (
    "no module in families describes {}: modules and values are recorded as it has them, latents without unpacking. Missing: "
    "prompt.* (the transformer's inputs have the embeddings), images to begin with, checks of the text encoders. gomflux parity "
    "run compares the autoencoder, parity diff and tensors diff what has the same name (docs/adding-a-family.md)"
)


def generate(pipe, family, record, settings, images: Pictures, scheduler, run, out, unchecked, around=None):
    """Runs the pipeline, inside the context around. Returns its image, the prompts' lengths, and what is to be recorded
    besides the settings."""
    height, width, steps = settings["height"], settings["width"], settings["steps"]
    pipe = images.pipeline(pipe, family)
    quiet(pipe)
    record.step = first = images.first_step(steps)
    checks = check.Checks(pipe, family, unchecked)
    blends = bool(images.mask) and not family.fills
    tokens = observe_pipeline(pipe, family, record, first, height, width, checks, blends)

    if family.bare:
        print(BARE.format(type(pipe).__name__), file=sys.stderr)
    generator = torch.Generator().manual_seed(settings["seed"])  # of the CPU, whose noise is the same everywhere
    more = {"pipeline": type(pipe).__name__}
    if images.picture:
        more |= {"picture": bring(images.picture, run, out), "image_strength": images.image_strength, "first_step": first}
    elif scheduler:
        more |= {"scheduler": scheduler}
    if images.mask:
        more |= {"mask": bring(images.mask, run, out)}
        more |= {} if images.mask_crop is None else {"mask_crop": images.mask_crop}
    if images.sample_posterior:
        more["posterior"] = "sample"
    if images.references:
        more["references"] = [bring(file, run, out) for file in images.references]
    if not family.one_batch:
        more["passes"] = "calls"
    record.begin(more | ({"pasted": inpaint.pastes(pipe, family, images)} if images.mask else {}))
    start = start_of(pipe, family, record, images, generator, height, width)
    with (
        family.running(pipe),
        stepcache.applied(pipe, settings.get("step_cache"), record, more),
        own_sigmas(pipe) if scheduler == schedules.HEUN else nullcontext(),
        inner.observe(record, modules_of(pipe), family.unrotated),
        around or nullcontext(),
    ):
        image = pipe(
            prompt=settings["prompt"],
            num_inference_steps=steps,
            height=height,
            width=width,
            **accepted(pipe, max_sequence_length=settings["max_sequence_length"]),
            **called(pipe, family, settings),
            **{name: settings[name] for name in family.cfg if name in settings},
            **start,
        ).images[0]
    if (pipe.scheduler.begin_index or 0) != first and not family.bare:  # None is the first
        raise SystemExit(f"diffusers begins at step {pipe.scheduler.begin_index} of {steps}, not at {first}")
    image = inpaint.finished(pipe, record, images, image, height, width)
    if checks.problems:
        more["problems"] = checks.problems
    return image, tokens, more


def called(pipe, family, settings) -> dict:
    """Returns the arguments of a pipeline's call for its guidance."""
    arguments = family.call(pipe, settings["guidance"], settings["negative_prompt"])
    if not family.bare:
        return arguments
    arguments["use_resolution_binning"] = False  # another size than the one that is asked for
    return accepted(pipe, **{k: v for k, v in arguments.items() if v is not None})


def accepted(pipe, **arguments) -> dict:
    """Returns those of the arguments that a pipeline has. Family.running may wrap its call."""
    known = inspect.signature(pipe.__call__).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return {name: value for name, value in arguments.items() if any_name or name in known}


def start_of(pipe, family, record, images: Pictures, generator, height: int, width: int) -> dict:
    """Returns the arguments that a pipeline begins with, latents or images, and lets their values be recorded."""
    if family.bare:
        return {"generator": generator}
    if not images.picture:
        latents = torch.randn(family.latents(pipe, height, width), generator=generator)
        latents = record.replaced("latents.init", latents)
        record.put("latents.init", latents)
        start = {"latents": family.pack(pipe, latents)}
        if images.references:
            observe_references(pipe, record)
            start["image"] = editable(family, images.references)
        return start
    observe_start(pipe, record, images)
    if not images.sample_posterior:  # nothing else is drawn before the noise
        noise = torch.randn(family.latents(pipe, height, width), generator=generator.clone_state())
        record.put_early("latents.init", noise.to(pipe.transformer.dtype))
    if not images.mask:
        # The pipeline itself may only round an image's sides down, with the same resize.
        image = pipe.image_processor.resize(Image.open(images.picture).convert("RGB"), height, width)
        return {"image": image, "strength": images.strength, "generator": generator}
    observe_condition(pipe, record)
    inpaint.observe(pipe, family, record, height, width)

    def blended(pipe, i, t, values):
        values["latents"] = stepped(pipe, family, record, "latents", values["latents"], height, width)
        record.next_step()
        return values

    given = inpaint.arguments(pipe, family, images, height, width) | {"generator": generator}
    return given if family.fills else given | {"callback_on_step_end": blended}


def options(run, sample: int, stats, loras, given) -> dict:
    """The settings that only some runs have."""
    more = {"sample": sample} if sample else {}
    if stats:
        more["stats_globs"] = list(stats)
    if loras:
        where = os.path.abspath if run else str
        more["loras"] = [{"file": where(file), "scale": scale} for file, scale in loras]
        more["peft"] = runs.versions(("peft",))["peft"]
    if given:
        more["replaced"] = given.sources
    return more


def names_of(pipe) -> set[str]:
    """The names of all modules, without those that only LoRAs have added."""
    found = set()
    for component, module in modules_of(pipe).items():
        skipped = adapters.inside(module)
        paths = (path for path, _ in module.named_modules() if not (skipped and path.startswith(skipped)))
        found |= {f"{component}.{path}" if path else component for path in paths}
    return found


# What the names of values of the pipeline begin with.
VALUES = ("prompt.", "negative.", "sigmas", "timesteps", "latents", "image", "vae.encode.", "vae.decode.", "vision.",
          "noise_pred", "fill.mask")  # fmt: skip


def check_globs(option: str, globs, modules: set[str]):
    """Ends the program if a glob begins like no name at all."""
    for glob in globs:
        if hint := impossible(glob.removeprefix("!"), modules):
            raise SystemExit(f"--{option} {glob.removeprefix('!')}: no module or value of that name (near: {hint})")


def impossible(glob: str, modules: set[str]) -> str:
    """Names that are near to a glob that begins like no name at all; nothing for another."""
    literal = re.split(r"[*?\[@#:]", glob)[0]
    exact = literal == glob or glob[len(literal)] in "@#:"
    if exact and literal in modules or any(v.startswith(literal) or literal.startswith(v) for v in VALUES):
        return ""
    if not exact and any(m.startswith(literal) for m in modules):
        return ""
    return near(literal, {*modules, *VALUES})


def report_unmatched(option: str, taps: Taps, seen: set[str]):
    for glob in taps.without_match(seen):
        print(f"warning: --{option} {glob} matches no tensor of this run (near: {near(glob, seen)})", file=sys.stderr)


def editable(family: Family, files: list[Path]):
    """Pictures as the family's pipeline takes them."""
    pictures = [Image.open(file) for file in files]
    pictures = [p if p.mode == "RGBA" and family.transparent else p.convert("RGB") for p in pictures]
    return pictures if max(family.references) > 1 else pictures[0]


def observe_pipeline(
    pipe, family: Family, record: Recorder, first: int, height: int, width: int, checks: check.Checks, blends: bool = False
) -> dict:
    """Records the values of a pipeline, and its modules. Returns the prompts' lengths, once they are known. If a pipeline
    blends latents with those of an image after each step of the scheduler, the step is over only after that."""
    tokens = {}

    def before_text_encoder(component, encoder):
        def hook(module, args, kwargs):
            kind = "negative" if f"prompt{encoder.suffix}" in tokens else "prompt"
            ids, mask = args[0] if args else kwargs[encoder.ids], kwargs.get("attention_mask")
            if mask is not None:
                record.put(f"{kind}.attention_mask{encoder.suffix}", mask)
            record.put(f"{kind}.input_ids{encoder.suffix}", ids)
            if kind == "prompt" and kwargs.get("pixel_values") is not None:
                record.put("vision.pixel_values", kwargs["pixel_values"])
                record.put("vision.grid_thw", kwargs["image_grid_thw"])
            padded, valid = ids.shape[1], encoder.valid(module.config, ids, mask)
            tokens[kind + encoder.suffix] = {"padded": padded, "valid": valid}
            checks.before_text_encoder(component, module, ids, kwargs)
            record.crop[component] = padded, encoder.kept(module.config, ids, mask) if encoder.kept else valid

        return hook

    def before_transformer(module, args, kwargs):
        # one batch of both prompts, or a call for each
        call = record.calls.get(family.stepped[0], -1) + 1
        for which, values in zip(("prompt", "negative")[call:], family.prompts(args, kwargs)):
            for name, value in values.items():
                new = record.replaced(f"{which}.{name}", value)
                if new is not value:
                    value.copy_(new)  # for all steps
                if record.step == first:
                    record.put(f"{which}.{name}", value)
                    if new is value:
                        checks.embeddings(f"{which}.{name}", value)
        if record.step == first and not call:
            for name, values in schedule():
                record.put(name, values)

    def before_step(prediction, timestep=None, sample=None, **_):
        if family.bare and record.step == first:
            record.put("latents.init", sample)
        return stepped(pipe, family, record, "noise_pred", prediction, height, width)

    def after_step(result):
        name = "latents.stepped" if blends else "latents"
        found = stepped(pipe, family, record, name, result[0], height, width)
        if not blends:
            record.next_step()
        return None if found is result[0] else (found, *result[1:])

    def schedule_set(_):
        for name, values in schedule():
            record.put_early(name, values)

    def schedule():
        found = ((name, getattr(pipe.scheduler, name, None)) for name in ("sigmas", "timesteps"))
        return [(name, values) for name, values in found if values is not None]

    parts = modules_of(pipe)
    observe_encodings(pipe, family, record)
    wrap(pipe.scheduler, "set_timesteps", after=schedule_set)
    for component, encoder in family.text_encoders.items():
        parts[component].register_forward_pre_hook(before_text_encoder(component, encoder), with_kwargs=True)
    getattr(pipe, family.stepped[0]).register_forward_pre_hook(before_transformer, with_kwargs=True)
    wrap(pipe.scheduler, "step", before_step, after_step)
    if hasattr(getattr(pipe, "vae", None), "decode"):
        observe_decode(pipe.vae, record)
    for name, part in parts.items():
        record.watch(name, part, name in family.stepped, adapters.inside(part))
        checks.watch(name, part)
    if record.debugger:
        record.debugger.session.watched_all()
    return tokens


def stepped(pipe, family: Family, record: Recorder, what: str, packed, height: int, width: int):
    """Records latents or a prediction, as pictures. Returns what the scheduler steps with."""

    def unpack(x):
        return family.unpack(pipe, x, height, width)

    value, name = unpack(packed), f"{what}@{record.step}"
    new = record.replaced(name, value)
    record.put(name, new)
    if new is value:
        return packed
    at = unpack(torch.arange(packed.numel(), device=packed.device).reshape(packed.shape))
    return packed.flatten().index_copy(0, at.flatten(), new.flatten()).reshape(packed.shape)


def observe_encodings(pipe, family: Family, record: Recorder):
    """Puts prompts' embeddings as soon as they are computed."""
    calls = Counter()

    def observe(method, values):
        def encoded(result):
            which = "negative" if calls[method] else "prompt"
            calls[method] += 1
            for name, value in values(result).items():
                record.put_early(f"{which}.{name}", value)

        wrap(pipe, method, after=encoded)

    if not modular.is_modular(type(pipe)):
        for method, values in family.encodings.items():
            observe(method, values)
        return
    for path, values in family.encodings.items():

        def encoded(state, values=values):
            for which, of_prompt in zip(("prompt", "negative"), values(state)):
                for name, value in of_prompt.items():
                    record.put_early(f"{which}.{name}", value)

        modular.observe(pipe, path, encoded)
    for path, values in family.states.items():

        def ran(state, values=values):
            for name, value in values(state).items():
                for v in value if isinstance(value, list) else [value]:
                    record.put_next(name, v)

        modular.observe(pipe, path, ran)


def bring(picture: Path, run, out: Path | None) -> str:
    """Returns the image's name for settings.json: a file in the run's folder, or next to a dump's, if there is one."""
    if run:
        return runs.copy_into(picture, run.folder / "images" / "given").relative_to(run.folder).as_posix()
    if out and picture.resolve().parent != out.resolve().parent:
        runs.copy_into(picture, out)
    return picture.name


def own_sigmas(pipe):
    """Lets the scheduler space its sigmas, as Heun's does: the pipeline insists on sigmas that it does not take."""

    def retrieve_timesteps(scheduler, num_inference_steps, device, sigmas, mu):
        scheduler.set_timesteps(num_inference_steps, device)
        return scheduler.timesteps, num_inference_steps

    return mock.patch.object(sys.modules[type(pipe).__module__], "retrieve_timesteps", retrieve_timesteps)


def observe_start(pipe, record, images: Pictures):
    """Records the beginning of image-to-image and of inpainting.

    diffusers draws from the encoder's distribution, of which we take the mean, unless the draw is to be recorded.
    """
    begun = []

    def before_scale_noise(clean, timestep, noise):
        if not begun:  # inpainting calls it after each step too
            record.put("latents.image", of_one_frame(clean))
            record.put("latents.init", of_one_frame(noise))

    def after_scale_noise(latents):
        if not begun:
            record.put("latents.start", of_one_frame(latents))
        begun.append(True)

    def of_one_frame(latents):  # which is before the channels, or after them
        return latents.squeeze(1 if latents.shape[1] == 1 else 2) if latents.dim() == 5 else latents

    def as_tuple(module, args, output):  # the text pipeline asks for one, and so the names are those of one
        return output if isinstance(output, tuple) else output.to_tuple()

    observe_encode(pipe, record)
    if not images.sample_posterior:
        take_means(pipe)
    pipe.transformer.register_forward_hook(as_tuple, prepend=True)
    wrap(pipe.scheduler, "scale_noise", before_scale_noise, after_scale_noise)


def take_means(pipe):
    """Has a pipeline take the means of the encoder's distributions, without drawing from them."""

    def take_mean(result):
        mean = result.latent_dist.mode()
        result.latent_dist.sample = lambda generator: mean

    wrap(pipe.vae, "encode", after=take_mean)


def observe_references(pipe, record):
    """Records how reference images become latents, and the text encoder's inputs of them."""
    observe_encode(pipe, record)
    if not modular.is_modular(type(pipe)):  # of those the family's states have the latents
        wrap(pipe, "_encode_vae_image", after=lambda latents: record.put_next("latents.reference", still(latents)))
    observe_condition(pipe, record)


def observe_condition(pipe, record):
    """Records the images that a text encoder sees."""

    def before_prompt(prompt, image, *_, **__):
        if "image.condition" not in record.calls:  # a negative prompt has the same ones
            for shown in image if isinstance(image, list) else [image]:
                record.put_next("image.condition", torch.from_numpy(np.array(over_white(shown))))

    if "image" in inspect.signature(getattr(pipe, "_get_qwen_prompt_embeds", observe_condition)).parameters:
        wrap(pipe, "_get_qwen_prompt_embeds", before_prompt)


def over_white(image):
    """An image as text encoders see it: without transparency."""
    if image.mode != "RGBA":
        return image
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def observe_encode(pipe, record):
    """Records images as they are resized or cropped, and their latents."""
    preprocess = pipe.image_processor.preprocess

    def preprocess_contiguous(*args, **kwargs):
        result = preprocess(*args, **kwargs)
        pixels = (result[0] if isinstance(result, tuple) else result).contiguous()  # see encode
        levels = (127.5 * (pixels + 1)).round().to(torch.uint8)
        record.put_next("image.in", levels[0].permute(1, 2, 0))
        record.put_next("vae.encode.in", pixels)
        return (pixels, *result[1:]) if isinstance(result, tuple) else pixels

    pipe.image_processor.preprocess = preprocess_contiguous
    wrap(pipe.vae, "encode", after=lambda result: record.put_next("vae.encode.out", still(result.latent_dist.mode())))


def observe_decode(vae, record):
    def decoding(z, *_, **__):
        value = record.replaced("vae.decode.in", still(z))
        record.put("vae.decode.in", value)
        return value.reshape(z.shape)

    def decoded(result):
        image = still(result[0])
        value = record.replaced("vae.decode.out", image)
        record.put("vae.decode.out", value)
        return None if value is image else (value.reshape(result[0].shape), *result[1:])

    wrap(vae, "decode", decoding, decoded)


def load_vae(folder: Path, compute: str):
    cls = getattr(diffusers, read_json(folder / "vae" / "config.json")["_class_name"])
    vae = cls.from_pretrained(folder / "vae", dtype=torch.float32)
    vae.to(getattr(torch, compute))
    settle(vae)
    scale = 2 ** (len(vae.config.get("block_out_channels") or vae.config.dim_mult) - 1)
    return vae, diffusers.image_processor.VaeImageProcessor(vae_scale_factor=scale)


def framed(vae, x: torch.Tensor) -> torch.Tensor:
    """Returns an image, or its latents, as the autoencoder takes it: autoencoders of videos have an axis of frames."""
    x = x.to(vae.dtype)
    return x.unsqueeze(2) if "temperal_downsample" in vae.config else x


def encode(folder: Path, out: Path, picture: Path, compute: str, taps, sample: int, memory: int = MEMORY):
    """Records the encoding of an image. vae.encode.out is the mode of the distribution, neither scaled nor shifted."""
    prepare()
    vae, processor = load_vae(folder, compute)
    record = Recorder(out, taps, sample, memory, sample_all=True)
    record.watch("vae", vae)
    # The processor returns a channels-last view, and GroupNorm's channels-last kernel is off by 5e-4 at 512x512 in
    # float32.
    pixels = processor.preprocess(Image.open(picture).convert("RGB")).contiguous()
    record.put("vae.encode.in", pixels)
    record.put("vae.encode.out", still(vae.encode(framed(vae, pixels)).latent_dist.mode()))
    record.finish(describe("encode", picture=picture.name, compute=compute, taps=taps, sample=sample))


def decode(
    folder: Path, out: Path, latent: str | None, seed: int, height: int, width: int, compute: str, taps, sample: int,
    memory: int = MEMORY,
):  # fmt: skip
    """Records the decoding of a latent (FILE:KEY of a safetensors file, or normal noise), already unscaled."""
    prepare()
    vae, processor = load_vae(folder, compute)
    record = Recorder(out, taps, sample, memory, sample_all=True)
    record.watch("vae", vae)
    observe_decode(vae, record)
    if latent:
        file, key = latent.rsplit(":", 1)
        with safe_open(file, "pt") as f:
            z = f.get_tensor(key).float()
    else:
        scale = processor.config.vae_scale_factor
        channels = vae.config.get("latent_channels") or vae.config.z_dim
        shape = (1, channels, height // scale, width // scale)
        z = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x = still(vae.decode(framed(vae, z), return_dict=False)[0])
    record.put("image", torch.from_numpy(np.array(processor.postprocess(x.float())[0])))
    settings = dict(latent=latent, seed=seed, height=height, width=width, compute=compute, taps=taps, sample=sample)
    record.finish(describe("decode", **settings))

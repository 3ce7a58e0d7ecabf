"""Makes small random pipelines of diffusers, and records the tensors of diffusers' runs."""

import argparse
import errno
import signal
import sys
from pathlib import Path

from .arguments import MODEL, diffusers_arguments, dump_arguments, generation_arguments, guided, lora_argument
from .arguments import cfg_arguments, looking_arguments, mask_arguments, profile_arguments, prune_arguments, specs_of, tap_arguments
from .files import HEUN, LINEAR


def main(argv=None, signals: bool = True):
    """Runs a command. signals has those that ask to end end it; a debugger handles them itself."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["debug"]:  # without diffusers
        from .debugger import command

        sys.exit(command.main(argv[1:]))
    out = None
    if argv[:1] == ["stream"] and not {"-h", "--help"} & set(argv):
        from . import stream

        out = stream.take_output()  # before a library prints
        stream.end_with_input()
    try:
        execute(argv, out, signals)
    except KeyboardInterrupt:
        if not signals:
            raise
        sys.exit(128 + signal.SIGINT)


def execute(argv, out, signals):
    if (framework := framework_of(argv)) == "mflux":  # without diffusers
        return dump_mflux(argv)
    if framework != "diffusers":
        from . import foreign

        return foreign.dump(**foreign.parse(framework, argv[1:]))
    args = parse_prune(argv[1:]) if argv[:1] == ["prune"] else parse(argv)
    if out:
        args["out"] = out
    # a signal that asks to end is as good as an interrupt: what a run has written is then put in order
    if signals:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        args.pop("run")(**args)
    except OSError as e:
        if not e.filename and e.errno != errno.ENOSPC:
            raise
        raise SystemExit(f"{e.filename or 'writing'}: {e.strerror}") from e


def framework_of(argv) -> str:
    words = [w for word in argv for w in word.split("=", 1)] if argv[:1] == ["dump"] else []
    return next((w for flag, w in zip(words, words[1:]) if flag == "--framework"), "diffusers")


def dump_mflux(argv):
    from . import mflux_side

    parser = argparse.ArgumentParser(prog="gomflux-reference")
    c = parser.add_subparsers(required=True).add_parser("dump", help="record a generation")
    dump_arguments(c, ("linear", "flow_match_euler_discrete"))
    c.add_argument("--rng", choices=("mlx", "torch"), default="mlx", help="the generator of the initial noise")
    args = guided(vars(parser.parse_args(argv)))
    del args["framework"]
    mflux_side.pipeline(**args)


def parse_prune(argv) -> dict:  # without diffusers, which other processes import
    from . import prune

    parser = argparse.ArgumentParser(prog="gomflux-reference prune", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    prune_arguments(parser)
    args = guided(vars(parser.parse_args(argv)))
    return args | {"run": prune.make, "loras": specs_of(args["loras"])}


def parse(argv=None) -> dict:
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    from . import again, check_model, debug, dump, families, goldens
    from . import live, masks, noise, original, schedules, selftest, tiny

    parser = argparse.ArgumentParser(prog="gomflux-reference", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, run, help):
        c = commands.add_parser(name, help=help, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        c.set_defaults(run=run)
        return c

    def recording(c):
        tap_arguments(c)
        c.add_argument("--compute", choices=("float32", "float64"), default="float32")

    c = command("tiny", make_tiny, "make a small random pipeline")
    c.add_argument("folder", type=Path)
    c.add_argument("--family", choices=sorted(families.FAMILIES), default="z-image")
    c.add_argument("--seed", type=int, default=0)
    c.add_argument("--kind", choices=("ordinary", "small-activations"), default="ordinary")
    c.add_argument("--layout", choices=("hub", "v5"), default="hub")
    c.add_argument("--shards", type=int, default=1, help="files per transformer and text encoder")
    c.add_argument("--dtype", choices=sorted(tiny.DTYPES), default="bf16")
    c.add_argument("--only", nargs="+", default=[], metavar="COMPONENT", help="write only these components")
    c.add_argument("--full", action="store_true", help="the published model's dimensions (for measuring; gigabytes)")
    c.add_argument("--device", default="cpu", help="where random weights are drawn; cuda is faster and draws other ones")
    group = c.add_argument_group("dimensions")
    dims = {}
    for family, f in families.FAMILIES.items():
        for name, default in f.dims.items():
            dims.setdefault(name, {}).setdefault(default, []).append(family)
    for name, defaults in sorted(dims.items()):
        first = next(iter(defaults))
        many = isinstance(first, tuple)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(first[0] if many else first),
            nargs="+" if many else None,
            default=argparse.SUPPRESS,
            help="default " + "; ".join(f"{default} ({', '.join(whose)})" for default, whose in defaults.items()),
        )

    c = command("dump", dump_diffusers, "record a generation")
    diffusers_arguments(c)
    commands.add_parser("debug", help="stop a dump or a script at tensors and lines (debug --help)", add_help=False)

    profile_arguments(command("profile", profile_diffusers, "report which code of the libraries a generation executes"))

    commands.add_parser("prune", help="copy the code of the libraries that a generation executes", add_help=False)

    c = command("check", check_model.check, "check that a model's libraries compute what it was made for")
    c.add_argument("model", help=MODEL)
    c.add_argument("--compute", choices=("float32", "bfloat16", "float16"), default="float32")

    c = command("stream", stream_diffusers, "send a generation's tensors to standard output, for gomflux parity live")
    c.add_argument("model", help=MODEL)
    generation_arguments(c, (HEUN, LINEAR))
    mask_arguments(c)
    cfg_arguments(c)
    lora_argument(c)
    c.add_argument("--unchecked", action="store_true", help="send it although a check has found a problem")

    c = command("again", again.repeat, "record a run once more, with other taps")
    c.add_argument("folder", type=Path, help="folder of the run, with settings.json")
    c.add_argument("out", type=Path)
    c.add_argument("--model", help="model to run; default: the one in the settings")
    tap_arguments(c)
    looking_arguments(c)

    c = command("encode", dump.encode, "record the encoding of an image")
    c.add_argument("folder", type=Path)
    c.add_argument("out", type=Path)
    c.add_argument("--picture", type=Path, required=True)
    recording(c)

    c = command("decode", dump.decode, "record the decoding of latents")
    c.add_argument("folder", type=Path)
    c.add_argument("out", type=Path)
    c.add_argument("--latent", metavar="FILE:KEY", help="default: normal noise of --seed, --height, --width")
    c.add_argument("--seed", type=int, default=0)
    c.add_argument("--height", type=int, default=64)
    c.add_argument("--width", type=int, default=64)
    recording(c)

    c = command("caption", write_caption, "write the text with which Qwen-Image-Layered describes an image without a prompt")
    c.add_argument("folder", type=Path)
    c.add_argument("out", type=Path)
    c.add_argument("--picture", type=Path, required=True)

    c = command("boxes", write_boxes, "write what diffusers makes of prompts with boxes for FLUX.3 (models/family/testdata/boxes.json)")
    c.add_argument("out", type=Path)

    c = command("convert", debug.convert, "convert a .pt file to .safetensors")
    c.add_argument("source", type=Path, help="written by torch.save: a tensor, or lists and dicts of tensors")
    c.add_argument("out", type=Path, nargs="?", help="default: next to it, with the other extension")

    c = command("noise", noise.write, "write PyTorch's normal noise for some seeds")
    c.add_argument("file", type=Path)

    c = command("schedules", schedules.make, "write the schedulers' goldens (scheduler/testdata/schedules.json)")
    c.add_argument("out", type=Path)

    c = command("masks", masks.make, "write what diffusers makes of images and masks (models/inpaint/testdata)")
    c.add_argument("out", type=Path)

    c = command("original", original.goldens, "list the tensors of small models under their authors' names (models/component/testdata/original)")
    c.add_argument("models", type=Path, help="models/testdata")
    c.add_argument("folder", type=Path)

    c = command("loras", make_loras, "write LoRAs, and the weights of diffusers and PEFT with them (models/lora/testdata)")
    c.add_argument("out", type=Path)

    c = command("parity", live.check, "compare gomflux with diffusers on new random models of every family")
    c.add_argument("gomflux", type=Path, help="the program")
    c.add_argument("--seed", type=int, help="seed of models and settings; default: a new one, which is printed")
    c.add_argument("--keep", type=Path, metavar="FOLDER", help="keep models, dumps and images there")
    names = list(families.FAMILIES)
    c.add_argument("--families", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    c.add_argument("--models", type=int, default=2, metavar="N", help="models of each family")
    c.add_argument("--pictures", type=int, default=6, metavar="N", help="images of each family, from prompt and seed alone")
    c.add_argument(
        "--published", default="*", metavar="GLOB",
        help="folders of published small files in ../shared/real or GOMFLUX_REAL, if there are any; '' leaves them out",
    )  # fmt: skip
    c.add_argument(
        "--searches", type=int, default=len(families.MODULES), metavar="N",
        help="families of which parity bisect and live search a fault; at most one of each module",
    )  # fmt: skip

    c = command("mflux", check_mflux, "compare the folders that gomflux and mflux save, on small models")
    c.add_argument("gomflux", type=Path, help="the program")
    c.add_argument("--seed", type=int, default=1, help="seed of the models")
    c.add_argument("--bits", type=int, nargs="+", default=[3, 4, 5, 6, 8], choices=(3, 4, 5, 6, 8), metavar="N")
    c.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the models and their saved files there")
    c.add_argument("--families", nargs="+", choices=names, metavar="NAME", help="families to compare; default: all that mflux has")

    c = command("comfy-golden", make_comfy_golden, "write matrices that ComfyUI quantized (internal/checkpoint/testdata/comfy)")
    c.add_argument("folder", type=Path)

    c = command("upscaler-golden", make_upscaler_golden, "write what networks that enlarge images compute (upscaler/testdata)")
    c.add_argument("folder", type=Path)

    c = command("seedvr2-golden", make_seedvr2_golden, "write what SeedVR2's makers' code computes (testdata of three packages)")
    c.add_argument("folder", type=Path, help="the project")
    c.add_argument("--source", type=Path, required=True, help="folder of the makers' repository; cloned into it if there is none")

    c = command("chat", make_chat_golden, "render published chat templates (textgen/testdata)")
    c.add_argument("folder", type=Path)

    c = command("mflux-golden", make_mflux_golden, "write parts of models that mflux saved (models/component/testdata/mflux)")
    c.add_argument("folder", type=Path)

    for name, run, help in (
        ("goldens", make_goldens, "remake models/testdata"),
        ("selftest", selftest.check, "remake the goldens elsewhere and compare them, and try everything else"),
    ):
        c = command(name, run, help)
        c.add_argument("root", type=Path, nargs="?", default=goldens.ROOT)
    c.add_argument("--quick", action="store_true", help="only the tests that compare no bytes, as make parity does")
    c.add_argument("--brief", action="store_true", help="of these, only the tests of CI")
    c.add_argument("--only", nargs="+", choices=selftest.names(), metavar="TEST", help=", ".join(selftest.names()))

    args = guided(vars(parser.parse_args(argv)))
    del args["command"]
    return args


def dump_diffusers(framework, loras, **args):
    from . import dump

    dump.pipeline(loras=specs_of(loras), **args)


def profile_diffusers(loras, **args):
    from . import profile

    profile.run(loras=specs_of(loras), **args)


def stream_diffusers(loras, **args):
    from . import stream

    stream.run(loras=specs_of(loras), **args)


def write_caption(**args):
    from . import caption

    caption.write(**args)


def write_boxes(out):
    from . import boxes

    boxes.write(out)


def make_loras(out):
    try:
        from . import lora
    except ModuleNotFoundError as e:
        raise SystemExit(f"{e} (the command loras needs scripts/reference/requirements-lora.txt)") from None
    lora.make(out)


def make_goldens(root):
    from . import goldens

    goldens.make(root, main)


def check_mflux(**args):
    from . import mflux_saved

    mflux_saved.check(**args)


def make_chat_golden(folder, **_):
    from . import chat

    chat.main(folder)


def make_comfy_golden(folder):
    from . import comfy

    comfy.golden(folder)


def make_upscaler_golden(folder):
    from . import upscaler

    upscaler.golden(folder)


def make_seedvr2_golden(folder, source):
    from . import seedvr2

    seedvr2.golden(folder, source)


def make_mflux_golden(folder):
    from . import mflux_saved

    mflux_saved.golden(folder)


def make_tiny(folder, family, seed, kind, layout, shards, dtype, only, full, device, **dims):
    from . import families, tiny

    dims = {k: tuple(v) if isinstance(v, list) else v for k, v in dims.items()}
    if unknown := dims.keys() - families.FAMILIES[family].dims:
        raise SystemExit(f"{family} has no dimension {', '.join(sorted(unknown))}")
    tiny.make(folder, family, seed, kind, layout, shards, dtype, dims, only, full, device)


if __name__ == "__main__":
    main()

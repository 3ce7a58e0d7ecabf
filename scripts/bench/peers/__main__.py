"""Compares the speed of gomflux with mflux's and diffusers' on the same shapes, with random weights."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from . import __doc__ as description
from . import compare, process, tables, text, timing
from .cases import DTYPES, ENGINES, FAMILIES, PARTS, Case, Unsupported

SIZES = (512, 1024, 2048)
EDITED = ("flux2-klein-4b", "flux2-klein-9b")  # families that can edit, too
GUIDED = ("qwen-image",)
QUANTIZED = ("z-image", "flux1-schnell", "qwen-image", "krea-2", "qwen-image-2.1")


def published(sizes: tuple) -> list:
    """Every published family at some sizes: edits too, quantized, and with guidance where that is a second pass."""
    cases = []
    for name, spec in FAMILIES.items():
        if not spec.random:
            continue
        cases += [Case(name, size) for size in sizes]
        if name in GUIDED:
            cases += [Case(name, size, guided=True) for size in sizes]
        if name in EDITED:
            cases += [Case(name, size, references=1) for size in sizes]
        if name in QUANTIZED:
            cases.append(Case(name, 1024, quantize=4))
    return cases


PRESETS = {
    "published": lambda: published(SIZES),
    "1024": lambda: published((1024,)),
    "cpu": lambda: [Case("z-image-small", 512, "float32", tokens=64)],
}


def main(argv=None) -> int:
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, OSError, Unsupported) as e:
        print(f"peers: {e}", file=sys.stderr)
        return process.UNSUPPORTED if isinstance(e, Unsupported) else 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="peers", description=description)
    commands = top.add_subparsers(required=True)

    c = commands.add_parser("measure", help="measure one part of one case with one engine, in this process")
    c.set_defaults(run=measure)
    c.add_argument("--engine", choices=[e for e in ENGINES if e != compare.BASE], required=True)
    c.add_argument("--part", choices=PARTS, required=True)
    c.add_argument("--family", choices=FAMILIES, required=True)
    c.add_argument("--size", type=int, default=1024, help="height and width in pixels (default: 1024)")
    c.add_argument("--repeats", type=positive, default=10, help="calls to time, or fewer if they take long (default: 10)")
    case_arguments(c)

    c = commands.add_parser("compare", help="measure cases with several engines in turn, and print ratios")
    c.set_defaults(run=run_comparison)
    c.add_argument(
        "--engines", nargs="+", choices=ENGINES, metavar="ENGINE",
        help=f"{', '.join(ENGINES)} (default: those that are installed)",
    )  # fmt: skip
    c.add_argument(
        "--preset", choices=PRESETS,
        help="instead of --family and --size: every published model at three sizes, at one, or a small model in float32",
    )  # fmt: skip
    c.add_argument("--family", nargs="+", choices=FAMILIES, metavar="FAMILY", help=", ".join(FAMILIES))
    c.add_argument("--size", nargs="+", type=int, default=[1024], help="heights and widths in pixels (default: 1024)")
    c.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: both")
    c.add_argument("--rounds", type=positive, default=2, help="processes of each engine (default: 2: A B B A)")
    c.add_argument("--repeats", type=positive, default=10, help="calls that a process times (default: 10)")
    c.add_argument("--gomflux", default="bin/gomflux", help="the program (default: bin/gomflux)")
    c.add_argument("--timeout", type=positive, metavar="SECONDS", help="of a process")
    c.add_argument("--budget", type=positive, metavar="SECONDS", help="of the comparison: no process starts that would not fit")
    c.add_argument("--output", type=Path, metavar="FILE", help="write the results to FILE as JSON, after each process")
    case_arguments(c)
    table_arguments(c)

    c = commands.add_parser("table", help="print the results in files of compare --output")
    c.set_defaults(run=print_files)
    c.add_argument("files", nargs="+", type=Path)
    table_arguments(c)

    c = commands.add_parser("configs", help="write the configs of a model that gomflux bench --random does not know")
    c.set_defaults(run=write_configs)
    c.add_argument("folder", type=Path)
    c.add_argument("--family", choices=FAMILIES, required=True)
    c.add_argument("--tiny", action="store_true")

    c = commands.add_parser("text", help="compare gomflux bench --text-tokens with transformers' generate and mlx-lm, in turn")
    c.set_defaults(run=text.compare)
    c.add_argument("--engines", nargs="+", choices=text.ENGINES, metavar="ENGINE", help=f"{', '.join(text.ENGINES)} (default: all)")
    c.add_argument("--rounds", type=positive, default=2, help="processes of each engine (default: 2: A B B A)")
    c.add_argument("--gomflux", default="bin/gomflux", help="the program (default: bin/gomflux)")
    c.add_argument("--quantize", type=int, choices=(3, 4, 5, 6, 8), help="bits of gomflux's weights")
    c.add_argument("--timeout", type=positive, metavar="SECONDS", help="of a process")
    text_arguments(c)

    c = commands.add_parser("text-peer", help="measure transformers' generate or mlx-lm, in this process")
    c.set_defaults(run=text.peer)
    c.add_argument("engine", choices=[e for e in text.ENGINES if e != "gomflux"])
    text_arguments(c)

    c = commands.add_parser("selftest", help="run the tests of this package")
    c.set_defaults(run=selftest)
    return top


def case_arguments(c):
    c.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    c.add_argument("--tokens", type=positive, help="tokens of the prompt (default: the family's)")
    c.add_argument("--references", type=int, help="number of reference images (default: as few as the family takes)")
    c.add_argument("--guided", action="store_true", help="two passes a step, for the prompt and the negative prompt")
    c.add_argument("--quantize", type=int, choices=(3, 4, 5, 6, 8), help="bits of the transformer's weights")
    c.add_argument("--device", choices=("cpu", "cuda", "mps"), help="default: a GPU if there is one")
    c.add_argument("--tiny", action="store_true", help="small dimensions, to try a command")
    c.add_argument("--inpaint", action="store_true", help="inpaint half of an image")


def text_arguments(c):
    c.add_argument("--model", choices=text.MODELS, default="qwen3-4b", help="default: qwen3-4b")
    c.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    c.add_argument("--tokens", type=positive, default=512, help="tokens of the prompt (default: 512)")
    c.add_argument("--text-tokens", type=positive, default=512, help="tokens to write, at least 2 (default: 512)")
    c.add_argument("--repeats", type=positive, default=3, help="times that a process writes them (default: 3)")
    c.add_argument("--device", choices=("cpu", "cuda", "mps"), help="default: a GPU if there is one")


def table_arguments(c):
    c.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="default: text")
    c.add_argument(
        "--write", type=Path, metavar="PAGE",
        help="replace the tables between a page's lines <!-- peers NAME --> and <!-- end of peers NAME -->",
    )  # fmt: skip
    c.add_argument("--name", default="gpu", help="NAME in these lines (default: gpu)")


def positive(s: str) -> int:
    if (n := int(s)) < 1:
        raise argparse.ArgumentTypeError(f"{s} must be positive")
    return n


def case_of(args, family: str, size: int) -> Case:
    return Case(family, size, args.dtype, args.tokens, args.references, args.guided, args.quantize, args.tiny, args.inpaint)


def measure(args) -> int:
    case = case_of(args, args.family, args.size)
    if args.engine.startswith("mflux"):
        from . import mflux_side as side
    else:
        from . import torch_side as side
    p = side.prepare(case, args.part, args.engine.endswith("-compile"), args.device)
    measured = timing.measure(p["call"], p["finish"], p["stamp"], args.repeats)
    measured |= {"peak_memory_bytes": p["peak"]()} | {k: p[k] for k in ("device", "parameters", "versions")}
    print(json.dumps({"engine": args.engine, "part": args.part, "case": case.json(), **measured}))
    return 0


def run_comparison(args) -> int:
    if bool(args.preset) == bool(args.family):
        raise ValueError("give either --preset or --family")
    cases = PRESETS[args.preset]() if args.preset else [case_of(args, f, s) for f in args.family for s in args.size]
    warn = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    c = compare.Comparison(
        compare.choose(args.engines, args.gomflux, warn), cases, args.rounds, args.repeats, args.device, args.gomflux,
        args.timeout, args.budget, args.output, tuple(args.part), warn,
    )  # fmt: skip
    try:
        c.run()
    finally:
        if c.results:
            show(args, c.json())
    return 1 if c.failures or not c.results else 0


def print_files(args) -> int:
    merged = {"engines": list(ENGINES), "results": [], "failures": []}
    for file in args.files:
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            for name in ("results", "failures"):
                merged[name] += read[name]
            tables.sections(read["results"])
        except (ValueError, KeyError, TypeError) as e:
            raise ValueError(f"{file}: is not a file of compare --output: {type(e).__name__}: {e}") from e
    show(args, merged)
    return 0


def show(args, results: dict):
    if args.write:
        tables.write(args.write, args.name, tables.markdown(results["results"]))
    elif args.format == "json":
        print(json.dumps(results, indent=1))
    else:
        print((tables.text if args.format == "text" else tables.markdown)(results["results"]))


def write_configs(args) -> int:
    from . import configs

    configs.write(args.folder, args.family, args.tiny)
    return 0


def selftest(args) -> int:
    return subprocess.call([sys.executable, "-m", f"{__package__}.peers_test"])


if __name__ == "__main__":
    sys.exit(main())

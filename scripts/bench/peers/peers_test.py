"""Tests of this package that need neither diffusers nor mflux, nor gomflux."""

import io
import json
import os
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from . import __main__ as command
from . import compare, gomflux_side, process, tables, timing
from .cases import FAMILIES, Case, Unsupported


def run() -> int:
    for test in TESTS:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))
    print("ok")
    return 0


@contextmanager
def fails(kind, *words):
    try:
        yield
    except kind as e:
        for word in words:
            assert word in str(e), (word, str(e))
        assert "\n" not in str(e), str(e)
    else:
        raise AssertionError(f"expected {kind.__name__}: {words}")


class Clock:
    """A clock that a call moves by the next of some times."""

    def __init__(self, *takes):
        self.now, self.takes, self.calls = 0.0, list(takes), 0

    def __call__(self) -> float:
        return self.now

    def work(self):
        self.calls += 1
        self.now += self.takes.pop(0) if len(self.takes) > 1 else self.takes[0]


def times(folder):
    clock = Clock(9, 2, 2, 1, 3, 2, 10)
    m = timing.measure(clock.work, lambda: None, repeats=4, seconds=100, clock=clock)
    assert m == {"first_s": 9, "median_s": 2.5, "min_s": 1, "max_s": 10, "repeats": 4}, m
    clock = Clock(5)
    m = timing.measure(clock.work, lambda: None, repeats=10, seconds=1, clock=clock)
    assert (m["repeats"], clock.calls) == (3, 4), (m, clock.calls)  # without calls that only warm up
    clock = Clock(1)
    m = timing.measure(clock.work, lambda: None, repeats=10, seconds=6, clock=clock)
    assert (m["repeats"], clock.calls) == (6, 9), (m, clock.calls)


class Stamp:
    def __init__(self, clock):
        self.at = clock()

    def elapsed_time(self, other) -> float:
        return 1000 * (other.at - self.at)


def stamps(folder):
    clock, finished = Clock(9, 1, 1, 1, 2, 6), []
    m = timing.measure(clock.work, lambda: finished.append(clock.calls), lambda: Stamp(clock), 3, 100, clock)
    assert (m["median_s"], m["min_s"], m["max_s"], m["first_s"]) == (2, 1, 6, 9), m
    assert finished == [1, 2, 3, 6], finished  # calls that are timed follow each other without waiting


def turns(folder):
    assert timing.in_turn(["a", "b"], 2) == ["a", "b", "b", "a"]
    assert timing.in_turn(["a", "b", "c"], 3) == list("abccbaabc")


def measured(median=1.0, **more) -> dict:
    return {
        "first_s": 3 * median, "median_s": median, "min_s": 0.9 * median, "max_s": 2 * median, "repeats": 3,
        "peak_memory_bytes": None, "device": "a GPU", "versions": {"torch": "2"},
    } | more  # fmt: skip


def pools(folder):
    p = timing.pooled([measured(1.0), measured(3.0, peak_memory_bytes=5), measured(2.0, peak_memory_bytes=7)])
    assert p["median_s"] == 2 and p["spread"] == 0.5 and p["min_s"] == 0.9 and p["first_s"] == 3, p
    assert p["peak_memory_bytes"] == 7 and p["processes"] == 3, p


def shapes(folder):
    for name in FAMILIES:
        case = Case(name, 2048)
        layers = FAMILIES[name].layers
        side = 128 if layers else 64  # of a reference image
        assert case.image_tokens == (1 + layers) * 128**2 + side**2 * case.images, name
        assert case.part_of("decode").part_of("decode") == case.part_of("decode"), name
    assert Case("flux2-klein-4b", 512, references=2).image_tokens == 3 * 32**2
    assert Case("flux2-klein-4b", 512, inpaint=True).image_tokens == 2 * 32**2
    assert Case("flux1-dev", 512, inpaint=True).image_tokens == 32**2
    assert Case("qwen-image-edit", tokens=5).prompt_tokens == 1374
    case = Case("qwen-image", 512, "float32", 7, guided=True, quantize=4, tiny=True)
    arguments = command.parser().parse_args(["measure", "--engine", "mflux", "--part", "step", *case.arguments()])
    assert command.case_of(arguments, arguments.family, arguments.size) == case
    for values, words in (
        ({"size": 1000}, ("size 1000", "multiple of 16")),
        ({"family": "flux1-dev", "guided": True}, ("FLUX.1-dev",)),
        ({"references": 1}, ("references 1", "Z-Image")),
        ({"family": "flux1-kontext", "references": 0}, ("references 0",)),
        ({"tokens": 0}, ("tokens 0",)),
        ({"family": "sd"}, ("family sd",)),
    ):
        with fails(ValueError, *words):
            Case(**{"family": "z-image"} | values)
    assert len(command.PRESETS["published"]()) > len(command.PRESETS["1024"]()) > 10
    edited = {(c.family, c.size) for c in command.PRESETS["published"]() if c.images}
    assert edited >= {(f, s) for f in ("flux1-kontext", "qwen-image-edit", "flux2-klein-9b") for s in (512, 1024, 2048)}


def child(program: str, limit=None) -> str:
    return process.run([sys.executable, "-c", program], limit)


def processes(folder):
    assert child("print(1)") == "1\n"
    with fails(process.Failed, "out of memory"):
        child("import sys; sys.exit('Traceback\\n  of a kind\\n\\nout of memory\\n')")
    with fails(process.Failed, "exit code 5"):
        child("import sys; sys.exit(5)")
    with fails(process.Failed, "signal 9"):
        child("import os; os.kill(os.getpid(), 9)")
    with fails(Unsupported, "no such model"):
        child("import sys; print('no such model', file=sys.stderr); sys.exit(3)")
    with fails(process.Failed, "took more than"):
        child("import time; time.sleep(60)", 0.2)
    with fails(process.Failed, "no/such/program"):
        process.run([str(folder / "no/such/program")])
    assert process.parse("a remark\n" + json.dumps(measured()) + "\n")["median_s"] == 1
    for text in ("", "garbage", "[]", "{}", "null", json.dumps(measured(float("nan")))):
        with fails(process.Failed, "printed no measurement"):
            process.parse(text)


def report(case: Case, step=0.1, **more) -> dict:
    phase = {"first_s": 1.0, "min_s": 0.09, "max_s": 0.2}
    return {
        "prompt_tokens": case.prompt_tokens, "image_tokens": case.image_tokens, "peak_memory_bytes": 9,
        "device": "gpu", "machine": {"device_name": "a GPU"}, "versions": {"mlx": "0.32", "blas": ""},
        "phases": [
            {"name": "load"}, {"name": "step", "steady_s": step, **phase}, {"name": "decode", "steady_s": 0.02, **phase},
        ],
    } | more  # fmt: skip


def gomflux_reports(folder):
    case = Case("z-image")
    m = gomflux_side.parse(case, json.dumps(report(case)), 3)
    assert m["step"]["median_s"] == 0.1 and m["decode"]["median_s"] == 0.02 and m["step"]["versions"] == {"mlx": "0.32"}, m
    for text in ("", "garbage", "[]", "{}", "null", json.dumps(report(case, phases=[]))):
        with fails(process.Failed, "gomflux bench printed no measurements"):
            gomflux_side.parse(case, text, 3)
    with fails(process.Failed, "24 tokens of the prompt", "expected 23 and 4096"):
        gomflux_side.parse(case, json.dumps(report(case, prompt_tokens=24)), 3)
    words = gomflux_side.command(Case("qwen-image-edit", inpaint=True), "g", "m", "cuda", 3)
    assert "--inpaint" in words and "--references" not in words, words
    words = gomflux_side.command(Case("qwen-image-edit", guided=True, quantize=4), "g", "m", "cuda", 3)
    for word in ("--references 1", "--quantize 4", "--guidance 4.0", "--device gpu", "--prompt-tokens 30"):
        assert word in " ".join(words), (word, words)


def stub(folder: Path, case: Case, body: str = "") -> str:
    """Writes a program that stands for gomflux."""
    program = folder / "gomflux"
    program.write_text(f"#!{sys.executable}\n{body}\nprint({json.dumps(report(case))!r})\n")
    program.chmod(0o755)
    return str(program)


def comparison(folder: Path, cases: list, peer, engines=("gomflux", "mflux", "diffusers"), **more):
    """Runs a comparison in which peer stands for the processes of mflux and diffusers."""
    said, order = [], []

    def one(engine, case, part, device, repeats, limit):
        order.append((engine, part))
        return peer(engine, case, part)

    body = more.pop("body", "")
    with mock.patch.object(process, "measure", one):
        c = compare.Comparison(
            list(engines), cases, program=stub(folder, cases[0], body), output=folder / "out.json", say=said.append, **more
        )
        c.run()
    return c, order, said


def compared(folder):
    case = Case("z-image")
    c, order, said = comparison(folder, [case], lambda engine, *_: measured(0.2 if engine == "mflux" else 0.3))
    assert [e for e, part in order if part == "step"] == ["mflux", "diffusers", "diffusers", "mflux"], order
    assert not c.failures and len(c.results) == 12, (c.failures, said)
    assert json.loads((folder / "out.json").read_text()) == json.loads(json.dumps(c.json()))
    text = tables.text(c.results)
    for words in ("Z-Image, step, 1024x1024", "100 ms", "200 ms   2.00", "300 ms   3.00", "2 processes"):
        assert words in text, (words, text)
    # models with the same autoencoder share its measurements
    c, order, said = comparison(folder, [Case("z-image"), Case("flux1-dev")], lambda *_: measured(0.2), body=TOKENS)
    assert sum(part == "decode" for _, part in order) == 4 and len(c.of("gomflux", Case("z-image"), "decode")) == 4, (order, said)
    # what does not fit into the time that is left is left out
    clock = iter(range(0, 1000, 40)).__next__
    c, order, said = comparison(folder, [case], lambda *_: measured(), clock=clock, budget=100)
    assert len(c.results) == 2 and any("not enough time" in line for line in said) and not c.failures, said


# The stub's body: reports the tokens that it was asked for.
TOKENS = """
import json, sys
words = dict(zip(sys.argv, sys.argv[1:]))
def print(text, print=print):
    print(json.dumps(json.loads(text) | {"prompt_tokens": int(words["--prompt-tokens"])}))
"""


def failures(folder):
    case = Case("z-image")

    def peer(engine, case, part):
        if engine == "mflux":
            raise Unsupported("mflux has no such model")
        raise process.Failed("out of memory")

    c, order, said = comparison(folder, [case], peer)
    assert len(order) == 4, order  # what has failed is not tried again
    assert {(f["engine"], f["part"]) for f in c.failures} == {("diffusers", "step"), ("diffusers", "decode")}, c.failures
    assert any(line.endswith("mflux, step: left out: mflux has no such model") for line in said), said
    assert any(line.endswith("diffusers, step: out of memory") for line in said), said
    c, order, said = comparison(folder, [case], lambda *_: measured(), body="import sys; sys.exit('no device')")
    assert [f["error"] for f in c.failures] == ["no device"] and len(c.results) == 8, c.failures
    assert "2.00" not in tables.text(c.results)  # there is nothing to relate to


def missing(folder):
    said = []
    nothing = str(folder / "gomflux")
    with mock.patch.object(compare.importlib.util, "find_spec", lambda name: None if name == "mflux" else name):
        assert compare.choose(None, nothing, said.append) == ["diffusers", "diffusers-compile"]
        with fails(SystemExit, "mflux: not installed", "pip install mflux"):
            compare.choose(["diffusers", "mflux"], nothing, said.append)
    with fails(SystemExit, nothing, "make build"):
        compare.choose(["gomflux"], nothing, said.append)
    assert [line.split(":")[0] for line in said] == ["gomflux", "mflux", "mflux-compile"], said


def results() -> list:
    found = []
    for size, times in ((512, (0.03, 0.06)), (1024, (0.0951, 0.145)), (2048, (0.85, 1.2345))):
        for engine, t in zip(("gomflux", "diffusers-compile"), times):
            found.append({"engine": engine, "case": Case("z-image", size).json(), "part": "step", **measured(t)})
    found.append({"engine": "diffusers", "case": Case("z-image").json(), "part": "decode", **measured(36.0)})
    return found


EXPECTED = """\
### Z-Image: step

In bfloat16, 23 tokens of the prompt. Medians of 1 process. The first call is that of 1024x1024.

| | 512x512 | 1024x1024 | 2048x2048 | first step |
|---|---|---|---|---|
| gomflux | 30.0 ms | 95.1 ms | 850 ms | 285 ms |
| diffusers, torch.compile | 60.0 ms, 2.00 | 145 ms, 1.52 | 1.23 s, 1.45 | 435 ms |

### AutoencoderKL with 16 channels (Z-Image, FLUX.1): decode

In bfloat16. Medians of 1 process.

| | 1024x1024 | first decode |
|---|---|---|
| diffusers | 36.0 s | 108 s |"""


def pages(folder):
    made = tables.markdown(results())
    assert made.endswith(EXPECTED), made
    assert made.startswith("Measured on a GPU with torch 2. A time is the median"), made
    page = folder / "page.md"
    rest = "\n\n<!-- peers cpu -->\n<!-- end of peers cpu -->\nB\n"
    page.write_text("# A\n\n<!-- peers gpu -->\nold\n<!-- end of peers gpu -->" + rest)
    tables.write(page, "gpu", made)
    tables.write(page, "gpu", made)
    first = page.read_text()
    assert first == f"# A\n\n<!-- peers gpu -->\n\n{made}\n\n<!-- end of peers gpu -->" + rest
    with fails(SystemExit, "page.md", "<!-- peers metal -->"):
        tables.write(page, "metal", made)
    assert page.read_text() == first and os.listdir(folder) == ["page.md"]


def run_command(*words) -> tuple:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = command.main([str(w) for w in words])
        except SystemExit as e:
            code = e.code
    return code, out.getvalue(), err.getvalue()


def commands(folder):
    file, bad = folder / "results.json", folder / "bad.json"
    file.write_text(json.dumps({"results": results(), "failures": []}))
    code, out, err = run_command("table", file, "--format", "markdown")
    assert code == 0 and out.endswith(EXPECTED + "\n"), (code, out, err)
    code, out, err = run_command("table", file, file, "--format", "json")
    assert code == 0 and len(json.loads(out)["results"]) == 14, (code, err)
    for text in ("", "[]", "{}", '{"results": [{}], "failures": []}'):
        bad.write_text(text)
        code, out, err = run_command("table", bad)
        assert code == 1 and "bad.json: is not a file of compare" in err and err.count("\n") == 1 and not out, (text, err)
    code, out, err = run_command("table", folder / "none.json")
    assert code == 1 and "none.json" in err and err.count("\n") == 1, err
    for words in ((), ("--preset", "cpu", "--family", "z-image"), ("--family", "z-image", "--size", "100")):
        code, out, err = run_command("compare", *words)
        assert code == 1 and err.startswith("peers: ") and err.count("\n") == 1, (words, err)
    program = stub(folder, Case("z-image"))
    words = ("compare", "--engines", "gomflux", "--gomflux", program, "--family", "z-image", "--rounds", 1)
    code, out, err = run_command(*words)
    assert code == 0 and "Z-Image, step" in out and "Z-Image, 1024x1024, gomflux: 100 ms" in err, (code, out, err)
    stub(folder, Case("z-image"), "import sys; sys.exit('no device')")
    code, out, err = run_command(*words)
    assert code == 1 and not out and err.endswith("gomflux: no device\n"), (code, out, err)


TESTS = (times, stamps, turns, pools, shapes, processes, gomflux_reports, compared, failures, missing, pages, commands)


if __name__ == "__main__":
    sys.exit(run())

"""Checks of the debugger, as its users see it: through its commands."""

import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from . import command, wire

SCRIPT = """import sys

from helper import scale

value = 3
for n in range(4):
    result = scale(value, n)
    print("result", n, result)
sys.exit(int(sys.argv[1]))
"""
HELPER = """def scale(x, by):
    total = 0
    for i in range(by):
        total += i * x
    return total


def unused(x):
    return x
"""
# A destructor, in which Python ignores exceptions, is what most signals meet.
DESTRUCTOR = """import time


class Slow:
    def __del__(self):
        time.sleep(0.5)


while True:
    Slow()
    time.sleep(0.2)
"""
ENDLESS = "import time\nprint('on', flush=True)\nwhile True:\n    time.sleep(0.01)\n"
STUBBORN = "import time\nwhile True:\n    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass\n"
# A network that is called within the loop of a function, with an error in between.
NETWORK = """import torch
from gomflux_reference.debug import debug_checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)

    def forward(self, x, *, scale=1.0):
        return self.b(self.a(x) * scale), x


torch.manual_seed(0)
net = Net()
with torch.no_grad():
    net(torch.ones(2, 4), scale=torch.tensor(2.0))
    try:
        net(torch.ones(2, 5))
    except RuntimeError as e:
        print("error")
    y, _ = net(torch.ones(2, 4))
debug_checkpoint("skipped", skip=True, y=y)
debug_checkpoint("here", y=y, n=3)
print("sum", float(y.sum()))
"""


@contextmanager
def sessions_in(folder: Path):
    """Runs a test with folders of sessions and logs of its own. No session is left by it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "s").mkdir(parents=True)
    runtime = Path("/tmp", f"gd-{os.getpid()}-{folder.name[:20]}")  # a socket's path is short
    runtime.mkdir(mode=0o700)
    before = {name: os.environ.get(name) for name in ("XDG_RUNTIME_DIR", "GOMFLUX_LOG_DIR")}
    os.environ |= {"XDG_RUNTIME_DIR": str(runtime), "GOMFLUX_LOG_DIR": str(folder / "logs")}
    try:
        yield runtime / "gomflux-debug"
    finally:
        left = [n for n, s in wire.known().items() if s["state"] not in wire.ENDED]
        for name in left:
            os.kill(wire.read_status(name)["pid"], signal.SIGKILL)
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {name: value} if value is not None else {}
        wait_for_end(runtime)
        shutil.rmtree(runtime)


def wait_for_end(runtime: Path):
    """Waits until processes whose runs have finished have ended: they remove their files, and are listed until then."""
    until = time.monotonic() + 10
    while list(runtime.glob("*/*.lock")) and time.monotonic() < until:
        time.sleep(0.01)


def debug(*argv) -> tuple[int, str]:
    """Runs a command. Returns its exit status and what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = command.main([str(a) for a in argv])
        except SystemExit as e:
            code = e.code
    return code or 0, printed.getvalue()


def expect(lines: str, *argv, code: int = 0):
    """Runs a command, and checks the beginnings of the lines that it prints, as patterns."""
    found, written = debug(*argv)
    wanted = [line.strip() for line in lines.strip().splitlines()]
    printed = written.splitlines()
    ok = found == code and len(printed) >= len(wanted)
    if not ok or not all(re.match(line, text.strip()) for line, text in zip(wanted, printed)):
        raise AssertionError(f"debug {' '.join(map(str, argv))}: exit status {found}, expected {code}\n{written}\n\n{lines}")
    return written


def debug_tensors(scratch: Path, root: Path):
    """A dump that is stopped at tensors: every command, in the words that gomflux prints."""
    with sessions_in(scratch):
        model = root / "zimage-ordinary" / "model"
        request = ["--prompt", "a red circle", "--steps", 3, "--height", 24, "--width", 40, "--taps", "transformer*"]
        prefix = ["start", "--break", "text_encoder.layers.0", "--", "dump", model]
        expect(r"session 1: stopped before the model is loaded \(gomflux-reference debug continue begins\)",
               *prefix, scratch / "out", *request)  # fmt: skip
        expect("no session 2 .there are: 1.".replace("no", ".*no"), "status", "--session", "2", code=2)
        expect(".*the run has not begun", "location", code=2)
        expect("breakpoint 2: transformer.layers.0, step 1, if timestep > 900, once",
               "break", "transformer.layers.0", "--step", 1, "--if", "timestep > 900", "--once")  # fmt: skip
        expect("breakpoint 3: transformer.layers.1.attention:q, step 1, call 0, hit 1",
               "break", "transformer.layers.1.attention:q", "--step", 1, "--call", 0, "--hit", 1)  # fmt: skip
        expect("breakpoint 4: transformer.lajers.0", "break", "transformer.lajers.0")
        expect("watch 5: transformer.layers.1, step 1", "break", "transformer.layers.1", "--step", 1, "--watch")
        expect("stopped before the run begins\nbreakpoint 4: transformer.lajers.0 names no module", "continue", code=2)
        expect(r"stopped after text_encoder.layers.0 \(breakpoint 1, hit 1\): float32 \[1, \d+, 24\]", "continue")
        expect("""text_encoder.layers.0 .Qwen3DecoderLayer.
                  outside the denoising loop, call 0
                  inside text_encoder .Qwen3Model.
                  .*modeling_qwen3.py:\\d+, Qwen3DecoderLayer.forward""", "location")  # fmt: skip
        near = ".*transformer.lajers.1: no module or value has such a name .near: transformer.layers.1"
        expect(near, "break", "transformer.lajers.1", code=2)
        expect("removed breakpoint 1", "remove", 1)
        expect(".*there is no breakpoint 1", "remove", 1, code=2)
        expect("breakpoint 2: transformer.layers.0, step 1, if timestep > 900, once, no hits", "breaks")
        expect(r"stopped after transformer.noise_refiner.0@0 \(until\)", "continue", "--until", "transformer.noise_refiner.0")
        expect(r"stopped after transformer.cap_embedder.0@0 \(next\)", "next")
        expect(r"stopped after transformer.cap_embedder@0 \(out\)", "out")
        expect(r"stopped before transformer_z_image.py:\d+ \(step over\)", "step", "--line")
        expect("""transformer_z_image.py:\\d+ .ZImageTransformer2DModel.
                  step 0, call 0""", "location")  # fmt: skip
        expect(r"stopped after transformer.t_embedder.mlp.0@1 \(step\)", "step")
        # sigma 6/7 of the second of three steps: the condition is false, and breakpoint 3 is next
        expect(r"stopped after transformer.layers.1.attention@1 \(breakpoint 3, hit 1\)", "continue")
        expect(r"breakpoint 2: .*once, 1 hit", "breaks")
        at_attention(scratch)
        expect(r"""watch 5: transformer.layers.1@1 float32 \[1, 64, 32\]  min .*  max .*  mean .*  std .*
                   stopped after latents@1 .until.: float32 .1, 4, 6, 10.""", "continue", "--until", "latents")  # fmt: skip
        expect("removed breakpoints 2, 3, 4, 5", "clear")
        expect(r"stopped after latents@2 \(until\)", "continue", "--until", "latents")
        assert re.match("((?s:.*)dump)?", expect("session 1 .reference.: stopped", "status"))
        expect("the run has finished", "continue")
        expect("""session 1 .reference.: finished
                  command: dump
                  output: .*debug_.*.log
                  trace: .*debug_.*.jsonl""", "status")  # fmt: skip
        expect(".*session 1 has finished .gomflux-reference debug start begins another", "vars", code=2)
        trace = json.loads(debug("status", "--json")[1])["trace"]
        events = [json.loads(line) for line in Path(trace).read_text(encoding="utf-8").splitlines()]
        names = [e["event"] for e in events]
        assert names[0] == "start" and {"break", "stop", "eval", "set", "save", "watch", "end"} <= set(names), names
        stopped = next(e["result"] for e in events if e["event"] == "stop")
        assert stopped["variables"]["variables"][0]["stats"]["nan"] == 0 and stopped["around"], stopped
        wait_for_end(wire.folder().parent)
        expect("SESSION +SIDE +STATE +PID +BEGAN +COMMAND\n1 +reference +finished", "sessions")
        unchanged(scratch, model, request)


def at_attention(scratch: Path):
    """The commands that look at a stop."""
    expect("""NAME +DTYPE +SHAPE +min +max +mean +std +nan +inf
              out +float32 +.1, 64, 32.
              inp."0". +float32 .*
              inp.*
              inner."q". +float32
              inner."k". +float32
              inner."v". +float32
              parameters
              norm_q.weight +float32 +.16.$""", "vars")  # fmt: skip
    expect("(?s).*", "vars", "--weights")
    assert re.search(r"to_q.weight +float32 +\[32, 32\] +-\d", debug("vars", "--weights")[1])
    expect(r"\(-?\d\.\d+(e-\d+)?, \d\.\d+\)$", "eval", "(out.mean(), out.std())")
    expect(r"\(1, 64, 32\)$", "eval", "out.shape")
    expect(r"tensor float32 \(1, 64, 32\): min .*, max .*, mean .*, std .*; first (-?[0-9.e-]+, ){9}", "eval", "out")
    expect("True$", "eval", "1 == call + 1 and step == 1 and negative is False and hit == 1")
    expect("line 1$", "eval", "x = out * 2\nfor i in range(1, 2):\n    print('line', i)\nkeep('y', x + 1)")
    expect("1.0$", "eval", "round(float((y - x).mean()), 3)")
    again = "module(inp['0'], freqs_cis=torch.view_as_complex(inp['freqs_cis']))"  # which is not part of the run
    expect("difference.l2=0.0, max=0.0, max_ref=", "eval", f"compare({again}, out)")
    expect(".*line 2: ZeroDivisionError: division by zero", "eval", "a = 1\na / 0", code=1)
    expect(".*debug: SyntaxError", "eval", "a b", code=2)
    expect(".*a value of 4.0 GB: at most 1 GB", "eval", "torch.zeros(1).expand(10**9)", code=1)
    assert stat.S_ISSOCK(wire.socket_of("1").stat().st_mode)
    expect("mine saved in .*mine.safetensors", "save", "mine")
    expect("difference.l2=0.0", "eval", "compare(load('mine'), out)")
    expect(".*expected float32 .1, 64, 32. .@float32 converts it", "set", "mine@bfloat16", code=2)
    expect("transformer.layers.1.attention@1 is replaced by .*:mine", "set", "mine@float32")
    expect(".*no file, and no saved tensor them .near: mine", "set", "them", code=2)


def unchanged(scratch: Path, model: Path, request: list):
    """A session that replaces a tensor by itself gives the tensors of a run without a session, bit for bit."""
    from ..record import Dump

    args = [sys.executable, "-m", "gomflux_reference", "dump", model, scratch / "plain", *request]
    subprocess.run([str(a) for a in args], check=True, capture_output=True)
    a, b = Dump(scratch / "out"), Dump(scratch / "plain")
    assert a.names() == b.names() and all(a[n].equal(b[n]) for n in a.names())


def debug_scripts(scratch: Path, root: Path):
    """A script with modules: their names are those of variables, errors in between change nothing."""
    with sessions_in(scratch):
        script = scratch / "s" / "net.py"
        script.write_text(NETWORK)
        expect(r"stopped after net.a \(breakpoint 1, hit 1\): float32 \[2, 3\]", "start", "--run", "--break", "net*", "--", script)
        expect("stopped after net.b .breakpoint 1, hit 2.", "continue")
        expect("stopped after net .breakpoint 1, hit 3.: float32 .2, 2.", "continue")
        text = expect("NAME", "vars")
        assert 'inp["scale"]' in text and 'outs["1"]' in text and "a.weight" in text, text
        for name in ("net.a#2", "net.b#1", "net#2"):
            expect(f"stopped after {name} .breakpoint", "continue")
        debug("eval", "torch.save(torch.zeros(2, 2), '/dev/null'); import numpy; numpy.save(%r, numpy.zeros((2, 2), 'f'))"
              % str(scratch / "zeros.npy"))  # fmt: skip
        expect("net#2 is replaced by .*zeros.npy:zeros", "set", scratch / "zeros.npy")
        expect("stopped after here .checkpoint here.", "continue")
        expect('NAME\ninner."y". +float32 +.2, 2. +0 +0 +0 +0 +0 +0 +0 0 0\nn = 3', "vars")
        expect(r"\(3, 0.0\)$", "eval", "n, y.sum()")
        expect("the run has finished", "continue")
        expect("error\nsum 0.0", "log")


def debug_lines(scratch: Path, root: Path):
    """Stops at lines, here and with other Pythons that are at hand: sys.monitoring is there from 3.12 on."""
    pythons = [p for n in (12, 13) for p in sorted(Path.home().glob(f".pyenv/versions/3.{n}.*/bin/python"))[:1]]
    for python in [None, *pythons]:
        with sessions_in(scratch):
            lines_of(scratch, str(python or sys.executable))
        with sessions_in(scratch):
            stepping(scratch, str(python or sys.executable))


def started(scratch: Path, python: str, breakpoint: str) -> tuple[Path, Path]:
    """Starts a session of a script with a helper, with another Python."""
    script, helper = scratch / "s" / "script.py", scratch / "s" / "helper.py"
    script.write_text(SCRIPT)
    helper.write_text(HELPER)
    here, sys.executable = sys.executable, python
    try:
        expect(f"session 1: .*", "start", "--break", scratch / "s" / breakpoint, "--", script, 3)
    finally:
        sys.executable = here
    return script, helper


def stepping(scratch: Path, python: str):
    """From line to line: over a call, into it and out of it, also to a breakpoint."""
    started(scratch, python, "script.py:7")
    expect(".*the run has not begun", "step", "--line", code=2)
    expect("stopped before script.py:7 .breakpoint 1, hit 1.", "continue")
    expect("stopped before script.py:8 .step over.", "step", "--line")
    expect("stopped before script.py:6 .step over.", "step", "--line", "over")
    expect("stopped before script.py:7 .breakpoint 1, hit 2.", "step", "--line", "over")
    expect("stopped before helper.py:2 .step into.", "step", "--line", "into")
    expect("stopped before helper.py:3 .step over.", "step", "--line")
    expect("stopped before script.py:8 .step out.", "step", "--line", "out")
    expect("removed breakpoint 1", "clear")
    expect("the run has failed: exit code 3", "continue", code=1)


def lines_of(scratch: Path, python: str):
    script, helper = started(scratch, python, "helper.py:4")
    expect("breakpoint 2: .*script.py:8, if n == 2", "break", f"{script}:8", "--if", "n == 2")
    expect("breakpoint 3: .*helper.py:9", "break", f"{helper}:9")
    expect(".*helper.py:7: no code .nearest lines with code: 5, 8, 9", "break", f"{helper}:7", code=2)
    expect(".*helpr.py: no such file .near: .*helper.py", "break", scratch / "s" / "helpr.py:3", code=2)
    expect(".*a line of a file has no step", "break", f"{helper}:4", "--step", 1, code=2)
    expect("stopped before helper.py:4 .breakpoint 1, hit 1.: the line is not executed yet", "continue")
    expect("""helper.py:4
              .*helper.py:4, scale
              1  def scale.*
              2 .*
              3 .*
              >  ?4          total .= i . x""", "location")  # fmt: skip
    expect("x = 3\nby = 1\ntotal = 0\ni = 0", "vars")
    expect("removed breakpoint 1", "remove", 1)
    expect("stopped before script.py:8 .breakpoint 2, hit 3.", "continue")
    expect(r"\(2, 3, \[0, 3\]\)", "eval", "n, value, [value * i for i in range(n)]")
    debug("eval", "value = 10\nzz = 5")
    expect("15$", "eval", "value + zz")
    expect("breakpoint 4: .*helper.py:4, hit 2, once", "break", f"{helper}:4", "--hit", 2, "--once")
    expect("stopped before helper.py:4 .breakpoint 4, hit 2.", "continue")
    expect("", "eval", "total = 1000")
    expect("1000$", "eval", "total")
    expect(".*set replaces outputs of modules", "set", "x", code=2)
    expect("""the run has failed: exit code 3
              breakpoint 3: .*helper.py:9 was never hit$""", "continue", code=1)  # fmt: skip
    expect("result 0 0\nresult 1 0\nresult 2 3\nresult 3 1030", "log")  # 1000 + 10 + 20: the frame's own variables
    other = scratch / "s" / "other" / "helper.py"
    other.parent.mkdir(exist_ok=True)
    other.write_text(HELPER)
    near = f"breakpoint 1: .*other/helper.py:4 was never hit .near: .*s/helper.py"
    expect(f"the run has finished\n{near}", "start", "--run", "--break", f"{other}:4", "--break", f"{helper}:9", "--", script, 0)


def debug_installed(scratch: Path, root: Path):
    """A breakpoint in a file of transformers, which stays as it is."""
    import transformers.models.qwen3.modeling_qwen3 as source

    with sessions_in(scratch):
        lines = Path(source.__file__).read_text(encoding="utf-8").split("\n")
        line = next(i for i, text in enumerate(lines, 1) if "query_states = self.q_norm" in text)
        request = ["--prompt", "a", "--steps", 2, "--height", 24, "--width", 40]
        model = root / "zimage-ordinary" / "model"
        expect(f"stopped before modeling_qwen3.py:{line} .breakpoint 1, hit 1.", "start", "--run", "--break",
               f"transformers/models/qwen3/modeling_qwen3.py:{line}", "--", "dump", model, scratch / "out", *request)  # fmt: skip
        expect(f"""modeling_qwen3.py:{line} .Qwen3Attention.
                   outside the denoising loop, call 0
                   inside text_encoder .Qwen3Model., text_encoder.layers.0 .*, text_encoder.layers.0.self_attn""", "location")
        expect("NAME\nhidden_states +float32", "vars")
        expect("stopped after text_encoder.layers.0.self_attn.q_proj .next.", "next")
        expect("session 1 is terminated", "terminate")
        expect("""stopped before the run begins
                  breakpoint 1: transformer.layer.0 names no module or value of the model .near: transformer.layers.0
                  .*no tensor of the run can match this breakpoint""", "start", "--run", "--break", "transformer.layer.0",
               "--", "dump", model, scratch / "out", *request, code=2)  # fmt: skip
        expect("session 2 .reference.: stopped before the run begins", "status")
        expect("breakpoint 2: transformer.layers.0", "break", "transformer.layers.0")
        expect("stopped after transformer.layers.0@0 .breakpoint 2", "continue")
        expect("session 2 is terminated", "terminate")


def debug_refused(scratch: Path, root: Path):
    """Invalid input gives one line and a stable exit status, and leaves nothing behind."""
    with sessions_in(scratch) as folder:
        script = scratch / "s" / "endless.py"
        script.write_text(ENDLESS)
        for what, code, argv in (
            ("no session .gomflux-reference debug start begins one", 2, ["status"]),
            ("start: what is to be run is missing", 2, ["start"]),
            ("tiny: expected dump, or a Python script", 2, ["start", "--", "tiny", "x"]),
            ("nothing.py: No such file", 2, ["start", "--", "nothing.py"]),
            ("gomflux-reference dump: the following arguments are required: --prompt", 2, ["start", "--", "dump", "x"]),
            ("gomflux-reference dump: .*invalid int value: 'many'", 2, ["start", "--", "dump", "x", "--steps", "many"]),
            (".*session name '../x'", 2, ["start", "--name", "../x", "--", script]),
            (".*expected at most 32", 2, ["start", "--name", "x" * 33, "--", script]),
            (".*nothing.py: no such file", 2, ["start", "--break", "nothing.py:3", "--", script]),
            (".*is not a pattern of names", 2, ["start", "--break", "a[", "--", script]),
        ):
            assert "\n" not in expect(f".*{what}", *argv, code=code).strip(), argv
            assert not list(folder.glob("*")), argv
        assert "usage: gomflux-reference dump" in expect("usage", "start", "--", "dump", "--help")
        expect("session here: .*", "start", "--name", "here", "--", script)
        expect(".*session here: a session of this name is running", "start", "--name", "here", "--", script, code=2)
        for what, argv in (
            ("the run has not begun", ["vars"]), ("hit 0: must be a whole number", ["break", "x", "--hit", 0]),
            ("x y: .*SyntaxError", ["break", "x", "--if", "x y"]), ("step -2: must be", ["break", "x", "--step", -2]),
            ("!x: a breakpoint names tensors", ["break", "!x"]), ("eval: no expression", ["eval", " "]),
        ):  # fmt: skip
            expect(f".*{what}", *argv, code=2)
        expect("still running", "continue", "--max-wait", 0.3, code=124)
        expect(".*the run is running .gomflux-reference debug continue waits until it stops", "vars", code=2)
        clients(folder)
        expect("session 1: ", "start", "--", script)
        expect(".*2 sessions are running: 1, here .choose one", "status", code=2)
        expect("session 1 is terminated", "terminate", "--session", "1")
        os.kill(wire.read_status("here")["pid"], signal.SIGKILL)
        time.sleep(0.1)
        expect("session here: its process was killed", "continue", "--session", "here", code=1)
        assert re.search(r"1 +reference +terminated.*\nhere +reference +killed", debug("sessions")[1])
        expect(".*remove 2 ended sessions, with 4 files .*give --yes", "clean", code=2)
        expect("session 1 .terminated. would be removed", "clean", "--dry-run")
        expect("session 1 .terminated. is removed\nsession here .killed. is removed\n4 files of traces and logs", "clean", "--yes")
        assert not list(folder.iterdir()), list(folder.iterdir())
        folders(folder, script)


def clients(folder: Path):
    """Clients that send garbage, too much, or nothing, and several at once."""
    path = str(wire.socket_of("here"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    for sent, answer in (
        (b"garbage\n", b"invalid request"), (b"[1]\n", b"invalid request"), (b'{"command": 3}\n', b"invalid request"),
        (b'{"command": "fly"}\n', b"unknown command"), (b"x" * (wire.LINE + 2), b"longer than"), (b"", b""),
        (b'{"command": "break", "arguments": {"glob": "x", "color": 1}}\n', b"no field color"),
        (b'{"command": "continue", "arguments": {"max_wait": "long"}}\n', b"must be a number of seconds"),
    ):  # fmt: skip
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(path)
            s.sendall(sent)
            s.shutdown(socket.SHUT_WR)
            found = s.makefile("rb").readline()
            assert answer in found, (sent[:50], found)
    many = [socket.socket(socket.AF_UNIX) for _ in range(wire.CONNECTIONS)]
    for s in many:
        s.connect(path)
    time.sleep(0.2)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        assert b"connections already" in s.makefile("rb").readline()
    for s in many:
        s.close()
    time.sleep(0.2)
    assert wire.call("here", "status")["state"] == "running"


def folders(folder: Path, script: Path):
    """Folders of sockets that others could use, and paths that are too long."""
    folder.chmod(0o755)
    expect(".*folder of sockets .*: mode 0755, expected 0700", "sessions", code=1)
    folder.rmdir()
    folder.symlink_to("/tmp")
    expect(".*expected a folder, found a symbolic link", "sessions", code=1)
    folder.unlink()
    before, long = os.environ["XDG_RUNTIME_DIR"], folder.parent / ("x" * 80)
    long.mkdir()
    os.environ["XDG_RUNTIME_DIR"] = str(long)
    expect(".*the system allows .* .set XDG_RUNTIME_DIR", "start", "--", script, code=1)
    os.environ["XDG_RUNTIME_DIR"] = before
    os.environ["GOMFLUX_LOG_LIMIT"] = "1"
    try:
        assert "GOMFLUX_LOG_LIMIT" in str(debug("start", "--", script)[0])
    finally:
        del os.environ["GOMFLUX_LOG_LIMIT"]


def debug_signals(scratch: Path, root: Path):
    """A session ends by signals and by terminate, whatever it does, and an endless expression does not end it."""
    with sessions_in(scratch) as folder:
        endless, stubborn = scratch / "s" / "endless.py", scratch / "s" / "stubborn.py"
        endless.write_text(ENDLESS)
        stubborn.write_text(STUBBORN)
        for number, error, code in ((signal.SIGTERM, "interrupted", 143), (signal.SIGINT, "interrupted", 130)):
            for stopped in (False, True):
                place = ["--break", f"{endless}:4"] if stopped else []
                debug("start", "--name", "1", *place, "--", endless)
                debug("continue", "--max-wait", 10 if stopped else 0.3)
                os.kill(wire.read_status("1")["pid"], number)
                until = time.monotonic() + 20  # of a machine that does other things
                while wire.lives("1") and time.monotonic() < until:
                    time.sleep(0.01)
                status = wire.look("1")
                assert [status.get(k) for k in ("state", "error", "exit_code")] == ["failed", error, code], (stopped, status)
                assert [f.name for f in folder.iterdir()] == ["1.json"], number
        ignored = scratch / "s" / "ignored.py"
        ignored.write_text(DESTRUCTOR)
        debug("start", "--name", "1", "--", ignored)
        debug("continue", "--max-wait", 0.5)
        os.kill(wire.read_status("1")["pid"], signal.SIGINT)
        expect("the run has failed: interrupted", "continue", code=1)
        debug("start", "--name", "far", "--break", f"{endless}:4", "--", endless)
        debug("continue")
        began = time.monotonic()
        expect(".*the expression takes longer than 5 s", "eval", "while True: pass", code=1)
        assert time.monotonic() - began < 7
        expect("stopped before endless.py:4 .breakpoint 1, hit 2", "continue")
        expect(".*no field", "eval", "raise ValueError('no field')", code=1)
        expect("breakpoint 2: .*, if nothing > 1", "break", f"{endless}:3", "--if", "nothing > 1")
        expect("""stopped before endless.py:3 .breakpoint 2, hit 1.
                  the condition of breakpoint 2: NameError: name 'nothing' is not defined""", "continue")  # fmt: skip
        expect("session far is terminated", "terminate", "--all", "--yes")
        debug("start", "--name", "far", "--", stubborn)
        debug("continue", "--max-wait", 0.3)
        there = os.getcwd()
        try:
            os.chdir("/")
            expect("no sessions", "terminate", "--all")
            expect(".*no session of this folder .2 of others", "status", code=2)
            expect("session far would be terminated", "terminate", "--user", "--dry-run")
        finally:
            os.chdir(there)
        expect("session far is terminated", "terminate")
        expect("session far .reference.: terminated", "status")


# Commands that both programs are given, and the words after which only one of them prints more.
BOTH = """
breaks
vars
break transformer.layers.1.attention.to_q --step 1
break latents --hit 2 --once
break transformer.layers.0.feed_forward* --step 2 --call 0 --if out.abs().max()>1e9
break transformer.layers.1 --step 0 --watch
break nothing* --negative
breaks
status
continue
continue
location
vars
eval out.shape
eval (out.mean(), out.std())
eval (step, call, negative, hit, sigma, timestep)
eval out
eval x = out * 2
eval (x - out - out).abs().max()
eval w["weight"].shape
eval compare(x, out)
eval for i in range(2): print(i, inp["0"].shape[1])
eval keep("y", x)
save mine
eval compare(load("mine"), out).l2
set mine
status
out
remove 1
remove 77
continue
location
eval y.shape
eval out.dtype
next
step
clear
breaks
continue --until latents
continue --max-wait 100
status
location
log
clean --yes
sessions
"""


def debug_both(scratch: Path, root: Path):
    """The same commands for gomflux and for the reference print the same but for numbers, if gomflux is built."""
    gomflux = root.parent.parent / "bin" / "gomflux"
    if not gomflux.exists():
        return print(f"debug_both: no {gomflux} (make build)", file=sys.stderr)
    request = ["--prompt", "a red circle", "--steps", "3", "--height", "24", "--width", "40", "--guidance", "0"]
    model = str(root / "zimage-ordinary" / "model")
    reference = [sys.executable, "-m", "gomflux_reference"]
    said = []
    for program, run in (
        ([str(gomflux)], ["generate", "--model", model, "--output", str(scratch / "x.png"), *request]),
        (reference, ["dump", model, str(scratch / "out"), "--taps", "image", *request]),
    ):
        with sessions_in(scratch):
            commands = [["start", "--", *run], *(split(line) for line in BOTH.strip().splitlines())]
            said.append([])
            for argv in commands:
                done = subprocess.run([*program, "debug", *argv], capture_output=True, text=True, timeout=200)
                output = normalized(argv[0], done.stdout)
                said[-1].append((" ".join(argv) if argv[0] != "start" else "start", done.returncode, output))
    different = [(a, b) for a, b in zip(*said) if a != b]
    for (argv, code, a), (_, other, b) in different:
        print(f"debug {argv}\n--- gomflux, exit status {code}\n{a}\n--- reference, exit status {other}\n{b}")
    assert not different, f"{len(different)} of {len(said[0])} commands"


def split(line: str) -> list[str]:
    name, _, rest = line.partition(" ")
    return [name, rest] if name == "eval" else line.split()


def normalized(name: str, printed: str) -> str:
    """What both programs print: without numbers, files, names of classes, and code."""
    lines = []
    for line in printed.replace("gomflux-reference", "gomflux").replace("(reference)", "(gomflux)").splitlines():
        if name == "location" and (line.startswith(("   ", "before:")) or re.search(r":\d+, ", line)):
            continue
        line = re.sub(r"/\S+", "FILE", line)
        line = re.sub(r"(\])  +[-+0-9.eNaIinf ]+$", r"\1 NUMBERS", line)
        line = re.sub(r"(\]|\)):? +min .*", r"\1 NUMBERS", line)
        line = re.sub(r"-?\d+\.\d+(e[-+]?\d+)?|-?\d+e[-+]?\d+", "NUMBER", line)
        line = re.sub(r"(at|count)=\d+", r"\1=NUMBER", line)
        if name == "clean":
            line = re.sub(r"\d+ kB", "NUMBER kB", line)
        if name == "location":
            line = re.sub(r" \(\w+\)", "", line)
        if name in ("next", "step"):  # one of the programs may have a tensor more
            line = re.sub(r"after .*", "", line)
        if name == "vars":
            line = line.replace("bfloat16", "float32")
        if name != "log" and not line.startswith(("command:", "output:", "trace:", "run:")):
            lines.append(" ".join(line.split()))
    return "\n".join(lines)


TESTS = (debug_both, debug_tensors, debug_scripts, debug_lines, debug_installed, debug_refused, debug_signals)

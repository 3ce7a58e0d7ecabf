"""Tests of prune.py."""

import ast
import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from . import prune, sources
from .families import MODULES

SOURCE = '''\
"""Module."""
import torch

# A comment.
def called(x):  # another
    def inner(y):
        return y
    return [inner for _ in x]

@decorator(1)
@other
def decorated(x):
    """Doc é.

    More.
    """
    # before
    y = "é"; z = 1
    return y  # after

def one_line(x): return "é", x  # why

def two(x): a = 1; b = 2

def plain(x):
    """Doc."""
    return x

def only_doc(): "Doc."

def generator():
\tyield 1

async def later(x,
                y=lambda: 1):
    async with x:
        pass

@overload
def typed(x): ...

@torch.jit.script
def compiled(x):
    return x

class A:
    x = [i for i in range(3)]

    @property
    def p(self):
        return self._p

    @p.setter
    def p(self, p):
        @wraps(p)
        def f():
            return p
        self._p = f

    def abstract(self):
        """Doc."""
        raise NotImplementedError(
            "x"
        )

    def empty(self):
        pass

@dataclass
class B:
    def __init__(self):
        """Args."""
        self.x = 1

    class C:
        def m(self):
            """Args."""
            return 1
'''

ERROR = 'raise RuntimeError("m.{} was not called in the profile: see PRUNED.md")'
REPLACED = (  # old text, and what is around the error in the new one
    ("        return y\n", "        ", "called.inner", "\n"),
    ('    y = "é"; z = 1\n    return y  # after', "    ", "decorated", "  # after"),
    ('return "é", x  # why', "", "one_line", "  # why"),
    ("a = 1; b = 2\n", "", "two", "\n"),
    ('    """Doc."""\n    return x\n\ndef only_doc', "    ", "plain", "\n\ndef only_doc"),
    ("\tyield 1\n", "\t", "generator", "\n"),
    ("    async with x:\n        pass\n", "    ", "later", "\n"),
    ("        return self._p\n", "        ", "A.p", "\n"),
    (
        "        @wraps(p)\n        def f():\n            return p\n        self._p = f\n", "        ", "A.p", "\n",
    ),
    ("    def empty(self):\n        pass\n", "    def empty(self):\n        ", "A.empty", "\n"),
    ("        self.x = 1\n", "        ", "B.__init__", "\n"),
    ('        def m(self):\n            """Args."""\n            return 1\n', "        def m(self):\n            ", "B.C.m", "\n"),
)  # fmt: skip


def functions_reduced(scratch: Path, root: Path):
    """Functions that were not called raise an error, and everything else stays as it is written."""
    expected = SOURCE
    for old, before, name, after in REPLACED:
        assert expected.count(old) == 1, old
        expected = expected.replace(old, before + ERROR.format(name) + after)
    found, count, called = prune.reduced(SOURCE.encode(), {(5, "called")}, "m")
    assert found.decode() == expected, found.decode()
    assert (count, called) == (17, 1), (count, called)
    compile(found, "m", "exec")
    every_file()


def families_apart(scratch: Path, root: Path):
    """No module of a family imports another one, since only_family_of leaves those out."""
    for module in MODULES:
        for node in ast.walk(ast.parse((Path(__file__).parent / "families" / f"{module}.py").read_text(encoding="utf-8"))):
            imported = {name.name for name in node.names} if isinstance(node, ast.ImportFrom) and not node.module else set()
            assert not imported & set(MODULES), (module, imported)


def every_file():
    """All files of a package, with every second of their functions called."""
    for file in sorted(Path(find_spec("diffusers").origin).parent.joinpath("models").rglob("*.py")):
        text = file.read_bytes()
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, sources.FUNCTIONS)]
        called = {(sources.first_line(f), f.name) for f in functions[::2]}
        new, count, kept = prune.reduced(text, called, "m")
        tree = ast.parse(new)
        assert count >= kept <= len(called) and (not functions or kept), file
        bodies = [ast.unparse(n.body[-1]) for n in ast.walk(tree) if isinstance(n, sources.FUNCTIONS)]
        stay = sum(prune.stays(f) for f in functions[1::2])
        assert sum("not called in the profile" in b for b in bodies) >= count - kept - stay, file


REQUEST = dict(prompt="paint it red", steps=2, memory=1 << 28, compute="float32", device="cpu", threads=1)
EDITS = {
    "zimage-ordinary": dict(height=24, width=40, guidance=2.0, negative_prompt="blue"),
    "flux1-dev-small": dict(height=32, width=48, guidance=3.5),
    "flux2-klein": dict(height=48, width=32, guidance=1.0, references=["flux2-klein-edit2/first.png"]),
    "qwen-image-ordinary": dict(height=32, width=48, guidance=3.5, negative_prompt="dark"),
    "qwen-edit": dict(height=32, width=48, guidance=1.0, references=["qwen-edit/first.png"]),
}


def copy_of(root: Path, golden: str, out: Path):
    given = dict(guidance=0.0, negative_prompt=None, seed=1, max_sequence_length=64, taps=["*"]) | REQUEST | EDITS[golden]
    given["references"] = [root / file for file in given.get("references", [])]
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        prune.make(out, model=str(root / golden / "model"), **given)
    return printed.getvalue()


def copies(scratch: Path, root: Path):
    """Copies for a model of each kind compute the same tensors, and say what they do not have."""
    for golden in EDITS:
        said = copy_of(root, golden, scratch / golden)
        assert "tensors are the same, bit for bit" in said and (scratch / golden / "PRUNED.md").exists(), said
        assert [p.name for p in scratch.iterdir() if p.name.startswith(".")] == []
    copy = scratch / "zimage-ordinary"
    for code, what in (
        ("from transformers import BertModel", "transformers/models/bert/modeling_bert.py was not executed in the profile"),
        ("import diffusers.pipelines.flux", "ModuleNotFoundError: diffusers.pipelines.flux is not in this copy"),
        ("import diffusers.pipelines as p; p.nothing", "AttributeError"),
        ("from diffusers import ZImagePipeline as Z; Z.num_timesteps.fget(1)", "num_timesteps was not called in the profile"),
    ):
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert what in done.stderr.splitlines()[-1], done.stderr
    refused(copy_of, f"{copy}: expected a new or empty folder", root, "zimage-ordinary", copy)


def refused(call, what: str, *args):
    try:
        call(*args)
    except SystemExit as e:
        assert what in str(e) and "\n" not in str(e), e
    else:
        raise AssertionError(f"no error about {what}")


def wrong_copies(scratch: Path, root: Path):
    """A copy that computes something else, or nothing, is noticed and removed."""
    copied, scratch = prune.copied, scratch / "copies"
    scratch.mkdir(parents=True)
    for old, new, what in (
        ("return F.silu(x1) * x3", "return F.silu(x1) * x3 * 1.0001", "transformer.noise_refiner.0.feed_forward.w2@0:in.0 differs first"),
        ("return F.silu(x1) * x3", "return F.silu(x1) * y", "NameError: name 'y' is not defined"),
    ):

        def changed(seen, to):
            result = copied(seen, to)
            file = to / "diffusers" / "models" / "transformers" / "transformer_z_image.py"
            text = file.read_text(encoding="utf-8")
            assert text.count(old) == 1
            file.write_text(text.replace(old, new), encoding="utf-8")
            return result

        with mock.patch.object(prune, "copied", changed):
            refused(copy_of, what, root, "zimage-ordinary", scratch / "wrong")
        assert list(scratch.iterdir()) == []
    terminated(scratch, root)


def terminated(scratch: Path, root: Path):
    """A signal leaves nothing of the copy."""
    model = str(root / "zimage-ordinary" / "model")
    command = ["prune", model, str(scratch / "ended"), "--prompt", "x", "--steps", "2", "--height", "24", "--width", "40"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-m", __package__, *command], env=environment, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line == "repeating it with the copy\n":
            assert list(scratch.iterdir())
            process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(60)
    assert process.returncode == 128 + signal.SIGTERM and list(scratch.iterdir()) == [], process.returncode

"""Tests of tracing.py, which need no other package: python3.13 -m gomflux_reference.tracing_test runs them with any
Python from 3.11 on."""

import importlib
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .tracing import METHOD, Observer

CODE = {
    "small/__init__.py": "",
    "small/model.py": """\
import threading
import time
from contextlib import contextmanager

from other import helpers


def branch(x):
    if x > 2:
        return "large"
    for i in range(3):
        if i == 5:
            raise ValueError(
                i
            )
    else:
        x += 1
    return [
        i
        for i in range(x)
    ]


def numbers(n):
    for i in range(n):
        yield i


@contextmanager
def around():
    try:
        yield 1
    except KeyError:
        return


def fails():
    numbers(1)
    raise KeyError


class Model:
    def forward(self, n):
        if n:
            return self.forward(n - 1)
        return helpers.sleep(lambda: inside())

    def unused(self):
        return 1


def inside():
    time.sleep(0.02)


def caller():
    time.sleep(0.01)
    Model().forward(2)


async def later():
    return 1


def rare(last):
    for i in range(1000):
        if i == last:
            branch(3)


def run():
    branch(1)
    list(numbers(3))
    with around():
        fails()
    caller()
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    try:
        later().send(None)
    except StopIteration:
        pass
    rare(0)
    rare(999)
""",
    "other/__init__.py": "",
    "other/helpers.py": "import time\n\n\ndef sleep(then):\n    time.sleep(0.03)\n    return then()\n",
}


def observed(scratch: Path, root: Path | None = None):
    """Calls, lines and own times of a small package, with all the Pythons that are at hand."""
    for name, text in CODE.items():
        file = scratch / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sys.path.insert(0, str(scratch))
    try:
        check(scratch / "small")
    finally:
        sys.path.remove(str(scratch))
        for name in ("small.model", "small", "other.helpers", "other"):
            sys.modules.pop(name, None)
    for python in ("python3.11", "python3.12", "python3.13", "python3.14") if root else ():
        found = shutil.which(python)
        if found and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            command = [found, "-m", __name__]
            done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
            assert not done.returncode, f"{python}: {done.stderr}"


def check(folder: Path):
    observer = Observer({"small": folder})
    with observer.calls():
        model = importlib.import_module("small.model")
        list(model.numbers(2))
    names = [code.co_qualname for code in observer.noted()]
    assert sorted(names) == ["<module>", "<module>", "Model", "numbers"], names
    assert not observer.functions()
    for _ in range(2):  # a second time sees the same
        observer.home = lambda file: "home" if file.endswith("model.py") else None
        with observer.everything():
            model.run()
        looked_at({f.code.co_qualname: f for f in observer.functions()}, "home")
    observer.home = lambda file: None
    with observer.everything():
        observer.places.append("a.b")
        model.caller()
        observer.places.pop()
        model.inside()
    found = {f.code.co_qualname: f.places for f in observer.functions()}
    assert found["caller"].keys() == {"a.b"} and found["inside"].keys() == {"a.b", "other"}, found
    assert sys.gettrace() is None and threading.gettrace() is None
    hidden_functions(folder, model)


def hidden_functions(folder: Path, model):
    """The time of hidden functions is nobody's."""
    observer = Observer({"small": folder}, hidden=folder.parent / "other")
    with observer.everything():
        model.caller()
    found = {f.code.co_qualname: f for f in observer.functions()}
    assert "sleep" not in found and found["Model.forward"].own < 0.02e9, found["Model.forward"].own
    assert found["inside"].own > 0.019e9


def looked_at(found: dict, place: str):
    calls = {name: f.calls for name, f in found.items()}
    assert calls == {
        "run": 1, "branch": 3, "numbers": 1, "around": 1, "fails": 1, "caller": 1, "Model.forward": 3, "later": 1,
        "Model.forward.<locals>.<lambda>": 1, "inside": 2, "rare": 2,
    }, calls  # fmt: skip
    assert all(f.places.keys() == {place} for f in found.values())
    left = {name: sorted(f.left) for name, f in found.items() if f.left}
    assert left == {"branch": [13, 14]}, left
    own = {name: f.own / 1e9 for name, f in found.items()}
    assert 0.009 < own["caller"] < 0.025, own
    assert 0.029 < own["Model.forward"] < 0.045, own  # with that of the other package
    assert 0.039 < own["inside"] < 0.06, own  # both threads'
    assert own["Model.forward.<locals>.<lambda>"] < 0.005, own


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        observed(Path(scratch))
    print(f"ok: {METHOD} of Python {sys.version.split()[0]}")

"""Tests of tracing.py, which need no other package: python3.13 -m gomflux_reference.tracing_test runs them with any
Python from 3.11 on."""

import importlib
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

from . import tracing
from .tracing import METHOD, Observer

CODE = {
    "small/__init__.py": "",
    "small/model.py": """\
import threading
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
        helpers.sleep(30)
        return helpers.then(lambda: inside())

    def unused(self):
        return 1


def inside():
    helpers.sleep(20)


def caller():
    helpers.sleep(10)
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
    "other/helpers.py": """\
now = 0


def sleep(time):
    global now
    now += time


def then(call):
    sleep(1)
    return call()
""",
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
    helpers = sys.modules["other.helpers"]
    with mock.patch.object(tracing, "clock", lambda: helpers.now):
        looked_at(observer, model, folder)


def looked_at(observer: Observer, model, folder: Path):
    names = [code.co_qualname for code in observer.noted()]
    assert sorted(names) == ["<module>", "<module>", "Model", "numbers"], names
    assert not observer.functions()
    for _ in range(2):  # a second time sees the same
        observer.home = lambda file: "home" if file.endswith("model.py") else None
        with observer.everything():
            model.run()
        all_of({f.code.co_qualname: f for f in observer.functions()}, "home")
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
    assert {name: f.own for name, f in found.items() if f.own} == {}
    observer = Observer({"small": folder}, hidden=folder.parent / "elsewhere")
    with observer.everything():
        model.caller()
    found = {f.code.co_qualname: f.own for f in observer.functions()}
    assert found == {"caller": 10, "Model.forward": 31, "Model.forward.<locals>.<lambda>": 0, "inside": 20}, found


def all_of(found: dict, place: str):
    calls = {name: f.calls for name, f in found.items()}
    assert calls == {
        "run": 1, "branch": 3, "numbers": 1, "around": 1, "fails": 1, "caller": 1, "Model.forward": 3, "later": 1,
        "Model.forward.<locals>.<lambda>": 1, "inside": 2, "rare": 2,
    }, calls  # fmt: skip
    assert all(f.places.keys() == {place} for f in found.values())
    left = {name: sorted(f.left) for name, f in found.items() if f.left}
    assert left == {"branch": [12, 13]}, left
    own = {name: f.own for name, f in found.items() if f.own}
    # with the other package's, of both threads; run waits for the other thread
    assert own == {"run": 20, "caller": 10, "Model.forward": 31, "inside": 40}, own


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        observed(Path(scratch))
    print(f"ok: {METHOD} of Python {sys.version.split()[0]}")

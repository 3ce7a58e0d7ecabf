"""profile: reports which code of the libraries a generation executes."""

import re
import shlex
import sys
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch

from . import dump, runs, sources
from .files import write_json
from .inpaint import Pictures
from .record import Recorder, leaves
from .tracing import METHOD, OTHER, Observer

HOT = 100  # more calls than that are marked
LISTED = 12  # implementations that PROFILE.md lists; profile.json has all
SHARED = ("pipeline", "scheduler", "tokenizer")  # components that are no modules


def run(
    model: str, out: Path | None, prompt, negative_prompt, steps, guidance, seed, height, width, max_sequence_length,
    picture=None, image_strength=None, references=(), scheduler=None, compute="float32", device="cpu", threads=1,
    log_dir=None, loras=(), unchecked=False, modules: Path | None = None, compare: bool = False,
):  # fmt: skip
    """Runs a generation while it is observed, and writes PROFILE.md and profile.json into out, or into the folder of the
    latest run. With modules, only a list of the modules is written, to that file, and nothing is observed."""
    given = dict(
        prompt=prompt, negative_prompt=negative_prompt, steps=steps, guidance=guidance, seed=seed, height=height,
        width=width, max_sequence_length=max_sequence_length, compute=compute,
    )  # fmt: skip

    images = Pictures(picture, image_strength, references)

    def opened():
        return dump.opened(model, negative_prompt, images, scheduler, compute, device, threads, loras)

    def generated(pipe, family, around=None):
        record = Recorder(None, [], keep=False)
        return dump.generate(pipe, family, record, given, images, scheduler, None, None, unchecked, around)

    if modules:
        pipe, _, family = opened()
        watch = Modules(pipe)
        generated(pipe, family)
        write_list(watch, modules)
        return
    if out and out.exists() and not out.is_dir():
        raise SystemExit(f"{out}: not a folder")
    observer = Observer(packages(), hidden=Path(__file__).parent)
    began = perf_counter()
    with observer.calls():
        pipe, name, family = opened()
    seconds = {"loading": perf_counter() - began}
    own = None if out else runs.Run(log_dir)
    with own or nullcontext():
        folder = own.folder if own else out
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"command": "profile", "family": name, "model": str(model), **given}
        if own:
            own.begin(settings)
        watch = Modules(pipe, observer)
        observer.home = homes(pipe).get
        image, _, more = generated(pipe, family, timed(seconds, "running", observer.everything()))
        seconds["observer"] = observer.spent / 1e9
        if own:
            image.save(own.folder / "images" / "image.png")
        if compare:
            plain, _, _ = opened()
            generated(plain, family, timed(seconds, "unobserved", nullcontext()))
            again, _, _ = opened()
            second = Observer(packages(), hidden=Path(__file__).parent)
            generated(again, family, timed(seconds, "observed_again", second.everything()))
            seconds["slow_down"] = seconds["observed_again"] / seconds["unobserved"]
        settings = {"pipeline": more["pipeline"], **settings, "versions": runs.versions()}
        found = report(observer, pipe, watch, settings, seconds)
        write_json(folder / "profile.json", found, 1)
        (folder / "PROFILE.md").write_text(markdown(found), encoding="utf-8")
    print(folder / "PROFILE.md")


@contextmanager
def timed(seconds: dict, key: str, around):
    began = perf_counter()
    with around:
        yield
    seconds[key] = perf_counter() - began


def packages() -> dict:
    """The folders of the packages that are observed."""
    folders = {name: Path(find_spec(name).origin).parent for name in ("diffusers", "transformers", "torch")}
    folders["torch.nn"] = folders.pop("torch") / "nn"
    return folders


class Modules:
    """The modules of a pipeline: which are called, and with what. Tells the observer which one is running."""

    def __init__(self, pipe, observer: Observer | None = None):
        self.classes, self.shapes, self.calls = {}, {}, {}
        self.files = {}
        for component, part in dump.modules_of(pipe).items():
            for path, m in part.named_modules():
                name = f"{component}.{path}" if path else component
                self.classes[name] = type(m).__name__
                self.files[type(m).__name__] = sys.modules[type(m).__module__].__file__
                if observer:
                    self._tell(m, name, observer.places)
                m.register_forward_hook(self._note(name), with_kwargs=True)

    def _tell(self, module, name: str, places: list):
        module.register_forward_pre_hook(lambda *_: places.append(name))
        module.register_forward_hook(lambda *_: places.pop() and None, always_call=True)

    def _note(self, name):
        def shapes(value):
            return " ".join(f"{k}{list(t.shape)}" for k, t in leaves(value))

        def hook(module, args, kwargs, output):
            self.calls[name] = self.calls.get(name, 0) + 1
            if name not in self.shapes:
                self.shapes[name] = " ".join(filter(None, (shapes(list(args)), shapes(kwargs), "->", shapes(output))))

        return hook

    def groups(self) -> list[dict]:
        """The modules, those together that differ in numbers only. What is never called (a container, or a module whose
        forward is passed by) has no shapes."""
        groups = {}
        for name, cls in self.classes.items():
            kind = (pattern(name), cls, re.sub(r"\[[^]]*\]", "", self.shapes.get(name, "")))
            groups.setdefault(kind, []).append(name)
        return [
            {
                "module": names[0], "names": names, "like_it": len(names) - 1, "class": cls,
                "calls": sum(self.calls.get(n, 0) for n in names), "shapes": self.shapes.get(names[0]),
            }
            for (_, cls, _), names in groups.items()
        ]  # fmt: skip


def pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name)


def write_list(watch: Modules, file: Path):
    """Writes a line per kind of module: path, class, shapes of inputs -> of outputs in the first call."""
    lines = []
    for g in watch.groups():
        more = f" (+{g['like_it']})" if g["like_it"] else ""
        lines.append(f"{g['module']}{more}: {g['class']}: {g['shapes'] or 'never called'}\n")
    file.write_text("".join(lines), encoding="utf-8")


def homes(pipe) -> "Homes":
    """The components that files belong to: those of the classes of components, and of kinds of files."""
    found = Homes()
    for name, part in pipe.components.items():
        for cls in type(part).__mro__:
            folder = cls.__module__.split(".")[:2]
            if isinstance(part, torch.nn.Module) and folder in (["diffusers", "models"], ["transformers", "models"]):
                found.setdefault(sys.modules[cls.__module__].__file__, name)
    return found


class Homes(dict):
    KINDS = (
        (re.compile(r"/diffusers/schedulers/"), "scheduler"),
        (re.compile(r"/diffusers/(pipelines/|image_processor\.py|loaders/)"), "pipeline"),
        (re.compile(r"/transformers/.*(tokenization|image_processing|processing|image_transforms|image_utils|"
                    r"feature_extraction)\w*\.py"), "tokenizer"),
    )  # fmt: skip

    def __missing__(self, file: str):
        file = file.replace("\\", "/")
        return next((component for kind, component in self.KINDS if kind.search(file)), None)

    def get(self, file: str):
        return self[file]


def report(observer: Observer, pipe, watch: Modules, settings: dict, seconds: dict) -> dict:
    functions = [described(f) for f in observer.functions() if f.calls]
    functions.sort(key=lambda f: (-f["own_seconds"], f["file"], f["line"]))
    own = {}  # by module
    for f in observer.functions():
        for place, (_, nanoseconds) in f.places.items():
            own[place] = own.get(place, 0.0) + nanoseconds / 1e9
    modules = watch.groups()
    for g in modules:
        g["own_seconds"] = sum(own.get(name, 0.0) for name in g.pop("names"))
    return {
        **settings,
        "python": sys.version.split()[0],
        "method": METHOD,
        "command_line": shlex.join(sys.argv),
        "seconds": seconds,
        "hot": HOT,
        "components": by_component(functions, list(dump.modules_of(pipe))),
        "implementations": implementations(observer, pipe, watch, functions),
        "modules": modules,
        "functions": functions,
        "loading": loaded(observer),
    }


def described(function) -> dict:
    code = function.code
    where = {}
    for place, (calls, own) in function.places.items():
        w = where.setdefault(pattern(place), {"module": pattern(place), "calls": 0, "own_seconds": 0.0})
        w["calls"] += calls
        w["own_seconds"] += own / 1e9
    source = sources.source(code.co_filename)
    return {
        "file": code.co_filename, "line": code.co_firstlineno, "function": code.co_qualname,
        "package": function.package, "calls": function.calls, "own_seconds": function.own / 1e9,
        "hot": function.calls > HOT, "where": sorted(where.values(), key=lambda w: -w["own_seconds"]),
        "not_reached": source.not_reached(code, function.left) if source and function.left else [],
    }  # fmt: skip


def by_component(functions: list[dict], modules: list[str]) -> list[dict]:
    found = {}
    for f in functions:
        for w in f["where"]:
            component = w["module"].split(".")[0]
            component = component if component in (*modules, *SHARED) else OTHER
            file = found.setdefault(component, {}).setdefault(
                f["file"], {"file": f["file"], "package": f["package"], "calls": 0, "own_seconds": 0.0, "functions": 0}
            )
            file["calls"] += w["calls"]
            file["own_seconds"] += w["own_seconds"]
            file["functions"] += 1
    result = []
    for component, files in found.items():
        ordered = sorted(files.values(), key=lambda file: -file["own_seconds"])
        for file in ordered:
            file["hot"] = file["calls"] > HOT
        total = {key: sum(file[key] for file in ordered) for key in ("calls", "own_seconds")}
        result.append({"component": component, **total, "files": ordered})
    return sorted(result, key=lambda c: -c["own_seconds"])


def loaded(observer: Observer) -> list[dict]:
    """What was called while the pipeline was loaded, by file."""
    found = {}
    for code in observer.noted():
        if code.co_flags & 1 and not code.co_name.startswith("<"):  # functions alone, as inspect.CO_OPTIMIZED has it
            found.setdefault(code.co_filename, set()).add(code.co_qualname)
    return [{"file": file, "functions": sorted(names)} for file, names in sorted(found.items())]


def implementations(observer: Observer, pipe, watch: Modules, functions: list[dict]) -> list[dict]:
    """Which of several classes, functions and files were executed."""
    ran = {}  # file -> qualified names
    for f in functions:
        if f["package"] != "torch.nn":
            ran.setdefault(f["file"], set()).add(f["function"])
    for cls, file in watch.files.items():
        if file in ran:
            ran[file].add(cls)
    found = attention(pipe, observer) + tokenizers(pipe)
    for file, names in sorted(ran.items()):
        source = sources.source(file)
        if not source:
            continue
        used = {name.split(".")[0] for name in names} & source.classes.keys()
        bases = source.bases(used)
        for name in sorted(used, key=source.starts.get):
            others = [] if name.endswith("Mixin") else sources.other_classes(source, name, used | bases)
            if others or "AttnProcessor" in name:
                found.append(entry("class", name, file, source.starts[name], classes_at(source, others)))
        if others := sources.other_files(file, ran.keys()):
            found.append(entry("file", Path(file).name, file, 1, [{"name": Path(o).name, "file": o} for o in others]))
    return found


def entry(kind: str, name: str, file: str, line: int, others: list[dict]) -> dict:
    return {"kind": kind, "ran": {"name": name, "file": file, "line": line}, "not_run": others}


def classes_at(source, names: list[str]) -> list[dict]:
    return [{"name": n, "file": source.file, "line": source.starts[n]} for n in names]


def attention(pipe, observer: Observer) -> list[dict]:
    """The attention functions that were called, of those that the libraries can choose from."""
    ran = observer.functions()
    called = {id(f.code) for f in ran}
    tables = []
    if dispatch := sys.modules.get("diffusers.models.attention_dispatch"):
        backends = dispatch._AttentionBackendRegistry._backends
        tables.append(("attention backend", {getattr(k, "value", k): f for k, f in backends.items()}))
    if modeling := sys.modules.get("transformers.modeling_utils"):
        tables.append(("attention function", dict(modeling.ALL_ATTENTION_FUNCTIONS.items())))
    found = []
    for kind, table in tables:
        table = {name: f for name, f in table.items() if hasattr(f, "__code__")}
        others = [{"name": name, **at(f)} for name, f in table.items() if id(f.__code__) not in called]
        if kind == "attention function":  # of which each model's file has its own
            others += [{"name": "eager"}] if not any(f.code.co_name == "eager_attention_forward" for f in ran) else []
        for name, f in table.items():
            if id(f.__code__) in called:
                found.append({"kind": kind, "ran": {"name": name, "function": f.__name__, **at(f)}, "not_run": others})
    return found


def at(function) -> dict:
    return {"file": function.__code__.co_filename, "line": function.__code__.co_firstlineno}


def tokenizers(pipe) -> list[dict]:
    """The tokenizers and image processors of the pipeline, and the other kind of each."""
    found = []
    for name, part in pipe.components.items():
        for member in (part, getattr(part, "tokenizer", None), getattr(part, "image_processor", None)):
            cls = type(member)
            kind, near = ("tokenizer", "tokenization") if hasattr(member, "is_fast") else ("image processor", "image_processing")
            if not cls.__module__.startswith("transformers.") or near not in cls.__module__:
                continue
            file = Path(sys.modules[cls.__module__].__file__)
            others = [{"name": f.name, "file": str(f)} for f in sorted(file.parent.glob(f"{near}_*.py")) if f != file]
            line = sources.source(str(file)).starts.get(cls.__name__, 1)
            made = entry(kind, cls.__name__, str(file), line, others)
            made["ran"] |= {"component": name}
            if kind == "tokenizer":
                made["ran"] |= {"fast": member.is_fast, "backend": member.backend}
            found.append(made)
    return found


def markdown(found: dict) -> str:
    seconds = found["seconds"]
    lines = [
        f"# Profile of {found['pipeline']}", "",
        f"`{found['command_line']}`", "",
        f"Model: `{found['model']}`, {found['steps']} steps, {found['width']}x{found['height']}. Python {found['python']}, "
        f"{found['method']}; " + ", ".join(f"{k} {v}" for k, v in found["versions"].items()) + ".", "",
        "| | seconds |", "|---|---|",
        f"| loading (calls are noted, nothing else) | {seconds['loading']:.2f} |",
        f"| running, observed | {seconds['running']:.2f} |",
        f"| of that in the observer | {seconds['observer']:.2f} |",
    ]  # fmt: skip
    if "unobserved" in seconds:
        lines += [
            f"| once more, not observed | {seconds['unobserved']:.2f} |",
            f"| once more, observed | {seconds['observed_again']:.2f}, slower by a factor of {seconds['slow_down']:.2f} |",
        ]
    lines += [
        "", "Own times are those of a function without the functions below it that are listed here: operations of torch "
        "count to their caller. They contain what is left of the observer's cost, and so does the time of running.",
        f"**hot**: more than {found['hot']} calls.", "", "## Files by component", "",
    ]  # fmt: skip
    for c in found["components"]:
        lines += [f"### {c['component']}: {c['calls']:,} calls, {c['own_seconds']:.3f} s", ""]
        lines += ["| | calls | own s | functions | file |", "|---|---|---|---|---|"]
        lines += [
            f"| {hot(f)} | {f['calls']:,} | {f['own_seconds']:.3f} | {f['functions']} | `{f['file']}` |" for f in c["files"]
        ] + [""]
    lines += ["## Which of several implementations ran", ""] + implementation_lines(found["implementations"])
    lines += ["## Modules", "", "| calls | own s | module | class | inputs -> outputs of the first call |"]
    lines += ["|---|---|---|---|---|"]
    for m in found["modules"]:
        more = f" (+{m['like_it']})" if m["like_it"] else ""
        called = f"{m['calls']:,} | {m['own_seconds']:.3f}" if m["calls"] else "never | "
        lines += [f"| {called} | {m['module']}{more} | {m['class']} | {m['shapes'] or ''} |"]
    lines += ["", "## Functions", ""] + function_lines(found["functions"])
    lines += ["## Loading", "", "What was called while the pipeline was loaded.", ""]
    lines += [f"- `{f['file']}`: {', '.join(f['functions'])}" for f in found["loading"]]
    return "\n".join(lines) + "\n"


def hot(item: dict) -> str:
    return "**hot**" if item["hot"] else ""


def implementation_lines(found: list[dict]) -> list[str]:
    lines = []
    for i in found:
        ran, others = i["ran"], i["not_run"]
        told = [o["name"] + (f" ({Path(o['file']).parent.name})" if elsewhere(i, o) else "") for o in others]
        what = f"{i['kind']} `{ran['name']}`"
        for key in ("component", "fast", "backend", "function"):
            what += f", {key} {ran[key]}" if ran.get(key) is not None else ""
        more = f" and {len(told) - LISTED} more" if len(told) > LISTED else ""
        lines += [f"- {what}: `{ran['file']}:{ran['line']}`"]
        lines += [f"  - not run: {', '.join(told[:LISTED])}{more}"] if told else ["  - there is no other"]
    return [*lines, ""]


def elsewhere(implementation: dict, other: dict) -> bool:
    folder = Path(implementation["ran"]["file"]).parent
    return implementation["kind"] == "file" and Path(other["file"]).parent != folder


def function_lines(functions: list[dict]) -> list[str]:
    files = {}
    for f in functions:
        files.setdefault(f["file"], []).append(f)
    lines = []
    for file, members in sorted(files.items(), key=lambda item: -sum(f["own_seconds"] for f in item[1])):
        lines += [f"### {file}", "", "| | calls | own s | line | function | modules |", "|---|---|---|---|---|---|"]
        members.sort(key=lambda f: f["line"])
        for f in members:
            where = [w["module"] for w in f["where"]]
            more = f" and {len(where) - 3} more" if len(where) > 3 else ""
            row = f"{hot(f)} | {f['calls']:,} | {f['own_seconds']:.3f} | {f['line']} | {f['function']}"
            lines += [f"| {row} | {', '.join(where[:3])}{more} |"]
        missed = [f for f in members if f["not_reached"]]
        lines += ["", "Not reached:", ""] if missed else []
        lines += [f"- {f['function']}: {'; '.join(range_text(r) for r in f['not_reached'])}" for f in missed] + [""]
    return lines


def range_text(r: dict) -> str:
    lines = f"{r['first']}" if r["first"] == r["last"] else f"{r['first']}-{r['last']}"
    return f"{lines} (`{r.get('branch') or r['source']}`)"

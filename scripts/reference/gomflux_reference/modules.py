"""Lists the modules of a pipeline: which exist, which are called, and with what."""

import re
from pathlib import Path

import torch
from PIL import Image

from .dump import framed, load, prepare
from .families import FAMILIES
from .record import leaves


def show(folder: Path, out: Path | None = None):
    """Prints a line per kind of module: path, class, input shapes -> output shapes, as one step at 5x5 tokens calls it.

    Modules that differ in numbers only share a line. What is never called (a container, or a module whose forward is
    passed by) has no tensors.
    """
    prepare()
    pipe, name = load(folder)
    family = FAMILIES[name]
    seen, classes = {}, {}
    for component, part in pipe.components.items():
        if not isinstance(part, torch.nn.Module):
            continue
        for path, m in part.named_modules():
            name = f"{component}.{path}" if path else component
            classes[name] = type(m).__name__
            m.register_forward_hook(note(seen, name), with_kwargs=True)
    size = 5 * pipe.vae_scale_factor * 2
    arguments = family.arguments(pipe, 0.0, None)
    arguments |= {"num_inference_steps": 2, "max_sequence_length": 40}
    if 0 not in family.references:
        arguments["image"] = Image.new("RGB", (size, size))
    with family.running(pipe):
        pipe(prompt="a red circle", height=size, width=size, **arguments)
    with torch.no_grad():
        pipe.vae.encode(framed(pipe.vae, torch.zeros(1, 3, size, size)))
    groups = {}
    for name, cls in classes.items():
        line = seen.get(name, "never called")
        kind = (re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name), cls, re.sub(r"\[[^]]*\]", "", line))
        groups.setdefault(kind, []).append((name, line))
    lines = []
    for (_, cls, _), members in groups.items():
        name, line = members[0]
        lines.append(f"{name}{f' (+{len(members) - 1})' if len(members) > 1 else ''}: {cls}: {line}\n")
    if out:
        out.write_text("".join(lines), encoding="utf-8")
    else:
        print("".join(lines), end="")


def note(seen, name):
    def shapes(value):
        return " ".join(f"{k}{list(t.shape)}" for k, t in leaves(value))

    def hook(module, args, kwargs, output):
        seen.setdefault(name, " ".join(filter(None, (shapes(list(args)), shapes(kwargs), "->", shapes(output)))))

    return hook

"""Reads Python files: their classes, their branches, and files that look like alternatives of one another."""

import ast
import re
from functools import cache
from pathlib import Path

SHORT = 80  # characters of a source line that a report shows
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# What classes have in common although neither could be used in the place of the other.
COMMON_BASES = {"Module", "object", "ABC", "Enum", "ModelMixin", "ConfigMixin", "PreTrainedModel", "ModelOutput",
                "BaseOutput", "DiffusionPipeline", "GradientCheckpointingLayer", "GenerationMixin", "PreTrainedConfig",
                "AttentionMixin", "CacheMixin", "FromOriginalModelMixin", "PeftAdapterMixin", "TypedDict",
                "AttentionModuleMixin", "OutputRecorder"}  # fmt: skip


class Source:
    def __init__(self, file: str):
        self.file = file
        self.text = Path(file).read_text(encoding="utf-8")
        self.lines = self.text.split("\n")
        self.tree = ast.parse(self.text)
        # name -> bases
        self.classes = {n.name: {base_of(b) for b in n.bases} for n in self.tree.body if isinstance(n, ast.ClassDef)}
        self.starts = {n.name: n.lineno for n in self.tree.body if isinstance(n, (ast.ClassDef, *FUNCTIONS))}
        self.blocks = {}  # first line -> the statement that leads there, of several the outermost, and if it is its else
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor, ast.ExceptHandler, ast.match_case)):
                self.blocks.setdefault(first_line(node.body[0]), (node, False))
            if isinstance(getattr(node, "orelse", None), list) and node.orelse:
                self.blocks.setdefault(first_line(node.orelse[0]), (node, True))

    def bases(self, names: set[str]) -> set[str]:
        """The classes of this file that some inherit from."""
        found, new = set(), set(names)
        while new := {base for name in new for base in self.classes.get(name, ()) if base in self.classes} - found:
            found |= new
        return found

    def functions(self):
        return [n for n in ast.walk(self.tree) if isinstance(n, FUNCTIONS)]

    def not_reached(self, code, left: set[int]) -> list[dict]:
        """Ranges of a function's lines that were not reached, each with the branch that leads there or its first line."""
        found, before = [], None
        for line in sorted({line for _, _, line in code.co_lines() if line}):
            if line in left and before in left:
                found[-1]["last"] = line
            elif line in left:
                found.append({"first": line, "last": line} | self._at(line))
            before = line
        return found

    def _at(self, line: int) -> dict:
        if block := self.blocks.get(line):
            node, otherwise = block
            return {"branch": f"else of {head_of(node)}" if otherwise else head_of(node)}
        return {"source": short(self.lines[line - 1])}


@cache
def source(file: str) -> Source | None:
    """A file's source, or None of one that cannot be read or parsed."""
    try:
        return Source(file)
    except (OSError, ValueError, SyntaxError):
        return None


def head_of(node) -> str:
    """A statement up to its colon."""
    text = "try" if isinstance(node, ast.Try) else ast.unparse(node).partition("\n")[0]
    return short(text.rstrip(":"))


def base_of(base: ast.expr) -> str:
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def first_line(node: ast.stmt) -> int:
    """The first line of a statement, or of its first decorator."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def last_word(name: str) -> str:
    words = re.findall(r"[A-Z][a-z]+", name)
    return words[-1] if words else name


def other_classes(source: Source, name: str, used: set[str]) -> list[str]:
    """Classes of the file that were not used, and could be used in the place of one that was: with a base in common, or
    with the same last word of the name."""
    bases = source.classes.get(name, set()) - COMMON_BASES
    return [
        other
        for other, theirs in source.classes.items()
        if other not in used and (theirs & bases or last_word(other) == last_word(name))
    ]


def other_files(file: str, used: set[str]) -> list[str]:
    """Files that were not executed and have similar names: of the same kind, of a model whose name begins likewise."""
    path = Path(file)
    folder, kind = path.parent, path.stem.split("_")[0]
    if folder.parent.name == "models" and folder.parent.parent.name == "transformers":  # a folder for each model
        family = re.match(r"[a-z]+", folder.name)[0]
        near = [f for f in folder.parent.glob(f"{family}*/{kind}_*.py")]
        near += [*folder.glob("modular_*.py")] if kind == "modeling" else []
    else:
        words = re.findall(r"[a-z]+", path.stem)
        near = [f for f in folder.glob("*.py") if len(words) > 1 and re.findall(r"[a-z]+", f.stem)[:2] == words[:2]]
    return sorted(str(f) for f in near if str(f) not in used)

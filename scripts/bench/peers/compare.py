"""Measures the cases with each engine in turn, and collects the results."""

import importlib.util
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import gomflux_side, process, timing
from .cases import ENGINES, PARTS, Case, Unsupported
from .process import Failed

BASE = "gomflux"  # ratios are relative to it
STEPS = 3  # that count, of each of gomflux's runs


def installed(engine: str, program: str) -> bool:
    if engine == BASE:
        return shutil.which(program) is not None
    module = engine.removesuffix("-compile")
    needed = (module, "mlx") if module == "mflux" else (module, "torch")
    return all(importlib.util.find_spec(name) for name in needed)


def choose(named: list | None, program: str, warn) -> list:
    """Returns the engines to compare. One that is not installed is left out, or an error if it was asked for."""
    engines = []
    for engine in named or ENGINES:
        if installed(engine, program):
            engines.append(engine)
            continue
        hint = f"{program}: no such program (make build)" if engine == BASE else "not installed (pip install " + (
            "diffusers transformers torch)" if engine.startswith("diffusers") else "mflux)"
        )  # fmt: skip
        if named:
            raise SystemExit(f"{engine}: {hint}")
        warn(f"{engine}: left out: {hint}")
    if not engines:
        raise SystemExit("no engine is installed")
    return engines


@dataclass
class Comparison:
    """The measurements of a run, and how they are made."""

    engines: list
    cases: list
    rounds: int = 2
    repeats: int = 10
    device: str | None = None
    program: str = "bin/gomflux"
    limit: float | None = None  # seconds of a process
    budget: float | None = None  # seconds of all processes
    output: Path | None = None  # written after each process
    parts: tuple = PARTS
    say: object = lambda line: print(line, file=sys.stderr, flush=True)
    clock: object = time.monotonic
    results: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    took: dict = field(default_factory=dict)  # seconds of the last process of a kind
    lost: set = field(default_factory=set)  # kinds of processes that failed

    def run(self):
        """Measures all cases, one after the other: each with all engines in turn, in fresh processes."""
        self.start = self.clock()
        for case in self.cases:
            for i, engine in enumerate(timing.in_turn(self.engines, self.rounds)):
                self.visit(engine, case, i // len(self.engines))

    def visit(self, engine: str, case: Case, round: int):
        if engine == BASE:
            measured = self.timed(engine, case, "all", self.of_gomflux)
            for part in self.parts if measured else ():
                self.add(engine, case.part_of(part), part, measured[part])
            return
        for part in self.parts:
            one = case.part_of(part)
            if len(self.of(engine, one, part)) <= round:  # or it was measured for another case
                measured = self.timed(engine, case, part, self.of_peer)
                if measured:
                    self.add(engine, one, part, measured)

    def of_gomflux(self, engine: str, case: Case, part: str, limit: float | None) -> dict:
        return gomflux_side.measure(case, self.program, self.device, max(1, self.repeats // STEPS), limit)

    def of_peer(self, engine: str, case: Case, part: str, limit: float | None) -> dict:
        return process.measure(engine, case.part_of(part), part, self.device, self.repeats, limit)

    def timed(self, engine: str, case: Case, part: str, measure) -> dict | None:
        """Runs a process if it fits into the budget, and reports what comes of it."""
        if (engine, case, part) in self.lost:
            return None  # it would fail again
        name = f"{case.spec.title}, {case.title}, {ENGINES[engine]}" + (f", {part}" if part != "all" else "")
        start = self.clock()
        left = None if self.budget is None else self.budget - (start - self.start)
        if left is not None and left < self.took.get((engine, case, part), 1):
            self.say(f"{name}: left out: not enough time left")
            return None
        try:
            measured = measure(engine, case, part, min((s for s in (self.limit, left) if s is not None), default=None))
        except (Failed, Unsupported) as e:
            self.lost.add((engine, case, part))
            self.say(f"{name}: {'left out: ' if isinstance(e, Unsupported) else ''}{e}")
            if isinstance(e, Failed):
                self.failures.append({"engine": engine, "case": case.json(), "part": part, "error": str(e)})
                self.write()
            return None
        self.took[engine, case, part] = self.clock() - start
        seen = measured if part != "all" else measured["step"]
        self.say(f"{name}: {seen['median_s'] * 1000:.4g} ms")
        return measured

    def of(self, engine: str, case: Case, part: str) -> list:
        return [r for r in self.results if (r["engine"], r["case"], r["part"]) == (engine, case.json(), part)]

    def add(self, engine: str, case: Case, part: str, measured: dict):
        self.results.append({"engine": engine, "case": case.json(), "part": part, **measured})
        self.write()

    def json(self) -> dict:
        return {"engines": self.engines, "results": self.results, "failures": self.failures}

    def write(self):
        """Writes the results so far, so that a run that is ended early is not lost."""
        if self.output:
            partial = self.output.with_name(self.output.name + ".part")
            partial.write_text(json.dumps(self.json(), indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self.output)

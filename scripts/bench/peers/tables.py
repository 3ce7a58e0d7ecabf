"""The results of comparisons as text and as the tables of docs/performance.md."""

import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from . import timing
from .cases import AUTOENCODERS, ENGINES, FAMILIES, MEGAPIXEL, Case, from_json
from .compare import BASE

WIDTH = 100  # columns of prose


@dataclass
class Section:
    """A family's steps, or an autoencoder's decodes."""

    title: str
    part: str
    columns: list  # of cases, and the pooled measurements of each by engine

    def engines(self) -> list:
        return [e for e in ENGINES if any(e in pooled for _, pooled in self.columns)]

    def main(self) -> int:
        """The number of the column whose first call is shown: that of a megapixel or next to it."""
        return min(range(len(self.columns)), key=lambda i: (abs(self.columns[i][0].size - MEGAPIXEL), i))


def sections(results: list) -> list:
    """Pools results: those of families first, in their order, then those of autoencoders."""
    pools = {}
    for r in results:
        pools.setdefault((r["part"], from_json(r["case"])), {}).setdefault(r["engine"], []).append(r)
    found = []
    for part, names in (("step", list(FAMILIES)), ("decode", [family for _, family in AUTOENCODERS.values()])):
        titles = {family: title for title, family in AUTOENCODERS.values()}
        for name in names:
            columns = [
                (case, {engine: timing.pooled(measured) for engine, measured in pool.items()})
                for (p, case), pool in pools.items()
                if p == part and case.family == name
            ]
            if columns:
                title = FAMILIES[name].title if part == "step" else titles[name]
                found.append(Section(title, part, sorted(columns, key=lambda c: order(c[0]))))
    return found


def order(case: Case) -> tuple:
    return case.dtype, case.quantize or 0, case.guided, case.images, case.size, case.prompt_tokens


def seconds(s: float) -> str:
    """Three digits, in ms below a second."""
    return f"{three(s)} s" if s >= 1 else f"{three(1000 * s)} ms"


def three(x: float) -> str:
    return f"{x:.{max(0, 3 - len(str(int(x))))}f}" if x >= 1 else f"{x:.3g}"


def size(n: int | None) -> str:
    if not n:
        return ""
    return f"{three(n / 1e9)} GB" if n >= 1e9 else f"{three(n / 1e6)} MB"


def ratio(pooled: dict, engine: str) -> str:
    """The time of an engine relative to gomflux's."""
    if engine == BASE or BASE not in pooled or engine not in pooled:
        return ""
    return f"{pooled[engine]['median_s'] / pooled[BASE]['median_s']:.2f}"


def percent(x: float) -> str:
    return f"{100 * x:.1f} %"


def text(results: list) -> str:
    """A list of all measurements for a terminal."""
    lines = []
    for section in sections(results):
        for case, pooled in section.columns:
            lines += ["", f"{section.title}, {section.part}, {case.title} ({settings(case, section.part)})"]
            for engine in [e for e in ENGINES if e in pooled]:
                p = pooled[engine]
                lines.append(
                    f"  {ENGINES[engine]:<26}{seconds(p['median_s']):>9}{ratio(pooled, engine):>7}"
                    f"  spread {percent(p['spread']):>6}  first {seconds(p['first_s']):>8}"
                    f"  {size(p['peak_memory_bytes']):>8}  {p['processes']} processes".rstrip()
                )
    return "\n".join(lines[1:])


def settings(case: Case, part: str) -> str:
    dtype = case.dtype + (", tiny" if case.tiny else "")
    return dtype if part == "decode" else f"{dtype}, {case.prompt_tokens} tokens of the prompt"


def markdown(results: list) -> str:
    """The tables for a page: a row for each engine, with its times and their ratios to gomflux's."""
    blocks = [prose(machine(results))]
    for section in sections(results):
        blocks += [f"### {section.title}: {section.part}", prose(remarks(section)), table(section)]
    return "\n\n".join(blocks)


def prose(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False)


def machine(results: list) -> str:
    """Names the devices and versions."""
    devices = dict.fromkeys(r["device"] for r in results if r["engine"] == BASE) or dict.fromkeys(r["device"] for r in results)
    found = {}
    for r in results:
        for name, version in r["versions"].items():
            if name not in ("go", "mlx_c", "blas"):
                found.setdefault(name, {})[version] = None
    versions = ", ".join(f"{name} {' and '.join(found[name])}" for name in sorted(found))
    return (
        f"Measured on {' and '.join(devices)} with {versions}. A time is the median of several processes, "
        f"which ran in turn; the number after it is its ratio to gomflux's."
    )


def remarks(section: Section) -> str:
    case, _ = section.columns[section.main()]
    spread = max(p["spread"] for _, pooled in section.columns for p in pooled.values())
    processes = {p["processes"] for _, pooled in section.columns for p in pooled.values()}
    number = "1 process" if processes == {1} else f"{' or '.join(str(n) for n in sorted(processes))} processes"
    differs = f", which differ by {percent(spread)} or less from their middle" if max(processes) > 1 else ""
    several = f" The first call is that of {case.title}." if len(section.columns) > 1 else ""
    return f"In {settings(case, section.part)}. Medians of {number}{differs}.{several}"


def table(section: Section) -> str:
    heads = ["", *(case.title for case, _ in section.columns), f"first {section.part}"]
    lines = ["| " + " | ".join(heads).lstrip() + " |", "|---" * len(heads) + "|"]
    for engine in section.engines():
        cells = [ENGINES[engine]]
        for _, pooled in section.columns:
            time = seconds(pooled[engine]["median_s"]) if engine in pooled else "-"
            cells.append(", ".join(filter(None, (time, ratio(pooled, engine)))))
        shown = section.columns[section.main()][1].get(engine)
        cells.append(seconds(shown["first_s"]) if shown else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(page: Path, name: str, tables: str):
    """Replaces what is between a page's two marks of that name."""
    begin, end = f"<!-- peers {name} -->", f"<!-- end of peers {name} -->"
    old = page.read_text(encoding="utf-8")
    if not (old.count(begin) == old.count(end) == 1 and old.index(begin) < old.index(end)):
        raise SystemExit(f"{page}: expected the lines {begin} and {end}, once each")
    new = re.sub(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: f"{begin}\n\n{tables}\n\n{end}", old, flags=re.DOTALL)
    partial = page.with_name(page.name + ".part")
    partial.write_text(new, encoding="utf-8")
    os.replace(partial, page)

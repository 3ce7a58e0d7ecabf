"""Answers of sessions as text, the same as gomflux's."""

import shlex

from .expressions import stats_text
from .wire import ENDED, PROG

LAST = 10  # lines of the output of a failed run


def breakpoint_of(b: dict, hits: bool = False) -> str:
    where = f"{b['file']}:{b['line']}" if b.get("file") else b.get("glob") or "tensors that differ"
    words = [where] + [f"{key} {b[key]}" for key in ("step", "call") if b.get(key) is not None]
    words += [f"hit {b['hit']}"] if b.get("hit") else []
    words += ["negative"] if b.get("negative") else []
    words += [f"if {b['if']}"] if b.get("if") else []
    words += ["once"] if b.get("once") else []
    if hits:
        n = b["hits"]
        words.append("no hits" if not n else "1 hit" if n == 1 else f"{n} hits")
    return f"{'watch' if b.get('watch') else 'breakpoint'} {b['number']}: {', '.join(words)}"


def breakpoints_of(result: dict) -> str:
    return "\n".join(breakpoint_of(b, True) for b in result["breakpoints"]) or "no breakpoints"


def removed(result: dict) -> str:
    numbers = result["removed"]
    if not numbers:
        return "no breakpoints"
    return f"removed breakpoint{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def stop_of(stop: dict) -> str:
    hit = f", hit {stop['hit']}" if stop.get("hit") else ""
    if stop.get("dtype"):
        line = f"stopped after {stop['name']} ({stop['reason']}{hit}): {stop['dtype']} {stop['shape']}"
    elif stop["reason"].startswith("checkpoint"):
        line = f"stopped at {stop['name']} ({stop['reason']})"
    else:
        line = f"stopped before {stop['name']} ({stop['reason']}{hit}): the line is not executed yet"
    return "\n".join(filter(None, (line, stop.get("problem"), stop.get("differs"))))


def watched(status: dict) -> list[str]:
    return [
        f"watch {w['number']}: {w['name']} {w['dtype']} {w['shape']}  {stats_text(w['stats'])}"
        for w in status.get("watched", ())
    ]


def arrived(status: dict) -> str:
    """Where a run has stopped, or how it has ended, or what it does."""
    lines = watched(status)
    state = status["state"]
    if status.get("stop"):
        lines.append(stop_of(status["stop"]))
    elif state in ENDED:
        lines += ended(status)
    elif state == "loading":
        lines.append(f"still {status.get('progress') or 'loading'}")
    else:
        last = status.get("last")
        lines.append(f"still running (last tensor: {last[-1]})" if last else "still running")
    return "\n".join(lines)


def ended(status: dict) -> list[str]:
    state = status["state"]
    if state == "killed":
        return [f"session {status['session']}: its process was killed"]
    lines = ["the run has finished" if state == "finished" else f"the run has failed: {status.get('error', '')}"]
    for b in status.get("never_hit", ()):
        near = f" (near: {', '.join(b['near'])})" if b.get("near") else ""
        lines.append(f"{breakpoint_of(b)} was never hit{near}")
    return lines


def begun(status: dict) -> str:
    return f"session {status['session']}: stopped before the model is loaded ({PROG} continue begins)"


def status_of(status: dict) -> str:
    state = status["state"]
    doing = "stopped before the model is loaded" if state == "starting" else status.get("progress") or state
    lines = [f"session {status['session']} ({status.get('side') or 'unknown'}): {doing}"]
    if status.get("stop"):
        lines.append(stop_of(status["stop"]))
    elif state in ENDED:
        lines += ended(status)
    lines.append(f"command: {shlex.join(status.get('command') or [])}")
    lines += [f"{key}: {status[key]}" for key in ("output", "trace") if status.get(key)]
    if state == "failed" and status.get("output"):
        from .session import lines_of

        lines += [f"    {line}" for line in lines_of(status["output"], LAST)]
    return "\n".join(lines)


def location(place: dict) -> str:
    kind = f" ({place['class']})" if place.get("class") else ""
    lines = [place["name"] + kind]
    where = f"step {place['step']}" if place["step"] >= 0 else "outside the denoising loop"
    prompt = [] if place["step"] < 0 and not place.get("negative") else ["negative prompt" if place["negative"] else "prompt"]
    more = [f"{key} {place[key]:.6g}" for key in ("sigma", "timestep") if place.get(key) is not None]
    if place.get("dtype") or place.get("module"):  # or it is a line outside of all modules
        lines.append(", ".join([where, f"call {place['call']}", *prompt, *more]))
    if place.get("around"):
        lines.append("inside " + ", ".join(a["name"] + (f" ({a['class']})" if a.get("class") else "") for a in place["around"]))
    if at := place.get("location"):
        lines.append(f"{at['file']}:{at['line']}, {at['function']}" if at.get("file") else at["function"])
    if context := place.get("code_context"):
        width = len(str(context["end_line"]))
        for n in range(context["start_line"], context["end_line"] + 1):
            mark = ">" if n == at["line"] else " "
            lines.append(f"  {mark} {n:{width + 2}}  {context['lines'][str(n)]}".rstrip())
    if place.get("before"):
        lines.append("before: " + ", ".join(place["before"]))
    return "\n".join(lines)


def table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]


STATS = ("min", "max", "mean", "std", "nan", "inf")


def numbers(stats: dict | None) -> list[str]:
    from .expressions import number

    return [number(stats[key]) if key in stats else "" for key in STATS] if stats else []


def variables(result: dict) -> str:
    rows = [["NAME", "DTYPE", "SHAPE", *STATS]]
    for v in result["variables"]:
        if v.get("value"):
            rows.append([v["name"], v["dtype"], v["value"]])
        else:
            rows.append([v["name"], v["dtype"], str(v["shape"]), *numbers(v.get("stats"))])
    wide = [row for row in rows if len(row) != 3]
    lines = table(wide) if len(wide) > 1 else []
    plain = [row for row in rows if len(row) == 3]
    lines += table(plain) if plain else []
    if result.get("parameters"):
        lines.append("parameters")
        rows = []
        for p in result["parameters"]:
            quantized = f" ({p['quantized']})" if p.get("quantized") else ""
            rows.append([p["path"], p["dtype"], str(p["shape"]) + quantized, *numbers(p.get("stats"))])
        lines += [f"  {line}" for line in table(rows)]
    return "\n".join(lines) or "no variables"


def evaluated(result: dict) -> str:
    return "\n".join([*result.get("output", ()), *([result["text"]] if result.get("text") else [])])


def sessions(found: list[dict]) -> str:
    if not found:
        return "no sessions"
    rows = [["SESSION", "SIDE", "STATE", "PID", "BEGAN", "COMMAND"]]
    for s in found:
        command = shlex.join(s.get("command") or [])
        rows.append([s["session"], s.get("side") or "", s["state"], str(s.get("pid") or ""), s.get("began") or "", command])
    return "\n".join(table(rows))

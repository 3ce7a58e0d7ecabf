"""Answers of sessions as text, the same as gomflux's."""

import os
import shlex

from .expressions import number, stats_text
from .wire import ENDED, PROG

LAST = 5  # lines of the output of a failed run
WIDE = 60  # characters of a command in a list


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
    line = f"stopped after {stop['name']} ({stop['reason']}{hit})"
    if stop.get("dtype"):
        line += f": {stop['dtype']} {stop['shape']}"
    elif not stop["reason"].startswith("checkpoint"):
        line = f"{line.replace('after', 'before', 1)}: the line is not executed yet"
    lines = [line]
    if stop.get("problem"):
        lines.append(f"the condition of {stop['reason']}: {stop['problem']}")
    return "\n".join(lines + ([stop["differs"]] if stop.get("differs") else []))


def watched(status: dict) -> list[str]:
    return [
        f"watch {w['number']}: {w['name']} {w['dtype']} {w['shape']}  {stats_text(w['stats'])}"
        for w in status.get("watched", ())
    ]


def arrived(status: dict) -> str:
    """Where a run has stopped, or how it has ended, or what it does."""
    lines, state, last = watched(status), status["state"], status.get("last")
    if status.get("timed_out"):
        running = f"running (last tensor: {last[-1]})" if last and state == "running" else doing(status)
        lines.append(f"still {status.get('progress') or running}")
    elif status.get("stop"):
        lines.append(stop_of(status["stop"]))
    elif state == "finished":
        lines.append("the run has finished")
    elif state == "failed":
        lines.append(f"the run has failed: {status.get('error', '')}")
    elif state == "terminated":
        lines.append("the run was terminated")
    elif state == "killed":
        lines.append(f"session {status['session']}: its process was killed")
    else:
        lines.append(doing(status))
    return "\n".join(lines + never_hit(status))


def doing(status: dict) -> str:
    if status["state"] == "starting":
        return status.get("progress") or "stopped before the model is loaded"
    return status["state"] == "loading" and status.get("progress") or status["state"]


def never_hit(status: dict) -> list[str]:
    lines = []
    for b in status.get("never_hit", ()):
        near = f" (near: {', '.join(b['near'])})" if b.get("near") else ""
        hit = "was never hit" if status["state"] in ENDED else "names no module or value of the model"
        lines.append(f"{breakpoint_of(b)} {hit}{near}")
    return lines


def begun(status: dict) -> str:
    return f"session {status['session']}: stopped before the model is loaded ({PROG} continue begins)"


def status_of(status: dict) -> str:
    lines = [f"session {status['session']} ({status.get('side', '')}): {doing(status)}", *watched(status)]
    if status.get("stop"):
        lines.append(stop_of(status["stop"]))
    if status["state"] == "running" and status.get("last"):
        lines.append(f"last tensor: {status['last'][-1]}")
    if status.get("error"):
        from .session import lines_of

        lines.append(f"error: {status['error']}")
        lines += [f"    {line}" for line in lines_of(status.get("output") or os.devnull, LAST)]
    lines += never_hit(status)
    fields = {"command": shlex.join(status.get("command") or ())} | {k: status.get(k) for k in ("output", "trace", "run")}
    return "\n".join(lines + [f"{key}: {value}" for key, value in fields.items() if value])


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
            code = context["lines"][str(n)].replace("\t", "    ")
            lines.append(f"   {mark} {n:{width}}  {code}".rstrip())
    if place.get("before"):
        lines.append("before: " + ", ".join(place["before"]))
    return "\n".join(lines)


def table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]


STATS = ("min", "max", "mean", "std", "nan", "inf")


def numbers(stats: dict | None) -> list[str]:
    return [number(stats[key]) if key in stats else "" for key in STATS] if stats else []


def variables(result: dict) -> str:
    rows, lines = [["NAME", "DTYPE", "SHAPE", *STATS, "first values"]], []
    for v in result["variables"]:
        if not v.get("value"):
            first = " ".join(number(x, 4) for x in v.get("preview", ())[:3])
            rows.append([v["name"], v["dtype"], str(v["shape"]), *numbers(v.get("stats")), first])
        elif v.get("dtype"):
            lines.append(f"{v['name']} {v['dtype']} {v['shape']}: {v['value']}")
        else:
            lines.append(f"{v['name']} = {v['value']}")
    lines = (table(rows) if len(rows) > 1 else []) + lines
    if result.get("parameters"):
        lines.append("parameters")
        rows = []
        for p in result["parameters"]:
            quantized = [f"(quantized: {p['quantized']})"] if p.get("quantized") else []
            rows.append([p["path"], p["dtype"], str(p["shape"]), *numbers(p.get("stats")), *quantized])
        lines += table(rows)
    return "\n".join(lines)


def terminated(result: dict) -> str:
    return f"session {result['session']} is terminated"


def cleaned(result: dict, dry: bool = False) -> str:
    done = "would be" if dry else "is"
    lines = [f"session {s['session']} ({s['state']}) {done} removed" for s in result["removed"]]
    if n := result["files"]:
        lines.append(f"{n} file{'s' * (n > 1)} of traces and logs, {result['bytes'] / 1000:.0f} kB")
    return "\n".join(lines) or "nothing to remove"


def evaluated(result: dict) -> str:
    return "\n".join([*result.get("output", ()), *([result["text"]] if result.get("text") else [])])


def sessions(found: list[dict]) -> str:
    if not found:
        return "no sessions"
    rows = [["SESSION", "SIDE", "STATE", "PID", "BEGAN", "COMMAND"]]
    for s in found:
        command = shlex.join(s.get("command") or [])
        command = command if len(command) <= WIDE else command[: WIDE - 1] + "…"
        rows.append([s["session"], s.get("side") or "", s["state"], str(s.get("pid") or ""), s.get("began") or "", command])
    return "\n".join(table(rows))

"""Times a function in this process, and summarizes the times of several processes."""

import statistics
import time

WARM = 2  # calls between the first and those that count


def measure(call, finish, stamp=None, repeats=10, seconds=20.0, clock=time.perf_counter) -> dict:
    """Times the first call, then warms up, then times at least three calls, and at most repeats or for some seconds.

    finish waits until a call's work is done. With stamp, which marks a moment of the device's queue, calls follow each
    other without waiting, as the steps of a generation do: stamps are compared by their elapsed_time, in milliseconds.
    """
    start = clock()
    call()
    finish()
    first = clock() - start
    start = clock()
    for _ in range(WARM if first < seconds else 0):
        call()
        finish()
    warm = (clock() - start) / WARM or first
    count = max(3, min(repeats, int(seconds / warm)))
    times = stamped(call, finish, stamp, count) if stamp else waited(call, finish, count, clock)
    return {"first_s": first, **summary(times), "repeats": len(times)}


def waited(call, finish, count: int, clock) -> list:
    times = []
    for _ in range(count):
        start = clock()
        call()
        finish()
        times.append(clock() - start)
    return times


def stamped(call, finish, stamp, count: int) -> list:
    stamps = [stamp()]
    for _ in range(count):
        call()
        stamps.append(stamp())
    finish()
    return [a.elapsed_time(b) / 1000 for a, b in zip(stamps, stamps[1:])]


def summary(times: list) -> dict:
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


def pooled(measured: list) -> dict:
    """Summarizes the measurements of one case by several processes.

    The spread is half the distance of the processes' extreme medians from each other, relative to their median. The
    first call is that of the first process: what it compiles, later ones may find in a cache.
    """
    medians = [m["median_s"] for m in measured]
    median = statistics.median(medians)
    peaks = [m["peak_memory_bytes"] for m in measured if m.get("peak_memory_bytes")]
    return {
        "median_s": median,
        "min_s": min(m["min_s"] for m in measured),
        "first_s": measured[0]["first_s"],
        "spread": (max(medians) - min(medians)) / 2 / median if median else 0.0,
        "peak_memory_bytes": max(peaks) if peaks else None,
        "processes": len(measured),
    }


def in_turn(engines: list, rounds: int) -> list:
    """Orders the engines A B B A A B B A ..., so that a drift of the machine's speed meets each of them alike."""
    order = []
    for i in range(rounds):
        order += engines[::-1] if i % 2 else engines
    return order

"""Says whether pictures show what their prompts asked for.

    python check.py DIR [--prompts prompts.json] [--json] [--jobs N]
    python check.py --self-test 1000

DIR holds 000.png, 001.png, ... in the order of the prompts. A picture is right
when its background, the number of objects, and each object's colour, shape,
size and place are all right. --self-test draws true and false pictures and
counts the checker's own mistakes. Needs numpy and pillow.
"""

import argparse
import json
import sys
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from PIL import Image

import scenes

COLOR_LIMIT = 60.0  # RGB distance within which a pixel has a colour
SHAPE_LIMIT = 0.88  # least overlap (intersection over union) with the fitted template
SPECK = 24  # connected pixels of another colour that still count as noise
# Size bands part half-way (in ratio) between the sizes that training drew.
SMALL_BELOW = (scenes.SIZES["small"][1] * scenes.SIZES[None][0]) ** 0.5
LARGE_ABOVE = (scenes.SIZES[None][1] * scenes.SIZES["large"][0]) ** 0.5


def nearest(palette, rgb):
    """Name and distance of the palette's colour nearest to rgb."""
    distance = np.linalg.norm(np.array(list(palette.values()), float) - rgb, axis=1)
    i = int(distance.argmin())
    return list(palette)[i], float(distance[i])


def find_background(picture):
    """The colour that at least nine tenths of the border have, or None."""
    border = np.concatenate([picture[:3].reshape(-1, 3), picture[-3:].reshape(-1, 3),
                             picture[:, :3].reshape(-1, 3), picture[:, -3:].reshape(-1, 3)])
    name, distance = nearest(scenes.BACKGROUNDS, np.median(border, axis=0))
    near = np.linalg.norm(border - scenes.BACKGROUNDS[name], axis=1) < COLOR_LIMIT
    return name if distance < COLOR_LIMIT and near.mean() > 0.9 else None


def components(mask):
    """8-connected components of a mask, as a list of boolean masks."""
    parent = []

    def root(i):
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    runs, above = [], []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        here = []
        for start, stop in zip(edges[::2], edges[1::2]):
            label = len(parent)
            parent.append(label)
            for other_start, other_stop, other in above:
                if start <= other_stop and other_start <= stop:
                    parent[root(other)] = root(label)
            here.append((start, stop, label))
        runs += [(y, *run) for run in here]
        above = here
    found = {}
    for y, start, stop, label in runs:
        part = found.setdefault(root(label), np.zeros_like(mask))
        part[y, start:stop] = True
    return list(found.values())


def grow(mask, times):
    for _ in range(times):
        p = np.pad(mask, 1)
        mask = p[1:-1, 1:-1] | p[:-2, 1:-1] | p[2:, 1:-1] | p[1:-1, :-2] | p[1:-1, 2:]
    return mask


def measure(picture, background, mask):
    """Colour, shape, size and box of the object under a mask."""
    inner = ~grow(~mask, 2)
    rgb = np.median(picture[inner if inner.any() else mask], axis=0)
    color, distance = nearest(scenes.COLORS, rgb)
    pure = np.linalg.norm(picture[inner] - scenes.COLORS[color], axis=1) < COLOR_LIMIT if inner.any() else np.zeros(1)
    if distance > COLOR_LIMIT or pure.mean() < 0.9:
        color = "no clear colour"

    # How much of each pixel the object covers, from its colour's share.
    base = np.array(scenes.BACKGROUNDS[background], float)
    share = (picture - base) @ (rgb - base) / max((rgb - base) @ (rgb - base), 1.0)
    share = np.clip(share, 0, 1) * grow(mask, 2)
    share[share < 0.1] = 0
    columns, rows = share.max(0), share.max(1)
    x0, x1 = edge(columns), len(columns) - edge(columns[::-1])
    y0, y1 = edge(rows), len(rows) - edge(rows[::-1])
    cx, cy, extent = (x0 + x1) / 2, (y0 + y1) / 2, max(x1 - x0, y1 - y0)

    box = np.s_[max(int(y0) - 16, 0) : int(y1) + 17, max(int(x0) - 16, 0) : int(x1) + 17]
    overlaps = [overlap(share, box, i, cx, cy, extent) for i in range(len(scenes.SHAPES))]
    overlap_best, best = max((fit(share, box, i, cx, cy, extent), i) for i in np.argsort(overlaps)[-2:].tolist())
    shape = scenes.SHAPES[best] if overlap_best > SHAPE_LIMIT else "no clear shape"
    size = "small" if extent < SMALL_BELOW else "large" if extent > LARGE_ABOVE else None
    return {"color": color, "shape": shape, "size": size, "x": cx, "y": cy,
            "extent": extent, "overlap": overlap_best}


def overlap(share, box, shape, cx, cy, extent):
    """Intersection over union of a cover with a shape drawn at a place."""
    py, px = (np.arange(side.start, min(side.stop, scenes.SIZE)) + 0.5 for side in box)
    template = scenes.cover(np, shape, cx, cy, extent, px[None, :], py[:, None])
    part = share[box]
    return float(np.minimum(part, template).sum() / np.maximum(part, template).sum())


def fit(share, box, shape, *place):
    """The best overlap near a place: one tip that is a pixel long moves a
    star's bounding box, and should not spoil the whole match."""
    best = overlap(share, box, shape, *place)
    for step in (2.0, 1.0, 0.5):
        moved = True
        while moved:
            moved = False
            for axis in range(3):
                for sign in (-step, step):
                    other = [*place]
                    other[axis] += sign
                    value = overlap(share, box, shape, *other)
                    if value > best:
                        best, place, moved = value, other, True
    return best


def edge(profile):
    """Where a profile begins, to a part of a pixel."""
    first = int(np.argmax(profile > 0.5))
    before = profile[first - 1] if first else 0.0
    return first - before if profile[first] > 0.9 else first + 1 - profile[first]


def look(picture):
    """Background and objects of a [256, 256, 3] uint8 picture."""
    picture = picture.astype(float)
    background = find_background(picture)
    if background is None:
        return None, []
    distance = np.linalg.norm(picture - scenes.BACKGROUNDS[background], axis=2)
    parts = [m for m in components(distance > COLOR_LIMIT) if m.sum() > SPECK]
    return background, [measure(picture, background, m) for m in parts]


def relation_holds(relation, first, second):
    dx, dy = second["x"] - first["x"], second["y"] - first["y"]
    return {
        "left of": dx > abs(dy),
        "right of": -dx > abs(dy),
        "above": dy > abs(dx),
        "below": -dy > abs(dx),
    }[relation]


def mistakes(picture, wanted):
    """What is wrong with a picture: [] when it is right."""
    if picture.shape != (scenes.SIZE, scenes.SIZE, 3):
        return ["picture size"]
    background, found = look(picture)
    if background != wanted["background"]:
        return ["background"]
    objects = wanted["objects"]
    if len(found) != len(objects):
        return [f"number of objects: {len(found)} for {len(objects)}"]

    def compare(order):
        wrong = [what for o, f in zip(objects, order) for what in ("color", "shape", "size") if f[what] != o[what]]
        if not wrong and wanted["relation"] and not relation_holds(wanted["relation"], *order):
            wrong.append("relation")
        return wrong

    return min((compare(order) for order in (found, found[::-1])), key=len)


def check_file(job):
    path, wanted = job
    try:
        picture = np.asarray(Image.open(path).convert("RGB"))
    except OSError:
        return ["no readable picture"]
    return mistakes(picture, wanted)


def self_test(n, seed=7):
    """Mistakes on n drawn truths and on n pictures with one thing changed."""
    rng = np.random.default_rng(seed)
    everything = scenes.sample(rng, n, lambda color, shape, count, place: np.ones(len(count), bool))
    refused = accepted = 0
    kinds = Counter()
    for i in range(n):
        one = {k: v[i : i + 1].copy() for k, v in everything.items()}
        picture = scenes.draw_uint8(one)[0]
        wanted = scenes.describe(one, 0)
        refused += bool(mistakes(picture, wanted))
        false = json.loads(json.dumps(wanted))
        kind = rng.choice(["color", "shape", "size", "background", "count"] + ["relation"] * bool(wanted["relation"]))
        target = false["objects"][rng.integers(len(false["objects"]))]
        if kind == "color":
            target["color"] = rng.choice([c for c in scenes.COLORS if c != target["color"]])
        elif kind == "shape":
            target["shape"] = rng.choice([s for s in scenes.SHAPES if s != target["shape"]])
        elif kind == "size":
            target["size"] = [s for s in scenes.SIZES if s != target["size"]][rng.integers(2)]
        elif kind == "background":
            false["background"] = rng.choice([b for b in scenes.BACKGROUNDS if b != false["background"]])
        elif kind == "relation":
            false["relation"] = rng.choice([r for r in scenes.RELATIONS if r != false["relation"]])
        elif len(false["objects"]) == 2:
            false["objects"].pop()
            false["relation"] = None
        else:
            false["objects"].append({"color": "red", "shape": "circle", "size": None})
        if not mistakes(picture, false):
            accepted += 1
            kinds[kind] += 1
    print(f"{n} true pictures: {refused} refused; {n} false ones: {accepted} accepted {dict(kinds) or ''}")
    return refused + accepted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("prompts.json"))
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--self-test", type=int, metavar="N", help="measure the checker on N drawn pictures")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(self_test(args.self_test) > 0)
    if not args.folder:
        parser.error("name a folder of pictures, or --self-test N")

    prompts = json.loads(args.prompts.read_text())
    jobs = [(args.folder / f"{i:03d}.png", p) for i, p in enumerate(prompts)]
    if args.jobs > 1:
        with Pool(args.jobs) as pool:
            wrong = pool.map(check_file, jobs, chunksize=8)
    else:
        wrong = [check_file(job) for job in jobs]
    right = sum(not w for w in wrong)
    reasons = Counter(reason for w in wrong for reason in w)
    kinds = {}
    for p, w in zip(prompts, wrong):
        kind = f"{p['held_out']} held out, {len(p['objects'])} object{'s' * (len(p['objects']) > 1)}"
        kinds.setdefault(kind, [0, 0])
        kinds[kind][0] += not w
        kinds[kind][1] += 1
    if args.json:
        bad = [{"index": i, "prompt": p["prompt"], "wrong": w} for i, (p, w) in enumerate(zip(prompts, wrong)) if w]
        print(json.dumps({"right": right, "of": len(prompts), "reasons": reasons, "kinds": kinds, "wrong": bad}, indent=1))
        return
    for i, (p, w) in enumerate(zip(prompts, wrong)):
        if w:
            print(f"{i:03d} {p['prompt']}: {', '.join(w)}")
    for reason, n in reasons.most_common():
        print(f"{n:4d} {reason}")
    for kind, (good, n) in sorted(kinds.items()):
        print(f"{good:4d} of {n} right: {kind}")
    print(f"{right} of {len(prompts)} wholly right ({100 * right / len(prompts):.1f} %)")


if __name__ == "__main__":
    main()

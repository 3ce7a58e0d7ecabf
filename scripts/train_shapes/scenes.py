"""The little world of the shapes model: words, scenes, prompts and drawing.

Everything here needs numpy only. The drawing code is written against the
functions that numpy and torch share, so the same lines draw a training batch
on a GPU (xp=torch) and the checker's templates on a bare machine (xp=numpy).
"""

import argparse
import hashlib
import json
import math
import random
from pathlib import Path

import numpy as np

SIZE = 256  # pictures are SIZE x SIZE pixels

COLORS = {
    "red": (215, 20, 30),
    "green": (20, 150, 60),
    "blue": (25, 60, 220),
    "yellow": (255, 230, 0),
    "orange": (255, 125, 0),
    "purple": (130, 30, 170),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}
BACKGROUNDS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "gray": (128, 128, 128),
    "light blue": (140, 200, 240),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring")
# Larger side of the bounding box in pixels. No size word means medium.
SIZES = {"small": (40.0, 46.0), None: (64.0, 76.0), "large": (102.0, 114.0)}
RELATIONS = ("left of", "right of", "above", "below")

COLOR_NAMES = tuple(COLORS)
BACKGROUND_NAMES = tuple(BACKGROUNDS)
SIZE_NAMES = tuple(SIZES)

MARGIN = 6.0  # between an object and the border
GAP = 12.0  # between two objects, along the axis of their relation

# Colour-shape pairs that no training scene contains: every shape and six of
# the colours lose exactly one.
HELD_OUT_PAIRS = (
    ("red", "star"),
    ("green", "heart"),
    ("blue", "triangle"),
    ("yellow", "ring"),
    ("orange", "circle"),
    ("purple", "square"),
)
# Share of (object, relation, object) combinations that training never sees.
HELD_OUT_RELATIONS = 0.10


def _held_out_pairs():
    table = np.zeros((len(COLORS), len(SHAPES)), bool)
    for color, shape in HELD_OUT_PAIRS:
        table[COLOR_NAMES.index(color), SHAPES.index(shape)] = True
    return table


def _held_out_relations():
    """table[p, axis, q]: p left of (axis 0) or above (axis 1) q, where p and q
    number colour-shape pairs. Saying it the other way round ("right of",
    "below") is the same combination."""
    pairs = [f"{c} {s}" for c in COLOR_NAMES for s in SHAPES]
    table = np.zeros((len(pairs), 2, len(pairs)), bool)
    for i, first in enumerate(pairs):
        for axis, relation in enumerate(("left of", "above")):
            for j, second in enumerate(pairs):
                digest = hashlib.sha256(f"{first} {relation} {second}".encode()).digest()
                table[i, axis, j] = int.from_bytes(digest[:4], "big") < HELD_OUT_RELATIONS * 2**32
    return table


PAIR_HELD_OUT = _held_out_pairs()
RELATION_HELD_OUT = _held_out_relations()


# Drawing. Each distance function takes coordinates (x to the right, y up) in
# which the shape's bounding box is centred on the origin and its longer side
# is 1, and returns the signed distance, negative inside.


def _circle(xp, x, y):
    return xp.sqrt(x * x + y * y) - 0.5


def _square(xp, x, y):
    return xp.maximum(xp.abs(x), xp.abs(y)) - 0.5


def _triangle(xp, x, y):
    h = 3**0.5 / 2
    side = xp.abs(x) * h + (y - h / 2) * 0.5
    return xp.maximum(side, -y - h / 2)


_STAR_R = 1 / (2 * math.sin(math.radians(72)))


def _star(xp, x, y):
    # Five points; the inner corners lie at 0.45 of the outer radius r.
    r = _STAR_R
    y = y + r * (1 - math.cos(math.radians(36))) / 2
    kx, ky = math.cos(math.radians(36)), -math.sin(math.radians(36))
    x = xp.abs(x)
    for nx in (kx, -kx):
        fold = 2 * xp.clip(nx * x + ky * y, 0, None)
        x, y = x - fold * nx, y - fold * ky
    x, y = xp.abs(x), y - r
    bx, by = -0.45 * ky, 0.45 * kx - 1
    along = xp.clip((x * bx + y * by) / (bx * bx + by * by), 0, r)
    dx, dy = x - along * bx, y - along * by
    return xp.sqrt(dx * dx + dy * dy) * xp.sign(y * bx - x * by)


def _heart(xp, x, y):
    # Two half discs on a square that stands on its corner.
    lobe = 2**0.5 / 4
    width, height = 0.5 + 2 * lobe, 0.75 + lobe
    x, y = xp.abs(x) * width, y * width + height / 2
    round_part = xp.sqrt((x - 0.25) ** 2 + (y - 0.75) ** 2) - lobe
    corner = x * x + (y - 1) ** 2
    foot = 0.5 * xp.clip(x + y, 0, None)
    edge = (x - foot) ** 2 + (y - foot) ** 2
    straight = xp.sqrt(xp.minimum(corner, edge)) * xp.sign(x - y)
    return xp.where(x + y > 1, round_part, straight) / width


def _ring(xp, x, y):
    return xp.abs(xp.sqrt(x * x + y * y) - 0.39) - 0.11


_DISTANCE = (_circle, _square, _triangle, _star, _heart, _ring)
# Height over width of each bounding box (none is taller than wide).
ASPECT = np.array(
    [1, 1, 3**0.5 / 2, _STAR_R * (1 + math.cos(math.radians(36))), (0.75 + 2**0.5 / 4) / (0.5 + 2**0.5 / 2), 1]
)


def cover(xp, shape, cx, cy, extent, px, py):
    """Share of each pixel that an object covers, 0 to 1.

    shape is an int for one object, or an array of ints that broadcasts with
    the rest for a batch; cx, cy, extent are in pixels; px, py are the pixels'
    centres, y down.
    """
    x, y = (px - cx) / extent, (cy - py) / extent
    if isinstance(shape, int):
        distance = _DISTANCE[shape](xp, x, y)
    else:
        distance = _DISTANCE[0](xp, x, y)
        for i in range(1, len(_DISTANCE)):
            distance = xp.where(shape == i, _DISTANCE[i](xp, x, y), distance)
    return xp.clip(0.5 - distance * extent, 0, 1)


def draw(xp, scenes, px, py):
    """Draws scenes: (pictures [n, 3, h, w] in 0..1, cover [n, 2, h, w]).

    scenes holds arrays as sample() returns them (for torch: tensors); px and
    py are the pixels' centres, broadcastable to [n, h, w].
    """

    def column(name, i):
        return scenes[name][:, i, None, None]

    covers = [
        cover(xp, column("shape", i), column("cx", i), column("cy", i), column("extent", i), px, py)
        * column("present", i)
        for i in range(2)
    ]
    picture = scenes["background_rgb"][:, :, None, None]
    for i in range(2):
        color = scenes["rgb"][:, i, :, None, None]
        picture = picture + covers[i][:, None] * (color - picture)
    return picture, xp.stack(covers, 1)


def draw_uint8(scenes, size=SIZE):
    """Draws a few scenes with numpy: [n, size, size, 3] uint8."""
    p = np.arange(size) + 0.5
    picture, _ = draw(np, scenes, p[None, None, :], p[None, :, None])
    return (picture.transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)


# Sampling. A batch of scenes is a dict of arrays; index 0 of an object axis is
# the subject of the relation, index 1 its object:
#   count [n]            1 or 2 objects
#   color, shape, size   [n, 2] indices into COLOR_NAMES, SHAPES, SIZE_NAMES
#   relation [n]         index into RELATIONS; -1: none said (one object, or "and")
#   place [n]            the relation drawn, for two objects
#   background [n]       index into BACKGROUND_NAMES
#   cx, cy, extent       [n, 2] pixels
#   present, rgb, background_rgb   what draw() needs besides


def allowed(color, shape, count, place):
    """Which scenes training may see."""
    pair = color * len(SHAPES) + shape
    swap = (place % 2 == 1)[:, None]
    first, second = np.where(swap, pair[:, ::-1], pair).T
    held = PAIR_HELD_OUT[color[:, 0], shape[:, 0]]
    two = PAIR_HELD_OUT[color[:, 1], shape[:, 1]] | RELATION_HELD_OUT[first, place // 2, second]
    return ~(held | ((count == 2) & two))


def _choose(rng, n):
    count = rng.choice([1, 2], n, p=[0.2, 0.8])
    color = rng.integers(0, len(COLORS), (n, 2))
    shape = rng.integers(0, len(SHAPES), (n, 2))
    size = rng.choice(len(SIZES), (n, 2), p=[0.28, 0.44, 0.28])
    place = rng.integers(0, len(RELATIONS), n)
    relation = np.where((count == 1) | (rng.random(n) < 0.06), -1, place)
    background = rng.choice(len(BACKGROUNDS), n, p=[0.4, 0.2, 0.2, 0.2])
    return dict(count=count, color=color, shape=shape, size=size, place=place, relation=relation, background=background)


def _sensible(s):
    """No object in its background's colour, no two objects of one kind."""
    names = np.array([COLOR_NAMES.index(b) if b in COLORS else -1 for b in BACKGROUND_NAMES])
    hidden = s["color"] == names[s["background"]][:, None]
    two = s["count"] == 2
    twins = (s["color"][:, 0] == s["color"][:, 1]) & (s["shape"][:, 0] == s["shape"][:, 1])
    return ~(hidden[:, 0] | (two & (hidden[:, 1] | twins)))


def arrange(rng, s):
    """Gives chosen scenes sizes and places in pixels."""
    n = len(s["count"])
    low, high = np.array([SIZES[k] for k in SIZE_NAMES]).T
    extent = rng.uniform(low[s["size"]], high[s["size"]])
    half = np.stack([extent, extent * ASPECT[s["shape"]]], -1) / 2  # [n, object, axis]
    lowest, highest = MARGIN + half, SIZE - MARGIN - half
    center = rng.uniform(lowest, highest)

    rows = np.arange(n)
    axis = s["place"] // 2
    first = s["place"] % 2  # which object comes first along the axis
    along = half[rows, :, axis]  # [n, object]
    free = SIZE - 2 * MARGIN - GAP - 2 * along.sum(1)
    share = rng.dirichlet([1, 1, 1], n) * free[:, None]
    h_first, h_second = along[rows, first], along[rows, 1 - first]
    a = MARGIN + share[:, 0] + h_first
    b = a + h_first + GAP + share[:, 1] + h_second
    cross = 1 - axis
    side = center[rows, first, cross] + rng.uniform(-0.35, 0.35, n) * (b - a)
    side = np.clip(side, lowest[rows, 1 - first, cross], highest[rows, 1 - first, cross])

    two = s["count"] == 2
    pair = center.copy()
    pair[rows, first, axis] = a
    pair[rows, 1 - first, axis] = b
    pair[rows, 1 - first, cross] = side
    center = np.where(two[:, None, None], pair, center)

    rgb = np.array(list(COLORS.values()), np.float32) / 255
    background = np.array(list(BACKGROUNDS.values()), np.float32) / 255
    return s | dict(
        cx=center[:, :, 0].astype(np.float32),
        cy=center[:, :, 1].astype(np.float32),
        extent=extent.astype(np.float32),
        present=np.stack([np.ones(n), two], 1).astype(np.float32),
        rgb=rgb[s["color"]],
        background_rgb=background[s["background"]],
    )


def sample(rng, n, keep=allowed):
    """Samples n scenes for which keep(color, shape, count, place) holds."""
    parts, have = [], 0
    while have < n:
        s = _choose(rng, int((n - have) * 1.6) + 64)
        good = _sensible(s) & keep(s["color"], s["shape"], s["count"], s["place"])
        parts.append({k: v[good] for k, v in s.items()})
        have += int(good.sum())
    chosen = {k: np.concatenate([p[k] for p in parts])[:n] for k in parts[0]}
    return arrange(rng, chosen)


# Phrasing.


def _noun(rng, obj, article):
    words = ([obj["size"]] if obj["size"] else []) + [obj["color"], obj["shape"]]
    if article:
        words.insert(0, "an" if words[0][0] in "aeiou" else "a")
    return " ".join(words)


def phrase(rng, scene):
    """Says a scene (as describe() gives it) in one of many ways."""
    article = rng.random() < 0.75
    nouns = [_noun(rng, o, article) for o in scene["objects"]]
    if len(nouns) == 1:
        text = nouns[0]
        if article and rng.random() < 0.08:
            text = "one" + text[text.index(" "):]
    elif scene["relation"] is None:
        text = " and ".join(nouns)
    else:
        relation = scene["relation"]
        if relation.endswith(" of") and rng.random() < 0.3:
            relation = "to the " + relation
        first, second = nouns
        form = rng.random()
        if form < 0.60:
            text = f"{first} {relation} {second}"
        elif form < 0.80:
            text = f"{second}, {first} {relation} it"
        elif form < 0.90:
            text = f"{second} with {first} {relation} it"
        else:
            text = f"{first} is {relation} {second}"
    if " is " not in text and article and rng.random() < 0.15:
        text = rng.choice(("a picture of ", "an image of ", "a drawing of ", "draw ", "there is ")) + text

    background = scene["background"]
    if background != "white" or rng.random() < 0.35:
        if background == "gray" and rng.random() < 0.2:
            background = "grey"
        form = rng.random()
        if form < 0.70:
            text += f" on a {background} background"
        elif form < 0.85:
            text += f", {background} background"
        elif form < 0.93:
            text += f" on {background}"
        else:
            text = f"on a {background} background, {text}"
    if rng.random() < 0.08:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.08:
        text += "."
    return text


def describe(scenes, i):
    """Scene i of a batch in words, as the prompts file holds it."""
    return {
        "objects": [
            {
                "color": COLOR_NAMES[scenes["color"][i, k]],
                "shape": SHAPES[scenes["shape"][i, k]],
                "size": SIZE_NAMES[scenes["size"][i, k]],
            }
            for k in range(scenes["count"][i])
        ],
        "relation": RELATIONS[scenes["relation"][i]] if scenes["relation"][i] >= 0 else None,
        "background": BACKGROUND_NAMES[scenes["background"][i]],
    }


def held_out_prompts(seed, n=500, avoid=()):
    """Prompts that each hold something training never saw: a fifth one object
    of a held-out pair, two fifths two objects with a held-out pair, two fifths
    a held-out combination of a relation and two known pairs."""

    def has_pair(color, shape, count):
        held = PAIR_HELD_OUT[color, shape]
        return held[:, 0] | ((count == 2) & held[:, 1])

    kinds = (
        ("pair", n // 5, lambda c, s, k, p: (k == 1) & has_pair(c, s, k)),
        ("pair", 2 * n // 5, lambda c, s, k, p: (k == 2) & has_pair(c, s, k)),
        ("relation", n - n // 5 - 2 * n // 5, lambda c, s, k, p: (k == 2) & ~has_pair(c, s, k) & ~allowed(c, s, k, p)),
    )
    rng, words = np.random.default_rng(seed), random.Random(seed)
    prompts, seen = [], set(avoid)
    for kind, many, keep in kinds:
        got = 0
        while got < many:
            scenes = sample(rng, 1, keep)
            if kind == "relation" and scenes["relation"][0] < 0:
                continue
            scene = describe(scenes, 0)
            text = phrase(words, scene)
            if text in seen:
                continue
            seen.add(text)
            prompts.append({"prompt": text, "held_out": kind} | scene)
            got += 1
    words.shuffle(prompts)
    return prompts


def main():
    parser = argparse.ArgumentParser(description="write the evaluation prompts")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("prompts.json"))
    parser.add_argument("--seed", type=int, default=2026)
    args = parser.parse_args()
    prompts = held_out_prompts(args.seed)
    lines = ",\n".join(json.dumps(p) for p in prompts)
    args.out.write_text(f"[\n{lines}\n]\n")
    print(f"{len(prompts)} prompts in {args.out}")


if __name__ == "__main__":
    main()

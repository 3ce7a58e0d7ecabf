"""Draws photos and masks for the score of inpainting, and counts the right results.

    python inpaint.py DIR [--n 200]                draw the cases
    python inpaint.py DIR --check RESULTS          count the right ones of 000.png, 001.png, ...

Each case is one of the first prompts with two objects in prompts.json, which training never saw. Its
photo shows the scene with another object in the place of one of the two, and the mask is the half of
the photo with that object. So DIR holds 000.photo.png, 000.mask.png, ... and prompts.json. A result is
right when the scene is that of the prompt, by the rules of check.py, and no pixel outside of the mask
differs. Needs numpy and pillow.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

import check
import scenes


def arranged(rng, prompt):
    """The scene of a prompt as arrays of one, as sample() returns them."""
    objects = prompt["objects"]
    place = np.array([scenes.RELATIONS.index(prompt["relation"])])
    return scenes.arrange(rng, {
        "count": np.array([2]),
        "color": np.array([[scenes.COLOR_NAMES.index(o["color"]) for o in objects]]),
        "shape": np.array([[scenes.SHAPES.index(o["shape"]) for o in objects]]),
        "size": np.array([[scenes.SIZE_NAMES.index(o["size"]) for o in objects]]),
        "place": place, "relation": place,
        "background": np.array([scenes.BACKGROUND_NAMES.index(prompt["background"])]),
    })


def half_of(scene, k):
    """The half of the picture with object k: [256, 256], 255 or 0."""
    axis = scene["place"][0] // 2
    center = np.array([scene["cx"][0], scene["cy"][0]])[axis]
    half = scene["extent"][0] / 2 * (1 if axis == 0 else scenes.ASPECT[scene["shape"][0]])
    low = int(np.argmin(center))
    border = round(float(center[low] + half[low] + center[1 - low] - half[1 - low]) / 2)
    mask = np.zeros((scenes.SIZE, scenes.SIZE), np.uint8)
    part = slice(0, border) if k == low else slice(border, None)
    mask[(slice(None), part) if axis == 0 else part] = 255
    return mask


def draw(prompts, folder):
    """Writes photo and mask of every prompt."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, prompt in enumerate(prompts):
        rng = np.random.default_rng(i)
        scene = arranged(rng, prompt)
        k = int(rng.integers(2))
        mask = half_of(scene, k)
        kept = (scene["color"][0, 1 - k], scene["shape"][0, 1 - k])
        names = [n for n in scenes.COLOR_NAMES if n != prompt["background"]]
        others = [
            (scenes.COLOR_NAMES.index(c), s) for c in names for s in range(len(scenes.SHAPES))
            if c != prompt["objects"][k]["color"] and scenes.SHAPES[s] != prompt["objects"][k]["shape"]
        ]
        others = [o for o in others if o != kept]
        color, shape = others[rng.integers(len(others))]
        scene["shape"][0, k] = shape
        scene["rgb"][0, k] = np.array(scenes.COLORS[scenes.COLOR_NAMES[color]], np.float32) / 255
        Image.fromarray(scenes.draw_uint8(scene)[0]).save(folder / f"{i:03d}.photo.png")
        Image.fromarray(mask).save(folder / f"{i:03d}.mask.png")
    (folder / "prompts.json").write_text(json.dumps(prompts))


def count(folder, results):
    """Prints what is wrong with the results, and how many are right."""
    prompts = json.loads((folder / "prompts.json").read_text())
    reasons, right, kept = Counter(), 0, 0
    for i, prompt in enumerate(prompts):
        photo, mask, picture = (
            np.asarray(Image.open(file).convert(mode))
            for file, mode in (
                (folder / f"{i:03d}.photo.png", "RGB"), (folder / f"{i:03d}.mask.png", "L"), (results / f"{i:03d}.png", "RGB")
            )
        )
        wrong = check.mistakes(picture, prompt)
        right += not wrong
        if (photo[mask == 0] == picture[mask == 0]).all():
            kept += 1
        else:
            wrong = [*wrong, "pixels outside of the mask"]
        reasons.update(wrong)
        if wrong:
            print(f"{i:03d} {prompt['prompt']}: {', '.join(wrong)}")
    for reason, n in reasons.most_common():
        print(f"{n:4d} {reason}")
    print(f"{right} of {len(prompts)} wholly right ({100 * right / len(prompts):.1f} %), in {kept} nothing else has changed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=200, help="number of cases")
    parser.add_argument("--check", type=Path, metavar="RESULTS", help="count the right results in this folder")
    args = parser.parse_args()
    if args.check:
        sys.exit(count(args.folder, args.check))
    prompts = json.loads(Path(__file__).with_name("prompts.json").read_text())
    draw([p for p in prompts if p["relation"]][: args.n], args.folder)


if __name__ == "__main__":
    main()

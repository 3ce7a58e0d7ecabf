"""What diffusers' inpainting pipelines see of an image and its mask, and how they paste their image back (package
models/inpaint): VaeImageProcessor's get_crop_region, preprocess with resize_mode "fill", and apply_overlay."""

import random
from pathlib import Path

import diffusers
import numpy as np
import PIL
from diffusers.image_processor import VaeImageProcessor
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from .files import write_json

SIZE = (97, 71)  # of the photo
# mask, width, height, padding: None is without a crop
CASES = (
    ("blob", 64, 64, 0),
    ("blob", 96, 48, 5),
    ("blob", 48, 96, 40),  # as tall as the photo: edges above and below
    ("soft", 64, 80, 8),
    ("soft", 80, 48, None),
    ("corner", 64, 48, 3),
    ("corner", 32, 96, 0),
    ("right", 160, 32, 12),  # as wide as the photo: edges on the left and right
    ("bottom", 64, 64, 0),
    ("line", 64, 64, 1),
    ("pixel", 32, 32, 0),
    ("all", 48, 48, 0),
    ("all", 112, 80, None),
)


def photo() -> Image.Image:
    """Smooth and sharp colours, and a little noise."""
    w, h = SIZE
    y, x = np.mgrid[0:h, 0:w]
    a = np.stack([x * 255 / (w - 1), y * 255 / (h - 1), 128 + 127 * np.sin((x + 2 * y) / 7)], -1)
    a[h // 4 : h // 2, w // 4 : w // 2] = (255, 0, 0)
    a[-20:, -30:] += np.random.default_rng(5).normal(0, 20, (20, 30, 3))
    return Image.fromarray(a.clip(0, 255).round().astype(np.uint8))


def mask(name: str) -> Image.Image:
    w, h = SIZE
    image = Image.new("L", SIZE)
    draw = ImageDraw.Draw(image)
    if name in ("blob", "soft"):
        draw.ellipse((30, 20, 62, 41), fill=255)
    if name == "soft":
        return image.filter(ImageFilter.GaussianBlur(3))
    boxes = {
        "corner": (0, 0, 20, 9),
        "right": (w - 9, 12, w - 1, 33),
        "bottom": (40, h - 6, 60, h - 1),
        "line": (12, 33, 70, 33),
        "pixel": (50, 60, 50, 60),
        "all": (0, 0, w - 1, h - 1),
    }
    if name in boxes:
        draw.rectangle(boxes[name], fill=255)
    return image


def regions() -> list[dict]:
    """Crop regions of boxes at random places in images of many sizes."""
    rng = random.Random(21)
    cases = []
    for i in range(200):
        w, h = rng.choice((rng.randint(1, 40), rng.randint(40, 700))), rng.choice((rng.randint(1, 40), rng.randint(40, 700)))
        x1, y1 = rng.choice((0, rng.randrange(w))), rng.choice((0, rng.randrange(h)))
        x2, y2 = rng.choice((w, rng.randint(x1 + 1, w))), rng.choice((h, rng.randint(y1 + 1, h)))
        image = Image.new("L", (w, h))
        image.paste(rng.choice((1, 255)), (x1, y1, x2, y2))
        width, height = 16 * rng.randint(1, 90), 16 * rng.randint(1, 90)
        pad = rng.choice((0, 1, rng.randint(2, 32), rng.randint(32, 800)))
        region = VaeImageProcessor.get_crop_region(image, width, height, pad)
        cases.append({"size": (w, h), "box": (x1, y1, x2, y2), "run": (width, height), "padding": pad, "region": region})
    return cases


def make(out: Path):
    """Writes photo and masks, what a model sees of them, and pasted images: the generated one is the negative of what
    the model sees."""
    out.mkdir(parents=True, exist_ok=True)

    def save(image, name):
        image.save(out / name, optimize=True)
        return name

    images = VaeImageProcessor(vae_scale_factor=16)
    masks = VaeImageProcessor(vae_scale_factor=16, do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    original = photo()
    save(original, "photo.png")
    cases = []
    for name, width, height, pad in CASES:
        drawn = mask(name)
        case = {"mask": save(drawn, f"mask-{name}.png"), "run": (width, height), "padding": pad}
        how = {}
        if pad is not None:
            case["region"] = masks.get_crop_region(drawn, width, height, pad)
            how = {"crops_coords": case["region"], "resize_mode": "fill"}
        stem = f"{name}-{width}x{height}"
        seen = images.postprocess(images.preprocess(original, height, width, **how))[0]
        case["seen"] = save(seen, f"{stem}.png")
        white = masks.preprocess(drawn, height, width, **how)[0, 0].numpy() > 0
        case["seen_mask"] = save(Image.fromarray(white), f"{stem}-mask.png")
        if pad is not None:
            pasted = images.apply_overlay(drawn, original, ImageOps.invert(seen), case["region"])
            case["pasted"] = save(pasted, f"{stem}-pasted.png")
        cases.append(case)
    versions = {"diffusers": diffusers.__version__, "pillow": PIL.__version__}
    write_json(out / "cases.json", versions | {"images": cases, "regions": regions()}, indent=None)

"""Makes the pictures beside this file that Pillow is the reference for.

    python make.py      with Pillow 12.3.0 and numpy
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

here = Path(__file__).parent
rng = np.random.default_rng(4)


def save(image, name, **options):
    image.save(here / name, **options)


def reference(name):
    """What diffusers' load_image gives for a file, but over white where it is transparent."""
    image = ImageOps.exif_transpose(Image.open(here / name))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    save(image.convert("RGB"), f"want/{name}.png", optimize=True)


def smooth(width, height):
    """A picture with smooth and sharp colours."""
    y, x = np.mgrid[0:height, 0:width]
    a = np.stack([x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), (x * y) % 256], -1)
    a[height // 4 : height // 2, width // 4 : width // 2] = (255, 0, 0)
    return Image.fromarray(a.round().astype(np.uint8))


(here / "want").mkdir(exist_ok=True)

# resizing: noise is the hardest input, smooth the usual one
noise = Image.fromarray(rng.integers(0, 256, (17, 23, 3), dtype=np.uint8))
for label, image in {"noise": noise, "smooth": smooth(61, 40)}.items():
    save(image, f"{label}.png", optimize=True)
    w, h = image.size
    for size in [(2 * w + 1, 3 * h - 2), (w // 2, h // 3), (w, 5), (7, h), (1, 1), (w + 1, h - 1)]:
        save(image.resize(size, Image.LANCZOS), f"want/{label}-{size[0]}x{size[1]}.png", optimize=True)

# kinds of pictures
rgb = smooth(13, 9)
alpha = Image.fromarray((np.arange(13 * 9).reshape(9, 13) * 255 // 116).astype(np.uint8))
rgba = rgb.copy()
rgba.putalpha(alpha)
grey = rgb.convert("L")
la = grey.convert("LA")
la.putalpha(alpha)
save(rgb, "rgb.png")
save(rgba, "rgba.png")
save(grey, "grey.png")
save(la, "la.png")
save(rgb.quantize(16), "palette.png")
save(rgb.quantize(16), "palette-transparent.png", transparency=bytes([0, 128, 255, 7]))
save(rgb.convert("1"), "bit.png")
save(rgb, "rgb.jpg", quality=90, subsampling=0)
save(rgb, "rgb-420.jpg", quality=90, subsampling=2)
save(rgb, "rgb-422.jpg", quality=90, subsampling=1)
save(rgb, "progressive.jpg", quality=90, subsampling=0, progressive=True)
save(grey, "grey.jpg", quality=90)
save(rgb.convert("CMYK"), "cmyk.jpg", quality=95)
save(rgb, "lossless.webp", lossless=True)
save(rgba, "lossless-rgba.webp", lossless=True, exact=True)
save(rgb, "lossy.webp", quality=90)
save(rgba, "lossy-rgba.webp", quality=90, exact=True)
for o in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = o
    save(rgb, f"orientation-{o}.png", exif=exif, optimize=True)
    if o == 6:
        save(rgb, "orientation-6.jpg", exif=exif, quality=90, subsampling=0)
        save(rgb, "orientation-6.webp", exif=exif, lossless=True)
for path in sorted(here.iterdir()):
    if path.suffix in (".png", ".jpg", ".webp") and path.stem not in ("noise", "smooth"):
        reference(path.name)

"""Makes the pictures beside this file that Pillow is the reference for, and torchvision for the bicubic filter.

    python make.py      with Pillow 12.3.0, numpy, torch 2.15.0 and torchvision 0.29.2
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as transforms

here = Path(__file__).parent
rng = np.random.default_rng(4)


def save(image, name, **options):
    image.save(here / name, **options)


def reference(name):
    """What diffusers' load_image gives for a file, but over white where it is transparent, and as it is."""
    image = ImageOps.exif_transpose(Image.open(here / name))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        save(image, f"straight/{name}.png", optimize=True)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    save(image.convert("RGB"), f"want/{name}.png", optimize=True)


def smooth(width, height):
    """A picture with smooth and sharp colours."""
    y, x = np.mgrid[0:height, 0:width]
    a = np.stack([x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), (x * y) % 256], -1)
    a[height // 4 : height // 2, width // 4 : width // 2] = (255, 0, 0)
    return Image.fromarray(a.round().astype(np.uint8))


(here / "want").mkdir(exist_ok=True)
(here / "straight").mkdir(exist_ok=True)

# resizing: noise is the hardest input, smooth the usual one
noise = Image.fromarray(rng.integers(0, 256, (17, 23, 3), dtype=np.uint8))
for label, image in {"noise": noise, "smooth": smooth(61, 40)}.items():
    save(image, f"{label}.png", optimize=True)
    w, h = image.size
    for size in [(2 * w + 1, 3 * h - 2), (w // 2, h // 3), (w, 5), (7, h), (1, 1), (w + 1, h - 1)]:
        save(image.resize(size, Image.LANCZOS), f"want/{label}-{size[0]}x{size[1]}.png", optimize=True)
        save(image.resize(size, Image.BILINEAR), f"want/bilinear-{label}-{size[0]}x{size[1]}.png", optimize=True)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        tensor = transforms.resize(tensor, size[::-1], transforms.InterpolationMode.BICUBIC, antialias=True)
        bicubic = Image.fromarray(tensor.permute(1, 2, 0).numpy())
        save(bicubic, f"want/bicubic-{label}-{size[0]}x{size[1]}.png", optimize=True)

# transparent noise, with many pixels that are opaque or invisible
values = np.random.default_rng(5).integers(-64, 320, (19, 26, 4)).clip(0, 255).astype(np.uint8)
values[..., :3] = np.random.default_rng(6).integers(0, 256, (19, 26, 3), dtype=np.uint8)
transparent = Image.fromarray(values)
save(transparent, "transparent.png", optimize=True)
w, h = transparent.size
for size in [(2 * w + 1, 3 * h - 2), (w // 2, h // 3), (w, 5), (7, h), (1, 1), (w, h)]:
    save(transparent.resize(size, Image.LANCZOS), f"want/transparent-{size[0]}x{size[1]}.png", optimize=True)
white = Image.new("RGB", transparent.size, (255, 255, 255))
white.paste(transparent, mask=transparent.getchannel("A"))
save(white, "want/transparent-on-white.png", optimize=True)

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
save(rgb, "rgb-transparent.png", transparency=(255, 0, 0))
save(grey, "grey-transparent.png", transparency=grey.getpixel((4, 4)))
save(rgb.convert("1"), "bit.png")
save(noise, "noise-lossy.webp", quality=90)
save(rgb, "rgb.jpg", quality=90, subsampling=0)
save(rgb, "rgb-420.jpg", quality=90, subsampling=2)
save(rgb, "rgb-422.jpg", quality=90, subsampling=1)
jpeg422 = (here / "rgb-422.jpg").read_bytes()
# luma of 2x1 made 1x2: another picture, with as many blocks in the same order
assert jpeg422.count(b"\x03\x01\x21\x00\x02\x11\x01\x03\x11\x01") == 1
(here / "rgb-440.jpg").write_bytes(jpeg422.replace(b"\x03\x01\x21\x00", b"\x03\x01\x12\x00"))
save(noise, "noise-420.jpg", quality=90, subsampling=2)
save(rgb, "components-rgb.jpg", quality=90, keep_rgb=True)
save(rgb.crop((0, 0, 3, 3)), "narrow-420.jpg", quality=90, subsampling=2)
save(rgb, "progressive.jpg", quality=90, subsampling=0, progressive=True)
save(grey, "grey.jpg", quality=90)
save(rgb.convert("CMYK"), "cmyk.jpg", quality=95)
cmyk = (here / "cmyk.jpg").read_bytes()
# the transform byte of Adobe's marker: 0 is CMYK, 2 is YCCK
adobe = cmyk.index(b"Adobe\0") + 11
assert cmyk[adobe] == 0
save(smooth(80, 64).convert("CMYK"), "large-cmyk.jpg", quality=95)  # large enough to be edited
(here / "ycck.jpg").write_bytes(cmyk[:adobe] + b"\2" + cmyk[adobe + 1 :])
save(rgb, "lossless.webp", lossless=True)
save(rgba, "lossless-rgba.webp", lossless=True, exact=True)
save(rgb, "lossy.webp", quality=90)
save(rgba, "lossy-rgba.webp", quality=90, exact=True)
(here / "refused").mkdir(exist_ok=True)
for extension in ("gif", "tiff", "bmp", "avif", "jp2"):
    save(rgb, f"refused/still.{extension}")
for extension in ("gif", "png", "webp"):
    save(rgb, f"refused/animation.{extension}", save_all=True, append_images=[rgb.rotate(180)], duration=100)
adobe = cmyk.index(b"\xff\xee")
(here / "refused/cmyk.jpg").write_bytes(cmyk[:adobe] + cmyk[adobe + 16 :])  # without Adobe's marker
for o in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = o
    save(rgb, f"orientation-{o}.png", exif=exif, optimize=True)
    if o == 6:
        save(rgb, "orientation-6.jpg", exif=exif, quality=90, subsampling=0)
        save(rgb, "orientation-6.webp", exif=exif, lossless=True)
for path in sorted(here.iterdir()):
    if path.suffix in (".png", ".jpg", ".webp") and path.stem not in ("noise", "smooth", "transparent", "gomflux", "mflux", "mflux-edit"):
        reference(path.name)

"""Checks with Pillow what gomflux.png, gomflux.jpg and gomflux.webp next to this file contain.

    python check.py      with Pillow 12.3.0
"""

import json
from pathlib import Path

from PIL import Image

here = Path(__file__).parent
want = json.loads((here / "gomflux.metadata.json").read_text("utf-8"))["gomflux"]

png = Image.open(here / "gomflux.png")
png.load()
assert list(png.text) == ["parameters", "gomflux"], list(png.text)
assert json.loads(png.text["gomflux"]) == want
loras = " <lora:ink_ wash:0.7> <lora:b:-1>"
assert png.text["parameters"].startswith(
    want["prompt"] + loras + "\nNegative prompt: " + want["negative_prompt"] + "\nSteps: 8, ")

jpg = Image.open(here / "gomflux.jpg")
jpg.load()
assert json.loads(jpg.info["comment"].decode("utf-8"))["gomflux"] == want
comment = jpg.getexif().get_ifd(0x8769)[0x9286]
assert comment[:8] == b"UNICODE\0"
assert comment[8:].decode("utf-16-be") == png.text["parameters"]

webp = Image.open(here / "gomflux.webp")
assert webp.convert("RGB").tobytes() == png.convert("RGB").tobytes()
assert json.loads(webp.getexif()[0x010E].encode("latin-1").decode("utf-8"))["gomflux"] == want
comment = webp.getexif().get_ifd(0x8769)[0x9286]
assert comment[8:].decode("utf-16-be") == png.text["parameters"]
print(png.text["parameters"])

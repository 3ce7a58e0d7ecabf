"""What diffusers' modular pipeline of FLUX.3 asks its prompt upsampler with boxes, and makes of the answers."""

import json
from pathlib import Path

from diffusers.modular_pipelines.flux3 import prompt_upsampler

ONE = [{"id": "cat", "desc": "a “black” cat", "bbox": [0.1, 0.25, 0.9005, 1]}]
TWO = [{"desc": "", "bbox": [0, 0.0005, 0.0125, 0.5]}, {"id": "En_Text_1", "desc": '"A\\B"\n<b>\u2028', "bbox": [0.5, 0.5, 1, 1]}]
EDIT = [
    {"id": "cup_1", "from": "ref_image_0", "src_bbox": [0.1, 0.1, 0.3, 0.3], "tgt_bbox": [0.5, 0.5, 0.7, 0.7], "desc": "a cup"},
    {"id": "van_1", "from": "ref_image_1", "src_bbox": [0.2, 0.2, 0.4, 0.4], "tgt_bbox": None, "desc": ""},
    {"id": "new_1", "from": "target", "src_bbox": None, "tgt_bbox": [0, 0, 1, 0.5], "desc": "a door"},
]

# Boxes, a prompt and answers: without a table, with a wrong one, with rows that are renamed, changed, added or left out.
CASES = [
    (ONE, " a cat\n", ["A cat.", "A cat <cat> sits [1, 2]", 'A cat <cat>. [{"id": "cat", "bbox": [1, 2, 3, 4], "desc": " a fat cat "}]']),
    (ONE, "a cat", [
        'A <cat_1> and a <dog_1>. [{"id": "cat_1", "bbox": [100, 250, 900, 999.5], "desc": "a cat of silk"},'
        ' {"id": "dog_1", "bbox": [10, 20, 30.5, 40], "desc": "a dog"}, {"id": "bird_1", "bbox": [10, 20, 30, 40], "desc": "no one cites it"}]',
        '<cat> <x> <y> <z> <w> [{"id": "x", "bbox": [0, 0, 1, 1], "desc": "d"}, {"id": "y", "bbox": [0, 0, 2000, 5], "desc": "d"},'
        ' {"id": "z", "bbox": [5, 5, 50, 50], "desc": " "}, {"id": "w", "bbox": [5, 5, true, 50], "desc": "d"}, 7, null]  ',
        '<cat> [{"id": "cat", "desc": "first"}, {"id": "cat", "desc": "second"}] and more',
        '[not a table] [["a"], {"id": "cat", "desc": "in a list"}]',
    ]),
    (TWO, "two", ['<obj_1> <o> [{"id": "o", "bbox": [0, 0, 12, 500], "desc": "ünder"}]', "[]", ""]),
    (EDIT, "move the cup", [
        'Move <cup_1>, remove <a>, add <new_1> and <s> at <t> [{"id": "a", "from": "ref_image_1", "src_bbox": [200, 200, 400, 400],'
        ' "tgt_bbox": null, "desc": "a van"}, {"id": "s", "from": "target", "src_bbox": null, "tgt_bbox": [1, 2, 3, 4], "desc": "s"},'
        ' {"id": "t", "from": "target", "src_bbox": [1, 2, 3, 4], "tgt_bbox": [1, 2, 3, 4], "desc": "t"}]',
        '<p> <q> [{"id": "p", "from": "ref_image_x", "src_bbox": [1, 2, 3, 4], "desc": "p"}, {"id": "q", "from": "ref_image_2",'
        ' "src_bbox": [1, 2, 3, 4], "desc": "q"}]',
    ]),
]  # fmt: skip


def write(out: Path):
    found = []
    for boxes, prompt, answers in CASES:
        rows = prompt_upsampler.boxes_to_canvas(boxes)
        request = prompt_upsampler.format_layout_request(prompt, rows)
        placed = [prompt_upsampler.reconcile_boxes(answer, [dict(row) for row in rows]) for answer in answers]
        found.append(dict(boxes=boxes, prompt=prompt, request=request, answers=answers, placed=placed))
    scaffold = prompt_upsampler.I2I_SCAFFOLD[True]
    out.write_text(json.dumps({"scaffold": scaffold, "cases": found}, indent=1) + "\n")

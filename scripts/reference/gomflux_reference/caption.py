"""What QwenImageLayeredPipeline makes of an image without a prompt: the text with which its text encoder describes the image."""

import json
from pathlib import Path
from unittest import mock

import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_layered as layered
from PIL import Image

from . import dump
from .files import read_json

PENALTY = 1.05  # in the generation_config.json of Qwen2.5-VL, whose temperature of 1e-6 leaves nothing to chance


def write(folder: Path, out: Path, picture: Path):
    """Writes the ids of prompt and caption, and the least difference between the two best logits."""
    dump.prepare()
    pipe = dump.load(folder)[0]
    image = Image.open(picture).convert("RGBA")
    area = read_json(folder / "model_index.json")["resolution"] ** 2
    width, height = layered.calculate_dimensions(area, image.width / image.height)[:2]
    generate, found = pipe.text_encoder.generate, {}

    def greedy(**inputs):
        result = generate(
            **inputs, do_sample=False, repetition_penalty=PENALTY, output_scores=True, return_dict_in_generate=True
        )  # fmt: skip
        best = torch.cat(result.scores).topk(2).values
        n = inputs["input_ids"].shape[1]
        found.update(
            prompt=inputs["input_ids"][0].tolist(), caption=result.sequences[0, n:].tolist(), margin=float((best[:, 0] - best[:, 1]).min())
        )  # fmt: skip
        return result.sequences

    with mock.patch.object(pipe.text_encoder, "generate", greedy):
        pipe.get_image_caption(pipe.image_processor.resize(image, height, width), device="cpu")
    out.write_text(json.dumps(found) + "\n")

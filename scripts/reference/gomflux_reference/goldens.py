"""The committed goldens: what models/testdata holds, and how it is made."""

import os
import shlex
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[3] / "models" / "testdata"

# Curly quotes, a decomposed and a composed accent, CJK, an emoji; with the chat template two blocks of 32 tokens.
PROMPT = "“L’été” à la cafe\u0301 – a red circle 🙂, 夕阳下的灯塔 (oil painting)"
NEGATIVE = "blurry, dark"

COMMANDS = f"""
tiny zimage-ordinary/model --seed 11 --layout hub --shards 2
    --dim 32 --heads 2 --layers 2 --refiner-layers 1
    --text-hidden 24 --text-intermediate 40 --text-layers 3 --text-heads 3 --text-kv-heads 1 --text-head-dim 8
    --vae-channels 4 8 12 --vae-layers-per-block 1 --vae-norm-groups 2

dump zimage-ordinary/model zimage-ordinary/dump --prompt {shlex.quote(PROMPT)}
    --steps 2 --seed 1 --height 24 --width 40 --max-sequence-length 96
    --taps 'transformer*@0*' 'transformer@*' 'transformer.t_embedder*' 'text_encoder*' 'vae.decoder*'

encode zimage-ordinary/model zimage-ordinary/encode --picture zimage-ordinary/encode/picture.png --taps 'vae.encoder*'

decode zimage-ordinary/model zimage-ordinary/roundtrip
    --latent zimage-ordinary/encode/tensors.safetensors:vae.encode.out --taps vae.decoder

modules zimage-ordinary/model --out zimage-ordinary/modules.txt

tiny zimage-small/model --seed 12 --kind small-activations --layout v5
    --dim 36 --heads 3 --axes-dims 2 4 6 --axes-lens 600 64 48 --layers 2 --refiner-layers 2 --rope-theta 100
    --norm-eps 2e-5 --merges 200
    --text-hidden 40 --text-intermediate 56 --text-layers 4 --text-heads 4 --text-kv-heads 2 --text-head-dim 12
    --text-rope-theta 20000 --text-norm-eps 2e-6
    --vae-channels 3 6 6 12 --vae-layers-per-block 2 --vae-norm-groups 3 --latent-channels 6
    --scaling-factor 0.5 --shift-factor -0.2 --shift 6

dump zimage-small/model zimage-small/dump --prompt {shlex.quote(PROMPT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 3 --guidance 3.5 --seed 2 --height 80 --width 112 --max-sequence-length 80
    --taps 'transformer@*' 'transformer.t_embedder*' 'transformer.*_refiner.?@0' 'transformer.layers.?@0*'
    'transformer.layers.1.*norm*@0' 'transformer.layers.1.attention.to_out.0@0' 'transformer.layers.1.feed_forward@0'
    'transformer.*embedder*@0*' 'transformer.all_final_layer*@0' 'transformer.*adaLN_modulation.?@0'
    'text_encoder.layers.?' 'text_encoder.layers.?#1' 'text_encoder.layers.1.*norm' 'text_encoder.embed_tokens'
    'vae.decoder.conv_in' 'vae.decoder.mid_block*' 'vae.decoder.up_blocks.[01]*' '!vae.*:in.*' '!vae.*dropout*'
    'vae.decoder.conv_norm_out'

dump zimage-ordinary/model zimage-image/dump --prompt {shlex.quote(PROMPT)} --picture zimage-image/picture.png
    --image-strength 0.5 --steps 4 --seed 4 --height 24 --width 40 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.t_embedder@*' 'vae.encoder'

dump zimage-small/model zimage-image-resized/dump --prompt {shlex.quote(PROMPT)}
    --negative-prompt {shlex.quote(NEGATIVE)} --picture zimage-image-resized/picture.png --image-strength 0.4
    --steps 3 --guidance 3.5 --seed 5 --height 80 --width 64 --max-sequence-length 80
    --taps 'transformer@*' 'transformer.t_embedder@*' 'vae.encoder' 'vae.encoder.conv_in'
    'vae.encoder.down_blocks.?' 'vae.encoder.mid_block' 'vae.encoder.mid_block.*' 'vae.encoder.conv_norm_out'
    '!*dropout*' '!*nonlinearity*'

dump zimage-ordinary/model zimage-heun/dump --prompt {shlex.quote(PROMPT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --scheduler flow_match_heun_discrete --steps 3 --guidance 2 --seed 6 --height 24 --width 40 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.t_embedder@*'

dump zimage-small/model zimage-linear/dump --prompt {shlex.quote(PROMPT)} --scheduler linear
    --steps 3 --seed 7 --height 80 --width 112 --max-sequence-length 80 --taps 'transformer@*' 'transformer.t_embedder@*'

dump zimage-ordinary/model zimage-inner/dump --prompt {shlex.quote(PROMPT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 2 --guidance 2.5 --seed 8 --height 24 --width 40 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.*attention@*' 'transformer.*.0.attention@1*:[qkv]*'
    'transformer.layers.1.attention@1:weights' 'transformer.layers.*.attention@*:entropy' 'text_encoder.layers.?'
    'text_encoder.layers.?#1' 'text_encoder.layers.[01].self_attn:[qkv]*' 'text_encoder.layers.1.self_attn#1:[qkv]*'
    'text_encoder.layers.1.self_attn:entropy' 'vae.decoder.mid_block.attentions.0:[qkv]*'
    'vae.decoder.mid_block.attentions.0:weights' 'vae.decoder.mid_block.attentions.0:entropy'

tiny vae-512/model --seed 13 --layout v5 --only vae --vae-channels 4 4 8 8 --vae-norm-groups 2

decode vae-512/model vae-512/decode --seed 3 --height 512 --width 512 --compute float64 --sample 20000
    --taps vae.decoder.mid_block 'vae.decoder.up_blocks.3.resnets.1.norm?' vae.decoder.conv_norm_out

encode vae-512/model vae-512/encode --picture vae-512/encode/picture.png --compute float64 --sample 20000
    --taps 'vae.encoder.down_blocks.0.resnets.0.norm?' vae.encoder.mid_block
"""

PICTURES = {
    "zimage-ordinary/encode/picture.png": (28, 20),
    "zimage-image/picture.png": (40, 24),
    "zimage-image-resized/picture.png": (101, 67),
    "vae-512/encode/picture.png": (512, 512),
}


def make(root: Path):
    """Remakes everything under root; `git diff` then shows what has changed."""
    from .__main__ import main

    root.mkdir(parents=True, exist_ok=True)
    before = os.getcwd()
    os.chdir(root)
    try:
        for path, size in PICTURES.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            draw(*size).save(path)
        for command in COMMANDS.strip().split("\n\n"):
            print(" ".join(shlex.split(command)[:3]), file=sys.stderr)
            main(limited(shlex.split(command)))
    finally:
        os.chdir(before)


def limited(command: list[str]) -> list[str]:
    """A command that writes files of at most 1 MB."""
    return command + ["--max-memory", "950000"] if command[0] in ("dump", "encode", "decode") else command


def draw(width: int, height: int) -> Image.Image:
    """A picture with slopes, hard edges, saturated areas and texture, different in each channel."""
    y, x = np.mgrid[0:height, 0:width]
    u, v = x / max(width, height), y / max(width, height)
    levels = np.stack([u, 1 - v, (u + v) / 2], -1)
    levels[(u - 0.4) ** 2 + (v - 0.3) ** 2 < 0.05] = 0.95, 0.1, 0.0
    # Without texture all tokens of an area are alike, and attention over them magnifies every rounding error.
    cells = torch.randn(height // 4 + 1, width // 4 + 1, 3, generator=torch.Generator().manual_seed(1)).numpy()
    levels = np.clip(levels + 0.1 * cells[y // 4, x // 4], 0, 1)
    return Image.fromarray(np.round(levels * 255).astype(np.uint8))

"""Makes the committed goldens in models/testdata."""

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
SHORT = "“L’été” à la cafe\u0301, 夕阳 🙂"
EDIT = "paint it’s lights red"

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

profile zimage-ordinary/model --modules zimage-ordinary/modules.txt --prompt 'a red circle' --picture zimage-ordinary/encode/picture.png
    --image-strength 0.5 --steps 2 --height 40 --width 40 --max-sequence-length 40

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

dump zimage-ordinary/model zimage-cfg/dump --prompt {shlex.quote(SHORT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 4 --guidance 4 --cfg-normalization 0.7 --cfg-truncation 0.3 --seed 91 --height 24 --width 40
    --max-sequence-length 64 --taps 'transformer@*' '!transformer@*:in.*'

dump zimage-ordinary/model zimage-bfloat16/dump --prompt {shlex.quote(PROMPT)} --compute bfloat16
    --steps 2 --seed 1 --height 24 --width 40 --max-sequence-length 96
    --taps 'transformer@*' 'transformer.layers.*@0*' 'transformer.t_embedder*@0' 'transformer.all_final_layer*@0'
    'text_encoder.layers.[01]' 'text_encoder.layers.0.*' vae.decoder vae.decoder.conv_in 'vae.decoder.mid_block*'
    '!*dropout*'

dump zimage-ordinary/model zimage-float16/dump --prompt 'a red circle' --negative-prompt {shlex.quote(NEGATIVE)}
    --compute float16 --steps 2 --guidance 2.5 --seed 51 --height 24 --width 40 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.layers.?@0' 'transformer.*_refiner.?@0' 'transformer.layers.0.attention@0'
    'transformer.layers.0.feed_forward@0' 'text_encoder.layers.?' 'text_encoder.layers.0.*' 'vae.decoder.mid_block'
    '!text_encoder*:in.*' '!*#1*'

dump zimage-ordinary/model zimage-inner/dump --prompt {shlex.quote(PROMPT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 2 --guidance 2.5 --seed 8 --height 24 --width 40 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.*attention@*' 'transformer.*.0.attention@1*:[qkv]*'
    'transformer.layers.1.attention@1:weights' 'transformer.layers.*.attention@*:entropy' 'text_encoder.layers.?'
    'text_encoder.layers.?#1' 'text_encoder.layers.[01].self_attn:[qkv]*' 'text_encoder.layers.1.self_attn#1:[qkv]*'
    'text_encoder.layers.1.self_attn:entropy' 'vae.decoder.mid_block.attentions.0:[qkv]*'
    'vae.decoder.mid_block.attentions.0:weights' 'vae.decoder.mid_block.attentions.0:entropy'

tiny flux1-schnell-ordinary/model --family flux1-schnell --seed 21 --layout v5
    --heads 2 --axes-dims 2 6 4 --layers 1 --single-layers 2
    --clip-hidden 18 --clip-intermediate 28 --clip-layers 2 --clip-heads 3 --clip-merges 100
    --t5-hidden 20 --t5-intermediate 36 --t5-layers 2 --t5-heads 3 --t5-head-dim 6 --t5-buckets 16 --t5-max-distance 40
    --t5-pieces 150 --vae-channels 4 4 8 --vae-layers-per-block 1 --vae-norm-groups 2

dump flux1-schnell-ordinary/model flux1-schnell-ordinary/dump --prompt {shlex.quote(SHORT)}
    --steps 2 --seed 21 --height 24 --width 40 --max-sequence-length 30
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.transformer_blocks.0.*@0*'
    'transformer.single_transformer_blocks.1.*@0*' 'transformer.transformer_blocks.0.attn@1:[qk]*'
    'transformer.*embed*@0' 'transformer.norm_out*@0'
    'text_encoder*.embeddings*' 'text_encoder.*.layers.0.*' 'text_encoder.*.layers.?' 'text_encoder.final_layer_norm'
    'text_encoder_2.*.embed_tokens' 'text_encoder_2.*.block.0.layer.*' 'text_encoder_2.*.block.?' 'text_encoder_2'
    'text_encoder_2.*.block.1.layer.0.SelfAttention:[qkv]*' 'text_encoder.*.layers.1.self_attn:[qkv]*'
    '!*dropout*' '!*.act*' '!*:in.*' '!*relative_attention_bias' '!transformer.pos_embed*' '!*.to_out.1@*'
    '!*.proj_mlp@*' '!*.wi_?'

tiny flux1-dev-small/model --family flux1-dev --seed 22 --kind small-activations --layout hub --shards 2
    --heads 3 --axes-dims 4 2 2 --layers 1 --single-layers 2
    --clip-hidden 20 --clip-intermediate 24 --clip-layers 3 --clip-heads 2 --clip-norm-eps 3e-5 --clip-merges 60
    --t5-hidden 28 --t5-intermediate 24 --t5-layers 3 --t5-heads 2 --t5-head-dim 8 --t5-norm-eps 2e-6 --t5-pieces 100
    --vae-channels 3 6 6 6 --vae-layers-per-block 1 --vae-norm-groups 3 --latent-channels 6
    --scaling-factor 0.5 --shift-factor -0.2 --base-shift 0.4 --max-shift 1.3

dump flux1-dev-small/model flux1-dev-small/dump --prompt {shlex.quote(SHORT)}
    --steps 3 --guidance 3.5 --seed 22 --height 80 --width 48 --max-sequence-length 40
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.transformer_blocks.0.*norm*@0*'
    'transformer.single_transformer_blocks.1.*norm*@0*' 'transformer.*embed*@0*' 'transformer.norm_out*@0'
    'text_encoder.*.layers.?' 'text_encoder.*.layers.1.*norm?' 'text_encoder_2.*.block.?'
    'text_encoder_2.*.block.1.*norm' 'vae.decoder.conv_in' 'vae.decoder.mid_block' 'vae.decoder.up_blocks.0'
    '!*dropout*' '!*.act*' '!*:in.*' '!transformer.pos_embed*'

profile flux1-dev-small/model --modules flux1-dev-small/modules.txt --prompt 'a red circle' --picture flux1-dev-image/picture.png
    --image-strength 0.5 --steps 2 --height 80 --width 80 --max-sequence-length 40

dump flux1-dev-small/model flux1-true-cfg/dump --prompt {shlex.quote(SHORT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 3 --guidance 3.5 --true-cfg-scale 2.5 --seed 92 --height 32 --width 48 --max-sequence-length 40
    --taps 'transformer@*' 'transformer.time_text_embed@*' '!transformer@*:in.*'

dump flux1-dev-small/model flux1-dev-image/dump --prompt {shlex.quote(SHORT)} --picture flux1-dev-image/picture.png
    --image-strength 0.4 --steps 5 --guidance 2.5 --seed 23 --height 32 --width 48 --max-sequence-length 40
    --taps transformer@2 transformer@4 vae.encoder

dump flux1-schnell-ordinary/model flux1-inner/dump --prompt 'a red circle'
    --steps 3 --seed 31 --height 24 --width 40 --max-sequence-length 20
    --taps 'transformer@*' 'transformer.*transformer_blocks.0*@1*' 'transformer.time_text_embed*@1*'
    'transformer.norm_out*@1*' 'transformer.*_embedder@1*' 'transformer.proj_out@1' 'transformer.pos_embed@1*'
    'transformer.*_blocks.0.attn@1:[qkv]' 'text_encoder.*embedding*' 'text_encoder.*.layers.[01]*'
    'text_encoder.final_layer_norm*' 'text_encoder.*.self_attn:[qkv]' 'text_encoder_2.*.block.[01]*'
    'text_encoder_2.*.SelfAttention:[qkv]' 'text_encoder_2.encoder.embed_tokens' vae.decoder.conv_in
    '!*dropout*' '!*single*.norm@1:in.*'

dump flux1-schnell-ordinary/model flux1-float16/dump --prompt 'a red circle' --compute float16
    --steps 2 --seed 52 --height 24 --width 40 --max-sequence-length 20
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.attn@0' 'transformer.*_blocks.0.ff*@0'
    'transformer.*_blocks.0.proj_out@0' 'text_encoder.*.layers.?' 'text_encoder_2.*.block.?' 'vae.decoder.mid_block' '!*:in.*'

tiny flux1-kontext/model --family flux1-kontext --seed 28 --layout hub
    --heads 2 --axes-dims 2 4 4 --layers 1 --single-layers 1
    --clip-hidden 18 --clip-intermediate 28 --clip-layers 2 --clip-heads 3 --clip-merges 60
    --t5-hidden 20 --t5-intermediate 36 --t5-layers 2 --t5-heads 3 --t5-head-dim 6 --t5-buckets 16 --t5-max-distance 40
    --t5-pieces 100 --vae-channels 4 4 8 --vae-layers-per-block 1 --vae-norm-groups 2
    --preferred-sizes 44 60 52 52 60 44

dump flux1-kontext/model flux1-kontext/dump --prompt {shlex.quote(EDIT)} --references flux1-kontext/first.png
    --steps 2 --guidance 2.5 --seed 28 --height 24 --width 40 --max-sequence-length 24
    --taps 'transformer@*' 'transformer.*_blocks.?@1*' 'transformer.*_blocks.0.attn@1:[qk]' 'transformer.*embed*@0'
    'transformer.norm_out*@0' 'vae.encoder.mid_block' '!transformer.*:in.*' '!vae*:in.*'

tiny flux1-kontext-small/model --family flux1-kontext --seed 29 --kind small-activations --layout v5
    --heads 3 --axes-dims 4 2 2 --layers 1 --single-layers 2
    --clip-hidden 20 --clip-intermediate 24 --clip-layers 2 --clip-heads 2 --clip-norm-eps 3e-5 --clip-merges 60
    --t5-hidden 28 --t5-intermediate 24 --t5-layers 2 --t5-heads 2 --t5-head-dim 8 --t5-norm-eps 2e-6 --t5-pieces 100
    --vae-channels 3 6 6 6 --vae-layers-per-block 1 --vae-norm-groups 3 --latent-channels 6
    --scaling-factor 0.5 --shift-factor -0.2 --base-shift 0.4 --max-shift 1.3
    --preferred-sizes 40 72 50 58 58 50 72 40

dump flux1-kontext-small/model flux1-kontext-small/dump --prompt {shlex.quote(EDIT)}
    --references flux1-kontext-small/first.png
    --steps 3 --guidance 4 --seed 29 --height 80 --width 48 --max-sequence-length 40
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.transformer_blocks.0.*norm*@0'
    'transformer.single_transformer_blocks.1.*norm*@0' 'transformer.norm_out*@0' 'text_encoder*.*.layers.1.*norm?'
    'text_encoder_2.*.block.1.*norm' 'vae.encoder.conv_norm_out' 'vae.encoder.mid_block' 'vae.decoder.mid_block'
    '!*dropout*' '!transformer.*:in.*' '!vae*:in.*' '!text*:in.*'

tiny flux1-fill/model --family flux1-fill --seed 73 --layout hub
    --heads 2 --axes-dims 2 4 4 --layers 1 --single-layers 1
    --clip-hidden 18 --clip-intermediate 28 --clip-layers 2 --clip-heads 3 --clip-merges 60
    --t5-hidden 20 --t5-intermediate 36 --t5-layers 2 --t5-heads 3 --t5-head-dim 6 --t5-buckets 16 --t5-max-distance 40
    --t5-pieces 100 --vae-channels 4 4 8 --vae-layers-per-block 1 --vae-norm-groups 2

dump flux1-fill/model flux1-fill/dump --prompt {shlex.quote(EDIT)}
    --picture flux1-fill/picture.png --mask flux1-fill/mask.png --image-strength 0
    --steps 2 --guidance 30 --seed 73 --height 24 --width 40 --max-sequence-length 24
    --taps 'transformer@*' 'transformer.*_blocks.?@1*' 'transformer.*embed*@0' 'transformer.norm_out*@0'
    'transformer.proj_out@0' 'vae.encoder.mid_block*' '!transformer.*_blocks*:in.*' '!vae*:in.*'

tiny flux1-fill-small/model --family flux1-fill --seed 74 --kind small-activations --layout v5
    --heads 3 --axes-dims 4 2 2 --layers 1 --single-layers 2
    --clip-hidden 20 --clip-intermediate 24 --clip-layers 2 --clip-heads 2 --clip-norm-eps 3e-5 --clip-merges 60
    --t5-hidden 28 --t5-intermediate 24 --t5-layers 2 --t5-heads 2 --t5-head-dim 8 --t5-norm-eps 2e-6 --t5-pieces 100
    --vae-channels 3 6 6 6 --vae-layers-per-block 1 --vae-norm-groups 3 --latent-channels 6
    --scaling-factor 0.5 --shift-factor -0.2 --base-shift 0.4 --max-shift 1.3

dump flux1-fill-small/model flux1-fill-small/dump --prompt {shlex.quote(EDIT)}
    --picture flux1-fill-small/picture.png --mask flux1-fill-small/mask.png --image-strength 0.4
    --steps 4 --guidance 7.5 --seed 74 --height 80 --width 48 --max-sequence-length 40
    --taps 'transformer@*' 'transformer.*_blocks.?@1' 'transformer.transformer_blocks.0.*norm*@1'
    'transformer.x_embedder@1' 'transformer.norm_out*@1' 'vae.encoder.conv_norm_out*' 'vae.encoder.mid_block*'
    'vae.decoder.mid_block' '!transformer.*_blocks*:in.*' '!vae*:in.*'

tiny flux2-klein/model --family flux2-klein --seed 24 --layout hub --shards 2
    --heads 2 --axes-dims 2 4 2 4 --layers 1 --single-layers 2 --mlp-ratio 2.5 --rope-theta 1500
    --text-hidden 20 --text-intermediate 36 --text-layers 5 --text-heads 3 --text-kv-heads 1 --text-head-dim 8
    --merges 200 --out-layers 1 2 4 --vae-channels 4 4 4 8 --vae-decoder-channels 4 4 8 8 --vae-layers-per-block 1
    --vae-norm-groups 2

dump flux2-klein/model flux2-klein/dump --prompt {shlex.quote(SHORT)}
    --steps 2 --guidance 1 --seed 24 --height 48 --width 80 --max-sequence-length 44
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.transformer_blocks.0.*@0*'
    'transformer.single_transformer_blocks.1.*@0*' 'transformer.single_transformer_blocks.0.attn@1:[qk]'
    'transformer.*embed*@0' 'transformer.*_modulation*@0' 'transformer.norm_out*@0'
    'text_encoder.*.layers.[0123]' 'text_encoder.*.layers.0.*norm' 'vae.post_quant_conv' 'vae.decoder.conv_in'
    'vae.decoder.mid_block' '!*dropout*' '!*.act_fn*' '!*:in.*' '!transformer.pos_embed*' '!*.to_out.1@*'

dump flux2-klein/model flux2-klein-edit2/dump --prompt {shlex.quote(EDIT)}
    --references flux2-klein-edit2/first.png flux2-klein-edit2/second.png
    --steps 2 --guidance 1 --seed 25 --height 48 --width 32 --max-sequence-length 29
    --taps 'transformer@*' 'transformer.*_blocks.?@1*' 'vae.encoder.mid_block' 'vae.encoder.mid_block#1'
    'vae.quant_conv*' '!transformer.*:in.*' '!vae*:in.*'

dump flux2-klein/model flux2-inner/dump --prompt 'a red circle'
    --steps 3 --guidance 1 --seed 32 --height 48 --width 80 --max-sequence-length 30
    --taps 'transformer@*' 'transformer.*transformer_blocks.0*@1*' 'transformer.time*@1*' 'transformer.norm_out*@1*'
    'transformer.*_embedder@1*' 'transformer.*_modulation*@1*' 'transformer.proj_out@1' 'transformer.pos_embed@1*'
    'transformer.*_blocks.0.attn@1:[qkv]' 'text_encoder.model.layers.[0123]' 'text_encoder.model.layers.0*'
    'text_encoder.*.layers.0.self_attn:[qkv]' text_encoder.model.embed_tokens vae.decoder.conv_in vae.post_quant_conv
    '!text_encoder*:in.attention_mask' '!text_encoder*:in.position_ids'

dump flux2-klein/model flux2-float16/dump --prompt 'a red circle' --compute float16
    --steps 2 --guidance 1 --seed 53 --height 48 --width 80 --max-sequence-length 30
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.attn@0' 'transformer.*_blocks.0.ff*@0'
    'text_encoder.*.layers.[0123]' 'text_encoder.*.layers.0.mlp' 'vae.decoder.mid_block' '!*:in.*' '!*.act_fn*'

tiny flux2-klein-base/model --family flux2-klein-base --seed 26 --kind small-activations --layout v5
    --heads 3 --axes-dims 2 2 4 2 --layers 1 --single-layers 1 --mlp-ratio 2 --norm-eps 2e-6
    --text-hidden 24 --text-intermediate 28 --text-layers 4 --text-heads 4 --text-kv-heads 2 --text-head-dim 6
    --text-rope-theta 20000 --text-norm-eps 2e-6 --merges 150 --out-layers 1 2 3
    --vae-channels 3 6 6 --vae-decoder-channels 6 6 9 --vae-layers-per-block 1 --vae-norm-groups 3 --latent-channels 6
    --batch-norm-eps 1e-3

dump flux2-klein-base/model flux2-klein-base/dump --prompt {shlex.quote(SHORT)}
    --steps 3 --guidance 3.5 --seed 26 --height 24 --width 56 --max-sequence-length 44
    --taps 'transformer@*' 'transformer.*_blocks.?@1*' 'transformer.transformer_blocks.0.*norm*@0*'
    'transformer.single_transformer_blocks.0.*norm*@0*' 'transformer.*embed*@0' 'transformer.*_modulation*@0'
    'transformer.norm_out*@0' 'text_encoder.*.layers.[012]' 'text_encoder.*.layers.1.*norm' 'text_encoder.*.layers.2#1'
    'vae.decoder.*_block' '!*dropout*' '!*:in.*' '!transformer.pos_embed*'

profile flux2-klein-base/model --modules flux2-klein-base/modules.txt --prompt 'a red circle' --references flux2-klein-edit2/first.png
    --steps 2 --height 40 --width 40 --max-sequence-length 40

tiny flux2-klein-kv/model --family flux2-klein-kv --seed 27 --layout hub
    --heads 2 --axes-dims 4 2 4 2 --layers 1 --single-layers 1
    --text-hidden 16 --text-intermediate 24 --text-layers 4 --text-heads 2 --text-kv-heads 2 --text-head-dim 10
    --merges 150 --out-layers 1 2 3 --vae-channels 4 4 4 8 --vae-decoder-channels 4 4 4 8 --vae-layers-per-block 1
    --vae-norm-groups 2

dump flux2-klein-kv/model flux2-klein-kv/dump --prompt {shlex.quote(EDIT)} --references flux2-klein-kv/first.png
    --steps 3 --guidance 1 --seed 27 --height 48 --width 32 --max-sequence-length 29
    --taps 'transformer@*' 'transformer.*_blocks.?@[01]*' 'transformer.*_blocks.0.attn@[01]:[qkv]*'
    'transformer.*_modulation*@0*' 'transformer.time*@0*' 'transformer.*_blocks.0.*norm*@0*'
    'transformer.*_blocks.0.attn@0*' 'transformer.*_blocks.0.ff*@0' '!*.act_fn*' '!*:in.*'

tiny flux2-dev/model --family flux2-dev --seed 61 --layout hub --shards 2
    --heads 2 --axes-dims 2 4 2 4 --layers 1 --single-layers 2 --mlp-ratio 2.5
    --text-hidden 20 --text-intermediate 36 --text-layers 5 --text-heads 3 --text-kv-heads 1 --text-head-dim 8
    --merges 200 --out-layers 1 2 4 --vae-channels 4 4 4 8 --vae-decoder-channels 4 4 8 8 --vae-layers-per-block 1
    --vae-norm-groups 2

dump flux2-dev/model flux2-dev/dump --prompt {shlex.quote(SHORT + " [IMG] violin")}
    --steps 2 --guidance 2.5 --seed 61 --height 48 --width 80 --max-sequence-length 90
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.time*@0*' 'transformer.*embed*@0' 'transformer.norm_out*@0'
    'text_encoder.*.layers.[0123]' 'text_encoder.*.layers.0*' 'text_encoder.*.layers.[02].self_attn:[qk]' 'vae.decoder.mid_block'
    '!*.act_fn*' '!*:in.*' '!transformer.pos_embed*'

tiny flux2-dev-small/model --family flux2-dev --seed 62 --kind small-activations --layout v5
    --heads 3 --axes-dims 2 2 4 2 --layers 1 --single-layers 1 --mlp-ratio 2 --norm-eps 2e-6
    --text-hidden 24 --text-intermediate 28 --text-layers 4 --text-heads 4 --text-kv-heads 2 --text-head-dim 6
    --text-rope-theta 20000 --text-norm-eps 2e-5 --merges 150 --out-layers 1 2 3 --padding-side right
    --vae-channels 3 6 6 --vae-decoder-channels 6 6 9 --vae-layers-per-block 1 --vae-norm-groups 3 --latent-channels 6
    --batch-norm-eps 1e-3

dump flux2-dev-small/model flux2-dev-small/dump --prompt {shlex.quote(EDIT)} --references flux2-klein-edit2/first.png
    --steps 3 --guidance 4 --seed 62 --height 48 --width 64 --max-sequence-length 70
    --taps 'transformer@*' 'transformer.*_blocks.?@1*' 'transformer.transformer_blocks.0.*norm*@0*' 'transformer.time*@0*'
    'transformer.norm_out*@0' 'text_encoder.*.layers.[012]' 'text_encoder.*.layers.1.*norm' 'vae.encoder.mid_block'
    'vae.decoder.*_block' '!*dropout*' '!*:in.*' '!transformer.pos_embed*'

tiny flux3-klein/model --family flux3-klein --seed 71 --layout hub --shards 2
    --heads 2 --axes-dims 2 4 2 4 --layers 1 --single-layers 2 --mlp-ratio 2.5
    --text-hidden 20 --text-intermediate 36 --text-layers 5 --text-heads 3 --text-kv-heads 1 --text-head-dim 8
    --merges 200 --out-layers 1 2 4 --vae-channels 4 4 4 8 --vae-decoder-channels 4 4 8 8 --vae-layers-per-block 1
    --vae-norm-groups 2

dump flux3-klein/model flux3-klein/dump --prompt {shlex.quote(SHORT)}
    --steps 2 --guidance 1 --seed 71 --height 48 --width 80 --max-sequence-length 70
    --taps 'transformer@*' 'transformer.*_blocks.*.?@0' 'transformer.single_transformer_blocks.?@0*' 'transformer.*time*@0*'
    'transformer.*_modulations*@0' 'transformer.norm_out*@0' 'text_encoder.*.layers.[0123]' 'vae.decoder.mid_block'
    '!*.act_fn*' '!*:in.*' '!transformer.pos_embed*'

dump flux3-klein/model flux3-klein-edit/dump --prompt {shlex.quote(EDIT)} --references flux2-klein-edit2/first.png
    --steps 2 --guidance 1 --seed 73 --height 64 --width 64
    --taps 'transformer@*' 'transformer.mode_blocks.*.?@1' 'transformer.single_transformer_blocks.?@1*' 'vae.encoder.mid_block'
    '!*:in.*'

tiny flux3-klein-base/model --family flux3-klein-base --seed 72 --kind small-activations --layout v5
    --heads 3 --axes-dims 2 2 4 2 --layers 1 --single-layers 1 --mlp-ratio 2 --norm-eps 2e-6
    --text-hidden 24 --text-intermediate 28 --text-layers 4 --text-heads 4 --text-kv-heads 2 --text-head-dim 6
    --text-rope-theta 20000 --text-norm-eps 2e-5 --merges 150 --out-layers 1 2 3 --shift 3
    --vae-channels 3 6 6 --vae-decoder-channels 6 6 9 --vae-layers-per-block 1 --vae-norm-groups 3 --latent-channels 6
    --batch-norm-eps 1e-3

dump flux3-klein-base/model flux3-klein-base/dump --prompt {shlex.quote(EDIT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --references flux2-klein-edit2/first.png flux2-klein-edit2/second.png
    --steps 3 --guidance 4 --seed 72 --height 40 --width 64
    --taps 'transformer@*' 'transformer.*blocks.*.?@1*' 'transformer.*_blocks.*.0.norm@0*' 'transformer.*time*@0*'
    'transformer.norm_out*@0' 'text_encoder.*.layers.[012]' 'text_encoder.*.layers.1.*norm' 'vae.encoder.mid_block'
    'vae.decoder.*_block' '!*dropout*' '!*:in.*' '!transformer.pos_embed*'

tiny ernie-image/model --family ernie-image --seed 63 --layout hub --shards 2
    --heads 2 --axes-dims 4 6 4 --layers 2 --intermediate 40
    --text-hidden 28 --text-intermediate 28 --text-layers 3 --text-heads 3 --text-kv-heads 1 --text-head-dim 8
    --merges 200 --vae-channels 4 4 4 8 --vae-decoder-channels 4 4 8 8 --vae-layers-per-block 1 --vae-norm-groups 2

dump ernie-image/model ernie-image/dump --prompt {shlex.quote(SHORT + " violin")} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 3 --guidance 3.5 --seed 63 --height 48 --width 80
    --taps 'transformer@*' 'transformer.layers.?@*' 'transformer.layers.0*@0' 'transformer.layers.0.self_attention@0:[qk]*'
    'transformer.time*@0' 'transformer.*embed*@0' 'transformer.adaLN*@0' 'transformer.final*@0' 'text_encoder.*.layers.?'
    'text_encoder.*.layers.0*' 'text_encoder.*.layers.1.self_attn:[qk]*' 'vae.decoder.mid_block' '!*:in.*' '!transformer.pos_embed*'

tiny ernie-image-small/model --family ernie-image --seed 64 --kind small-activations --layout v5
    --heads 5 --axes-dims 2 4 6 --layers 2 --intermediate 32 --rope-theta 100 --norm-eps 2e-5
    --text-hidden 24 --text-intermediate 28 --text-layers 4 --text-heads 4 --text-kv-heads 2 --text-head-dim 10
    --text-rope-theta 20000 --text-norm-eps 2e-5 --text-model mistral --yarn-factor 3 --yarn-original 200 --merges 150
    --padding-side right --vae-channels 3 6 6 --vae-decoder-channels 6 6 9 --vae-layers-per-block 1 --vae-norm-groups 3
    --latent-channels 6 --batch-norm-eps 1e-3 --shift 3

dump ernie-image-small/model ernie-image-small/dump --prompt {shlex.quote(EDIT)} --steps 2 --guidance 1 --seed 64
    --height 56 --width 40 --taps 'transformer@*' 'transformer.layers.?@1*' 'transformer.layers.0.adaLN*@0'
    'transformer.layers.0.*attention*@0' 'transformer.time*@0*' 'transformer.text_proj@0' 'transformer.final_norm*@0'
    'text_encoder.*.layers.[012]' 'text_encoder.*.layers.1.*norm' 'vae.decoder.*_block' '!*dropout*' '!*:in.*'

dump ernie-image/model ernie-image-float16/dump --prompt 'a red circle' --compute float16
    --steps 2 --guidance 3 --seed 65 --height 48 --width 64
    --taps 'transformer@*' 'transformer.layers.?@*' 'text_encoder.*.layers.[01]' '!*:in.*'

tiny qwen-image-ordinary/model --family qwen-image --seed 41 --layout hub --shards 2
    --heads 2 --axes-dims 2 4 4 --layers 2 --text-intermediate 28 --text-layers 2 --text-heads 3 --text-kv-heads 1
    --text-mrope-section 1 2 1 --merges 330 --vision-heads 1 --vision-head-dim 8 --vision-intermediate 12
    --vision-layers 2 --vision-patch 6 --vision-window 24 --vae-channels 6 6 6 6

dump qwen-image-ordinary/model qwen-image-ordinary/dump --prompt {shlex.quote(SHORT)}
    --negative-prompt {shlex.quote(NEGATIVE)} --steps 2 --guidance 3.5 --seed 41 --height 32 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.transformer_blocks.0.*@0*'
    'transformer.transformer_blocks.1.attn@1:[qk]*' 'transformer.t*@0' 'transformer.img_in@0' 'transformer.norm_out*@0'
    'text_encoder.*.language_model*' 'vae.post_quant_conv' 'vae.decoder.conv_in' 'vae.decoder.mid_block'
    'vae.decoder.up_blocks.[01]' '!*dropout*' '!*.act_fn*' '!*:in.*' '!*rotary_emb*' '!*.to_out.1@*' '!*.net.*'
    '!*hidden_states*' '!*.down_proj*' '!*.layers.1.*.*' '!*.mlp.*' '!text_encoder*.layers.?.*#1'

dump qwen-image-ordinary/model qwen-image-float16/dump --prompt 'a red circle' --compute float16
    --steps 2 --guidance 1 --seed 54 --height 32 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.attn@0' 'transformer.*_blocks.0.*_mlp@0'
    'text_encoder.*.language_model.layers.?' 'vae.decoder.mid_block' '!*:in.*'

tiny qwen-image-small/model --family qwen-image --seed 42 --kind small-activations --layout v5
    --heads 3 --axes-dims 2 2 2 --layers 2 --text-intermediate 24 --text-layers 3 --text-heads 2 --text-kv-heads 2
    --text-mrope-section 2 1 2 --text-rope-theta 20000 --text-norm-eps 2e-6 --merges 340
    --vision-heads 2 --vision-head-dim 4 --vision-intermediate 12 --vision-layers 2 --vision-patch 6 --vision-window 12
    --vae-channels 6 12 6 --latents-mean 0.9653 -0.2921 -0.9113 0.5517 0.2503 --latents-std 0.7083 2.6052 1.1253 2.8 0.9
    --base-shift 1.0986 --max-shift 1.0986 --shift-terminal 0

dump qwen-image-small/model qwen-image-small/dump --prompt {shlex.quote(SHORT)}
    --steps 3 --guidance 4 --seed 42 --height 40 --width 24 --max-sequence-length 40
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.transformer_blocks.0.*norm*@0*'
    'transformer.time*@*' 'transformer.norm_out*@0' 'text_encoder.*.layers.?' 'text_encoder.*.layers.1.*norm*'
    'vae.decoder.conv_in' 'vae.decoder.mid_block' 'vae.decoder.up_blocks.?' 'vae.decoder.up_blocks.0.*.norm?'
    '!*:in.*'

tiny qwen-edit/model --family qwen-image-edit --seed 43 --kind small-activations --layout hub
    --heads 2 --axes-dims 4 4 2 --layers 1 --text-intermediate 28 --text-layers 2 --text-heads 2 --text-kv-heads 1
    --text-mrope-section 1 1 2 --merges 330 --vision-heads 2 --vision-head-dim 4 --vision-intermediate 20
    --vision-layers 3 --vision-full-layers 1 --vision-window 56 --vae-image-size 2500 --vae-channels 6 6 6 6

dump qwen-edit/model qwen-edit/dump --prompt {shlex.quote(EDIT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --references qwen-edit/first.png --steps 2 --guidance 2.5 --seed 43 --height 32 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@*' 'transformer.*_blocks.0.*norm*@1' 'transformer.norm_out*@1'
    'text_encoder.model' 'text_encoder.model#1' 'text_encoder.*.layers.?' 'text_encoder.*.layers.1.*norm*'
    'text_encoder.model.visual' 'text_encoder.*.blocks.?' 'text_encoder.*.blocks.1.*norm?' 'text_encoder.*.merger*'
    'text_encoder.*.rotary_emb:in.1' 'text_encoder.*.patch_embed' 'vae.encoder.mid_block'
    'vae.encoder.down_blocks.[1-9]' 'vae.quant_conv' '!transformer*:in.*' '!vae*:in.*' '!*norm*:in.*' '!*.layers.?:in.*'
    '!*.blocks.?:in.*' '!*merger*:in.*' '!*patch_embed:in.*' '!*model:in.*' '!*model#1:in.*' '!*visual:in.*' '!*hidden_states*'

tiny qwen-edit-plus/model --family qwen-image-edit-plus --seed 44 --layout v5
    --heads 2 --axes-dims 2 2 4 --layers 2 --zero-cond-t 1 --text-intermediate 24 --text-layers 2 --text-heads 2
    --text-kv-heads 1 --text-mrope-section 1 2 2 --text-rope-theta 50000 --merges 330
    --vision-heads 2 --vision-head-dim 4 --vision-intermediate 12 --vision-layers 2 --vision-full-layers 1
    --vision-patch 4 --vision-window 16 --min-pixels 1200 --max-pixels 1500 --vae-image-size 2100
    --condition-image-size 2600 --vae-channels 6 6 6 6

dump qwen-edit-plus/model qwen-edit-plus/dump --prompt {shlex.quote(EDIT)}
    --references qwen-edit-plus/first.png qwen-edit-plus/second.png --steps 2 --guidance 1 --seed 44
    --height 16 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@1*' 'transformer.transformer_blocks.0.*@1*'
    'transformer.*_blocks.0.attn@1:[qk]*' 'transformer.t*@1' 'transformer.img_in@1' 'transformer.norm_out*@1'
    'transformer.pos_embed@0*' 'text_encoder.model' 'text_encoder.*.layers.?' 'text_encoder.*.layers.0.*norm'
    'text_encoder.*.layers.1.self_attn' 'text_encoder.*.layers.0.self_attn:[qk]' 'text_encoder.*.visual' 'text_encoder.*.blocks.?'
    'text_encoder.*.blocks.0.*' 'text_encoder.*.blocks.?.attn:[qkv]' 'text_encoder.*.merger*' 'text_encoder.*.rotary_emb:in.1'
    'vae.quant_conv*' '!transformer*:in.*' '!vae*:in.*' '!*.layers.*:in.*' '!*visual*:in.*' '!*model:in.*' '!*hidden_states*'
    '!*.act_fn*' '!*dropout*' '!*.to_out.1@*' '!*.net.*' '!*_proj*'

dump qwen-edit-plus/model qwen-edit-plus3/dump --prompt {shlex.quote(EDIT)} --negative-prompt ''
    --references qwen-edit-plus/second.png qwen-edit-plus3/third.png qwen-edit-plus/first.png --steps 3 --guidance 4
    --seed 45 --height 16 --width 48 --taps transformer@0 'text_encoder.*.visual' '!*visual:*'

dump qwen-edit-plus/model qwen-inner/dump --prompt {shlex.quote(EDIT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --references qwen-edit-plus/first.png --steps 2 --guidance 2.5 --seed 46 --height 16 --width 32
    --taps 'transformer@*' transformer@1:in.hidden_states 'transformer.pos_embed@1*'
    'transformer.transformer_blocks.0@1*' 'transformer.transformer_blocks.0.*@1*' 'transformer.t*@1*'
    'transformer.img_in@1*' 'transformer.norm_out*@1*' transformer.proj_out@1:in.0 text_encoder.model.language_model
    text_encoder.model.language_model.layers.0 'text_encoder.*.layers.0.self_attn:[qkv]*'
    'text_encoder.*.visual.blocks.0.attn:[qkv]*' 'transformer.transformer_blocks.0.attn@1:[qkv]*'
    'text_encoder.*.layers.0.*' 'text_encoder.*.rotary_emb*' '!*rotary_emb:in.0' '!*:k.unrotated'
    '!*.layers.0.mlp.act_fn*' '!*language_model:in.*' 'text_encoder.*.visual*' 'vae.decoder.conv_in*'
    'vae.decoder.mid_block*' vae.quant_conv '!transformer.*@1#1*' '!text_encoder*#1*' '!text_encoder.*.layers.1.*'
    '!*dropout*' '!*.to_out.1@*' '!*.conv_shortcut*' '!vae.*#1*' '!*hidden_states.[0-9]*' '!text_encoder.model:in.*'
    '!text_encoder.*.visual.blocks.1.*' '!*position_embeddings*' '!vae*mid_block*resnets.1*'
    '!vae*mid_block*resnets.0.*' '!*patch_embed.proj*' '!*txt_mlp.net*' '!*.layers.*.[qkvo]_proj'
    '!*.norm_added_[qk]*:in.0' '!*.add_[qk]_proj*' '!*.visual:in.*' '!*.visual.rotary_pos_emb*'
    '!*.visual.patch_embed:in.*' '!transformer.transformer_blocks.0.attn.norm_[qk]*:in.0' '!*.mlp.down_proj'
    '!*.mlp.net.2@*' '!*.visual.blocks.0.mlp.*' '!*language_model*.self_attn' '!*.txt_in@1' '!*.layers.0.mlp'
    '!*.attn.qkv:in.0' '!*post_attention_layernorm:in.0'

dump qwen-edit-plus/model qwen-vision/dump --prompt {shlex.quote(EDIT)} --references qwen-edit-plus/first.png
    --steps 2 --guidance 1 --seed 47 --height 16 --width 32 --taps 'text_encoder.*.visual.patch_embed*'
    'text_encoder.*.visual.blocks.0.mlp*' 'text_encoder.*.visual.blocks.0.norm2*' 'text_encoder.*.visual.blocks.0'
    '!*position_embeddings*' vision.pixel_values

dump qwen-edit-plus/model qwen-edit-float16/dump --prompt {shlex.quote(EDIT)} --references qwen-edit-plus/first.png
    --compute float16 --steps 2 --guidance 1 --seed 55 --height 16 --width 32
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.attn@0' 'transformer.*_blocks.0.*_mlp@0'
    'text_encoder.*.language_model.layers.?' 'text_encoder.*.visual.blocks.?' 'vae.decoder.mid_block' '!*:in.*'

tiny qwen-image-21/model --family qwen-image-2.1 --seed 47 --layout hub
    --heads 2 --axes-dims 2 4 6 --layers 2 --mlp-ratio 2 --text-hidden 24 --text-intermediate 32 --text-layers 2
    --text-heads 2 --text-kv-heads 1 --text-head-dim 12 --text-rope-theta 50000 --merges 150
    --vision-heads 2 --vision-head-dim 4 --vision-intermediate 12 --vision-layers 2 --vision-deepstack 0
    --vision-positions 9 --output-resolution 60 --vae-channels 4 4 8 8 8 --vae-decoder-base 6

dump qwen-image-21/model qwen-image-21/dump --prompt {shlex.quote(SHORT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 2 --guidance 2.5 --seed 47 --height 32 --width 64
    --taps 'transformer@*' 'transformer.t*@*' 'transformer.img_in@*' 'transformer.modulation*@*' 'transformer.norm_out*@*'
    'transformer.pos_embed@*' 'transformer.transformer_blocks.?@*' 'transformer.transformer_blocks.0.*@*'
    'transformer.transformer_blocks.0.attn@*:[qk]' 'text_encoder.*.layers.?' 'text_encoder.*.layers.0.*' 'text_encoder.model'
    'vae.decoder.up_blocks.[01]' 'vae.post_quant_conv' '!transformer*:in.*' '!text*:in.*' '!vae*:in.*' '!*.to_out.1@*'

dump qwen-image-21/model qwen-image-21-edit/dump --prompt {shlex.quote(EDIT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --references qwen-image-21-edit/first.png qwen-image-21-edit/transparent.png --steps 2 --guidance 2.5 --seed 48
    --height 32 --width 64
    --taps 'transformer@*' 'transformer.transformer_blocks.?@*' 'transformer.transformer_blocks.0.attn@1:[qk]*'
    'transformer.pos_embed@0*' 'text_encoder.*.layers.?' 'text_encoder.*.visual' 'text_encoder.*.blocks.?'
    'text_encoder.*.deepstack*' 'vae.encoder.*blocks.[34]' 'vae.quant_conv' '!transformer*:in.*' '!text*:in.*' '!vae*:in.*'

dump qwen-image-21/model qwen-image-21-vision/dump --prompt {shlex.quote(EDIT)}
    --references qwen-image-21-edit/first.png qwen-image-21-edit/transparent.png --steps 2 --guidance 1 --seed 51
    --height 32 --width 32
    --taps 'text_encoder.*.layers.?' 'text_encoder.*.layers.[01]:in.0' 'text_encoder.*.layers.0.*norm*'
    'text_encoder.*.layers.0.self_attn*' 'text_encoder.*.layers.0.mlp.*_proj*' 'text_encoder.*.layers.0.self_attn:[qkv]*'
    'text_encoder.*.rotary_emb*' 'text_encoder.*.visual*' 'text_encoder.*.visual.blocks.0.attn:[qkv]*'
    '!*rotary*emb:in.0' '!*.visual.blocks.1.*' '!*position_embeddings*' '!*:k.unrotated' '!*.act_fn*' '!*.self_attn.[qkv]_proj*'
    '!*:in.attention_mask' '!*:in.position_ids' '!*.patch_embed.proj*' '!*.patch_embed:in*' '!*.visual:in*' '!*cu_seqlens'

dump qwen-image-21/model qwen-image-21-float16/dump --prompt 'a red circle' --compute float16
    --steps 2 --guidance 1 --seed 49 --height 32 --width 32 --taps 'transformer@*' 'transformer.transformer_blocks.?@*'
    'text_encoder.*.layers.?' '!transformer*:in.*' '!text*:in.*'

tiny qwen-image-21-turbo/model --family qwen-image-2.1-turbo --seed 50 --kind small-activations --layout v5
    --heads 3 --axes-dims 2 2 4 --layers 2 --mlp-ratio 3 --norm-eps 2e-6 --text-hidden 20 --text-intermediate 24
    --text-layers 2 --text-heads 2 --text-kv-heads 2 --text-head-dim 10 --text-norm-eps 2e-6 --merges 150
    --vision-heads 1 --vision-head-dim 8 --vision-intermediate 12 --vision-layers 2 --vision-deepstack 1
    --vision-positions 4 --output-resolution 50 --vae-channels 4 8 8 8 8 --vae-decoder-base 4 --latent-channels 5

dump qwen-image-21-turbo/model qwen-image-21-turbo/dump --prompt '' --references qwen-image-21-edit/first.png
    --steps 3 --guidance 1 --seed 50 --height 64 --width 32
    --taps 'transformer@*' 'transformer.t*@0' 'transformer.transformer_blocks.?@*' 'transformer.transformer_blocks.1.*@1'
    'transformer.norm_out*@1' 'text_encoder.*.layers.?' 'text_encoder.*.visual' 'text_encoder.*.blocks.?' 'vae.decoder.up_blocks.[01]'
    'vae.encoder.*blocks.[34]' '!transformer*:in.*' '!text*:in.*' '!vae*:in.*' '!*.to_out.1@*'

profile qwen-edit-plus/model --modules qwen-edit-plus/modules.txt --prompt 'a red circle' --references qwen-edit-plus/first.png
    --steps 2 --height 80 --width 80 --max-sequence-length 40

dump zimage-ordinary/model zimage-step-cache/dump --prompt 'a red circle' --step-cache first-block:0.9
    --steps 12 --seed 3 --height 24 --width 40 --max-sequence-length 64 --taps 'transformer@*' '!transformer@*:in.*'

dump flux1-dev-small/model flux1-step-cache/dump --prompt 'a red circle' --step-cache first-block:0.75
    --steps 12 --guidance 3.5 --seed 3 --height 32 --width 48 --max-sequence-length 40
    --taps 'transformer@*' '!transformer@*:in.*'

dump flux2-klein-base/model flux2-step-cache/dump --prompt 'a red circle' --step-cache first-block:0.95
    --steps 12 --guidance 3.5 --seed 3 --height 24 --width 56 --max-sequence-length 44
    --taps 'transformer@*' '!transformer@*:in.*'

dump qwen-image-small/model qwen-step-cache/dump --prompt 'a red circle' --negative-prompt blurry
    --step-cache first-block:0.825 --steps 12 --guidance 3 --seed 3 --height 32 --width 48 --max-sequence-length 64
    --taps 'transformer@*' '!transformer@*:in.*'

dump zimage-ordinary/model zimage-inpaint/dump --prompt 'a red circle' --negative-prompt {shlex.quote(NEGATIVE)}
    --picture zimage-inpaint/picture.png --mask zimage-inpaint/mask.png --image-strength 0.3
    --steps 4 --guidance 2 --seed 61 --height 24 --width 40 --max-sequence-length 64 --taps 'transformer@*'

dump zimage-ordinary/model zimage-inpaint-crop/dump --prompt 'a red circle'
    --picture zimage-inpaint-crop/picture.png --mask zimage-inpaint-crop/mask.png --mask-crop 3 --image-strength 0
    --steps 2 --seed 62 --height 40 --width 32 --max-sequence-length 64 --taps 'transformer@1*'

dump flux1-dev-small/model flux1-inpaint/dump --prompt 'a red circle'
    --picture flux1-inpaint/picture.png --mask flux1-inpaint/mask.png --image-strength 0.5
    --steps 5 --guidance 2.5 --seed 63 --height 32 --width 48 --max-sequence-length 40 --taps 'transformer@*'

dump flux1-schnell-ordinary/model flux1-inpaint-crop/dump --prompt 'a red circle'
    --picture flux1-inpaint-crop/picture.png --mask flux1-inpaint-crop/mask.png --mask-crop 5 --image-strength 0
    --steps 3 --seed 64 --height 24 --width 40 --max-sequence-length 20 --taps 'transformer@1*'

dump flux1-kontext/model flux1-kontext-inpaint/dump --prompt {shlex.quote(EDIT)}
    --picture flux1-kontext-inpaint/picture.png --mask flux1-kontext-inpaint/mask.png --image-strength 0.5
    --references flux1-kontext-inpaint/second.png
    --steps 4 --guidance 2.5 --seed 65 --height 56 --width 40 --max-sequence-length 24 --taps 'transformer@*' '!*:in.encoder_hidden_states' '!*_ids'

dump flux1-kontext-small/model flux1-kontext-inpaint-crop/dump --prompt {shlex.quote(EDIT)}
    --picture flux1-kontext-inpaint-crop/picture.png --mask flux1-kontext-inpaint-crop/mask.png --mask-crop 2
    --image-strength 0 --steps 2 --guidance 2.5 --seed 66 --height 48 --width 48 --max-sequence-length 24
    --taps 'transformer@1*' '!*:in.encoder_hidden_states' '!*_ids'

dump flux2-klein-base/model flux2-inpaint/dump --prompt 'a red circle'
    --picture flux2-inpaint/picture.png --mask flux2-inpaint/mask.png --image-strength 0.4
    --steps 3 --guidance 3.5 --seed 67 --height 32 --width 56 --max-sequence-length 44 --taps 'transformer@*' '!*:in.encoder_hidden_states' '!*_ids'

dump flux2-klein/model flux2-inpaint-crop/dump --prompt {shlex.quote(EDIT)}
    --picture flux2-inpaint-crop/picture.png --mask flux2-inpaint-crop/mask.png --mask-crop 4 --image-strength 0
    --references flux2-inpaint-crop/first.png --steps 2 --guidance 1 --seed 68 --height 48 --width 80
    --max-sequence-length 44 --taps 'transformer@1*' '!*:in.encoder_hidden_states' '!*_ids'

dump qwen-image-ordinary/model qwen-inpaint/dump --prompt 'a red circle' --negative-prompt {shlex.quote(NEGATIVE)}
    --picture qwen-inpaint/picture.png --mask qwen-inpaint/mask.png --image-strength 0.3
    --steps 4 --guidance 2.5 --seed 69 --height 32 --width 48 --max-sequence-length 64 --taps 'transformer@*'

dump qwen-image-small/model qwen-inpaint-crop/dump --prompt 'a red circle'
    --picture qwen-inpaint-crop/picture.png --mask qwen-inpaint-crop/mask.png --mask-crop 0 --image-strength 0.7
    --steps 4 --seed 70 --height 40 --width 24 --max-sequence-length 64 --taps 'transformer@3*'

dump qwen-edit/model qwen-edit-inpaint/dump --prompt {shlex.quote(EDIT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --picture qwen-edit-inpaint/picture.png --mask qwen-edit-inpaint/mask.png --image-strength 0.3
    --steps 4 --guidance 2.5 --seed 71 --height 32 --width 64 --taps 'transformer@*' '!*:in.encoder_hidden_states' '!*_ids'

dump qwen-edit/model qwen-edit-inpaint-crop/dump --prompt {shlex.quote(EDIT)}
    --picture qwen-edit-inpaint-crop/picture.png --mask qwen-edit-inpaint-crop/mask.png --mask-crop 6 --image-strength 0
    --steps 2 --guidance 1 --seed 72 --height 64 --width 32 --taps 'transformer@1*' '!*:in.encoder_hidden_states' '!*_ids'

tiny qwen-layered/model --family qwen-image-layered --seed 91 --layout v5
    --heads 2 --axes-dims 2 2 4 --layers 2 --text-intermediate 24 --text-layers 2 --text-heads 2 --text-kv-heads 1
    --text-mrope-section 1 2 2 --merges 330 --vision-heads 2 --vision-head-dim 4 --vision-intermediate 12 --vision-layers 2
    --vision-full-layers 1 --vision-patch 4 --vision-window 16 --min-pixels 1200 --max-pixels 1500
    --resolution 40 --vae-channels 8 8 8 8

dump qwen-layered/model qwen-layered/dump --prompt {shlex.quote(SHORT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --references qwen-layered/transparent.png --steps 2 --guidance 2.5 --seed 91 --height 64 --width 32
    --taps 'transformer@*' 'transformer.*_blocks.?@*' 'transformer.time*@*' 'transformer.pos_embed@0' 'transformer.norm_out*@1'
    'text_encoder.*.layers.?' 'vae.encoder.mid_block' 'vae.decoder.mid_block' 'vae.decoder.up_blocks.?' '!*:in.*'

caption qwen-layered/model qwen-layered/caption.json --picture qwen-layered/transparent.png

tiny qwen-layered-small/model --family qwen-image-layered --seed 92 --kind small-activations --layout hub
    --heads 2 --axes-dims 4 4 2 --layers 1 --text-intermediate 28 --text-layers 2 --text-heads 2 --text-kv-heads 1
    --text-mrope-section 1 1 2 --merges 330 --vision-heads 2 --vision-head-dim 4 --vision-intermediate 20
    --vision-layers 2 --vision-full-layers 1 --vision-window 56 --resolution 50 --image-layers 3 --vae-channels 6 6 6 6

dump qwen-layered-small/model qwen-layered-small/dump --prompt {shlex.quote(SHORT)}
    --references qwen-layered-small/first.png --steps 3 --guidance 1 --seed 92 --height 48 --width 80 --max-sequence-length 24
    --taps 'transformer@*' 'transformer.*_blocks.0.*norm*@1' 'transformer.norm_out*@1' 'text_encoder.*.layers.1.*norm*'
    'vae.encoder.down_blocks.[1-9]' 'vae.decoder.up_blocks.[01].*.norm?' '!*:in.*'

dump qwen-layered/model qwen-layered-float16/dump --prompt 'a red circle' --compute float16
    --references qwen-layered/transparent.png --steps 2 --guidance 1 --seed 94 --height 32 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'text_encoder.*.layers.?' 'vae.decoder.mid_block' '!*:in.*'

tiny krea-2/model --family krea-2 --seed 81 --layout hub --shards 2
    --heads 4 --kv-heads 2 --axes-dims 2 4 4 --layers 2 --intermediate 36 --time-dim 24
    --text-hidden 24 --text-intermediate 28 --text-layers 4 --text-heads 3 --text-kv-heads 1 --text-head-dim 8
    --merges 330 --vision-heads 1 --vision-intermediate 8 --vision-positions 4
    --select-layers 1 2 3 --fusion-intermediate 28 --layerwise-blocks 2 --vae-channels 6 6 6 6

dump krea-2/model krea-2/dump --prompt {shlex.quote(SHORT)}
    --steps 2 --guidance 0 --seed 81 --height 32 --width 48 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.text_fusion.*blocks.0@0' 'transformer.text_fusion.projector@0'
    'transformer.text_fusion@0' 'transformer.text_fusion.*blocks.0.*@0' 'transformer.t*@0' 'transformer.*_blocks.?@*'
    'transformer.transformer_blocks.0.*@0' 'transformer.transformer_blocks.1.attn@1:[qk]*'
    'transformer.img_in@0' 'transformer.final_layer*@0' 'text_encoder.language_model.layers.?'
    'text_encoder.language_model.layers.0.*' 'vae.decoder.mid_block' '!*:in.*' '!*.act_fn*' '!*layerwise*.attn.*'
    '!*layerwise*.ff.*'

dump krea-2/model krea-2-inner/dump --prompt 'a red circle'
    --steps 2 --guidance 0 --seed 84 --height 32 --width 48 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.transformer_blocks.0@0*' 'transformer.transformer_blocks.0.*@0*'
    'transformer.transformer_blocks.0.attn@0:[qkv]*' 'transformer.text_fusion*@0*' 'transformer.t*@0*'
    'transformer.img_in@0*' 'transformer.final_layer*@0*' 'transformer.rotary_emb@0*'
    text_encoder.language_model.layers.0 text_encoder.language_model.layers.1 text_encoder.language_model.layers.3
    '!*_blocks.1.*' '!transformer@1:in.*' '!*layerwise_blocks.0.norm*' '!*layerwise_blocks.0.attn.*' '!*layerwise_blocks.0.ff.*'

dump krea-2/model krea-2-float16/dump --prompt 'a red circle' --compute float16
    --steps 1 --guidance 0 --seed 83 --height 32 --width 48 --max-sequence-length 64
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.attn@0' 'transformer.*_blocks.0.ff@0'
    'text_encoder.*.layers.?' 'vae.decoder.mid_block' '!*:in.*'

profile krea-2/model --modules krea-2/modules.txt --prompt 'a red circle'
    --steps 2 --height 48 --width 48 --max-sequence-length 40

tiny krea-2-raw/model --family krea-2-raw --seed 82 --kind small-activations --layout v5
    --heads 3 --kv-heads 1 --axes-dims 2 4 2 --layers 2 --intermediate 28 --time-dim 20 --rope-theta 500 --norm-eps 2e-6
    --text-hidden 16 --text-intermediate 24 --text-layers 3 --text-heads 4 --text-kv-heads 2 --text-head-dim 8
    --text-rope-theta 20000 --text-norm-eps 2e-6 --merges 340 --vision-heads 1 --vision-intermediate 8
    --vision-positions 4 --select-layers 1 2 --fusion-heads 2 --fusion-kv-heads 1 --fusion-intermediate 20
    --refiner-blocks 2 --vae-channels 6 12 6 --latents-mean 0.9653 -0.2921 -0.9113 0.5517 0.2503
    --latents-std 0.7083 2.6052 1.1253 2.8 0.9 --max-shift 1.3

dump krea-2-raw/model krea-2-raw/dump --prompt {shlex.quote(SHORT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 3 --guidance 2.5 --seed 82 --height 40 --width 24 --max-sequence-length 30
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.*_blocks.0.*norm*@0*' 'transformer.txt_in*@0'
    'transformer.t*_fusion@*' 'transformer.final_layer*@0' 'text_encoder.language_model.layers.?'
    'text_encoder.language_model.layers.1.*norm' 'vae.decoder.conv_in' 'vae.decoder.mid_block'
    'vae.decoder.up_blocks.0.*.norm?' '!*:in.*'

tiny anima/model --family anima --seed 101 --layout hub --shards 2
    --heads 2 --head-dim 20 --layers 2 --mlp-ratio 3 --text-dim 20 --adaln-dim 6 --conditioner-heads 2 --conditioner-dim 16
    --conditioner-layers 2 --conditioner-mlp-ratio 2 --min-length 30 --t5-pieces 150
    --text-hidden 24 --text-intermediate 36 --text-layers 2 --text-heads 3 --text-kv-heads 1 --text-head-dim 8 --merges 150
    --vae-channels 6 6 6 6

dump anima/model anima/dump --prompt {shlex.quote(SHORT)}
    --steps 2 --guidance 3.5 --seed 101 --height 32 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.*@0' 'transformer.*_blocks.1.attn?@1:[qk]*'
    'transformer.time_embed*@0*' 'transformer.patch_embed*@0*' 'transformer.rope@0*' 'transformer.norm_out*@0*'
    'text_encoder.layers.?' 'text_encoder.norm' 'text_conditioner*' 'vae.decoder.mid_block' '!*:in.*' '!*:weights' '!*:entropy'

dump anima/model anima-image/dump --prompt 'a red circle' --picture anima-image/picture.png --image-strength 0.4
    --steps 3 --guidance 1 --seed 103 --height 48 --width 32 --taps 'transformer@*' 'text_conditioner' 'vae.encoder' '!*:in.*'

dump anima/model anima-float16/dump --prompt 'a red circle' --compute float16
    --steps 1 --guidance 1 --seed 104 --height 32 --width 48
    --taps 'transformer@*' 'transformer.*_blocks.?@0' 'transformer.*_blocks.0.attn?@0' 'transformer.*_blocks.0.ff@0'
    'text_encoder.layers.?' 'text_conditioner.blocks.?' 'text_conditioner' 'vae.decoder.mid_block' '!*:in.*'

tiny anima-small/model --family anima --seed 102 --kind small-activations --layout v5
    --heads 3 --head-dim 18 --layers 2 --mlp-ratio 2 --text-dim 24 --adaln-dim 5 --rope-scale 2 1 3 --conditioner-heads 3
    --conditioner-dim 24 --conditioner-layers 1 --min-length 12 --t5-pieces 200
    --text-hidden 20 --text-intermediate 28 --text-layers 3 --text-heads 4 --text-kv-heads 2 --text-head-dim 6
    --text-rope-theta 20000 --text-norm-eps 2e-6 --merges 200 --vae-channels 6 12 6
    --latents-mean 0.9653 -0.2921 -0.9113 0.5517 0.2503 --latents-std 0.7083 2.6052 1.1253 2.8 0.9 --shift 1

dump anima-small/model anima-small/dump --prompt {shlex.quote(PROMPT)} --negative-prompt {shlex.quote(NEGATIVE)}
    --steps 3 --guidance 2.5 --seed 102 --height 40 --width 24 --max-sequence-length 18
    --taps 'transformer@*' 'transformer.*_blocks.?@0*' 'transformer.*_blocks.0.*norm*@0*' 'transformer.time_embed*@0'
    'transformer.norm_out*@0' 'text_encoder.layers.?' 'text_encoder.layers.1.*norm' 'text_encoder' 'text_conditioner.blocks.0*'
    'text_conditioner' 'vae.decoder.conv_in' 'vae.decoder.mid_block' 'vae.decoder.up_blocks.0.*.norm?' '!*:in.*' '!*:weights' '!*:entropy'

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
    "flux1-dev-image/picture.png": (90, 71),
    "flux1-kontext/first.png": (61, 40),
    "flux1-kontext-small/first.png": (50, 75),
    "flux1-fill/picture.png": (61, 45),
    "flux1-fill-small/picture.png": (53, 89),
    "flux2-klein-edit2/first.png": (70, 67),
    "flux2-klein-edit2/second.png": (83, 64),
    "flux2-klein-kv/first.png": (75, 66),
    "qwen-edit/first.png": (61, 40),
    "qwen-edit-plus/first.png": (75, 50),
    "qwen-edit-plus/second.png": (33, 97),
    "qwen-edit-plus3/third.png": (50, 52),
    "qwen-layered/transparent.png": (40, 61),
    "qwen-layered-small/first.png": (75, 50),
    "qwen-image-21-edit/first.png": (75, 50),
    "qwen-image-21-edit/transparent.png": (40, 61),
    "anima-image/picture.png": (61, 90),
    "vae-512/encode/picture.png": (512, 512),
    "zimage-inpaint/picture.png": (90, 71),
    "zimage-inpaint-crop/picture.png": (75, 63),
    "flux1-inpaint/picture.png": (67, 50),
    "flux1-inpaint-crop/picture.png": (85, 61),
    "flux1-kontext-inpaint/picture.png": (44, 61),
    "flux1-kontext-inpaint/second.png": (66, 41),
    "flux1-kontext-inpaint-crop/picture.png": (48, 48),
    "flux2-inpaint/picture.png": (75, 43),
    "flux2-inpaint-crop/picture.png": (83, 51),
    "flux2-inpaint-crop/first.png": (70, 67),
    "qwen-inpaint/picture.png": (61, 40),
    "qwen-inpaint-crop/picture.png": (53, 75),
    "qwen-edit-inpaint/picture.png": (61, 40),
    "qwen-edit-inpaint-crop/picture.png": (32, 64),
}


def make(root: Path, run):
    """Makes everything under root again, where run runs a command; `git diff` then shows the changes."""
    root.mkdir(parents=True, exist_ok=True)
    before = os.getcwd()
    os.chdir(root)
    try:
        for path, size in PICTURES.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            image = draw(*size)
            if path.endswith("/transparent.png"):
                image.putalpha(draw_mask(*size))
            image.save(path)
            if ("inpaint" in path or "fill" in path) and path.endswith("/picture.png"):
                draw_mask(*size).save(Path(path).with_name("mask.png"))
        for command in COMMANDS.strip().split("\n\n"):
            print(" ".join(shlex.split(command)[:3]), file=sys.stderr)
            run(limited(shlex.split(command)))
    finally:
        os.chdir(before)


def limited(command: list[str]) -> list[str]:
    """A command that writes files of at most 1 MB."""
    return command + ["--max-memory", "950000"] if command[0] in ("dump", "encode", "decode") else command


def draw(width: int, height: int) -> Image.Image:
    """Returns an image with slopes, hard edges, saturated areas and texture, different in each channel."""
    y, x = np.mgrid[0:height, 0:width]
    u, v = x / max(width, height), y / max(width, height)
    levels = np.stack([u, 1 - v, (u + v) / 2], -1)
    levels[(u - 0.4) ** 2 + (v - 0.3) ** 2 < 0.05] = 0.95, 0.1, 0.0
    # Without texture all tokens of an area are alike, and attention over them magnifies every rounding error.
    cells = torch.randn(height // 4 + 1, width // 4 + 1, 3, generator=torch.Generator().manual_seed(1)).numpy()
    levels = np.clip(levels + 0.1 * cells[y // 4, x // 4], 0, 1)
    return Image.fromarray(np.round(levels * 255).astype(np.uint8))


def draw_mask(width: int, height: int, left: float = 0.38, top: float = 0.41) -> Image.Image:
    """Returns a mask of a tilted ellipse and a small square, with borders of grey. left and top, from 0 to 1, are the
    ellipse's centre."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    u, v = x / width - left, y / height - top
    ellipse = (u + v) ** 2 / 0.2 + (u - v) ** 2 / 0.08
    square = np.maximum(abs(x - 0.78 * width), abs(y - 0.3 * height)) / (0.09 * min(width, height))
    white = np.clip(1.5 + 4 * (1 - np.minimum(ellipse, square)), 0, 1)
    return Image.fromarray(np.round(white * 255).astype(np.uint8))

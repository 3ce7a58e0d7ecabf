"""The shapes model: its parts, and their forward passes for whole batches.

The parts are the classes that diffusers' ZImagePipeline uses. Its own forward
pass works through Python lists, one sample at a time, over captions of any
length; training has one size of everything (256 image tokens and 32 caption
tokens), so the functions here run the same modules on plain batches.
check_against_diffusers() holds the two together.
"""

import json
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

import scenes

LATENT, TOKENS, CAPTION = 32, 256, 32  # latent side, image tokens, caption tokens
LATENT_CHANNELS = 8

PRETOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)


def chat(prompt):
    """The prompt as ZImagePipeline hands it to the tokenizer."""
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def make_tokenizer(folder, seed=1):
    """Trains a byte-level BPE of Qwen2's kind on prompts and saves it."""
    import numpy as np

    words = random.Random(seed)
    some = scenes.sample(np.random.default_rng(seed), 20000)
    corpus = ["user\n", "assistant\n", "system\n"] * 100
    corpus += [scenes.phrase(words, scenes.describe(some, i)) for i in range(20000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=1024,
            min_frequency=5,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "padding_side": "right",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def make_vae(tiny=False):
    channels = (8, 8, 16, 16) if tiny else (32, 48, 96, 128)
    return AutoencoderKL(
        block_out_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=scenes.SIZE,
        scaling_factor=1.0,
        shift_factor=0.0,
        force_upcast=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def make_text_encoder(vocabulary, tiny=False):
    width = 32 if tiny else 128
    return Qwen3Model(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=4,  # the pipeline reads the last but one's output
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=width // 4,
            max_position_embeddings=1024,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=vocabulary - 1,
            pad_token_id=vocabulary - 3,
        )
    )


def make_transformer(tiny=False):
    return ZImageTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        dim=48 if tiny else 240,
        n_layers=2 if tiny else 6,
        n_refiner_layers=1,
        n_heads=3 if tiny else 6,
        n_kv_heads=3 if tiny else 6,
        cap_feat_dim=32 if tiny else 128,
        axes_dims=[4, 6, 6] if tiny else [8, 16, 16],
        axes_lens=[1024, 512, 512],
    )


def start(transformer):
    """Starts every block near the identity, so that depth costs no warm-up."""
    for name, p in transformer.named_parameters():
        if name.endswith("pad_token"):
            torch.nn.init.normal_(p, std=0.02)
        elif "final_layer" in name and "linear" in name:
            torch.nn.init.zeros_(p)
        elif "adaLN_modulation" in name:
            torch.nn.init.zeros_(p)
            if name.endswith("bias") and "final_layer" not in name:
                d = p.numel() // 4  # scale, gate, scale, gate: small gates
                p.data[d : 2 * d] = p.data[3 * d :] = 0.2


# Text encoder


def _rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def _norm(norm, x):
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm.weight


def encode_text(encoder, ids):
    """hidden_states[-2] of a Qwen3Model for ids [n, tokens]. Attention is
    causal, so padding on the right changes no real token."""
    config = encoder.config
    x = encoder.embed_tokens(ids)
    n, length = ids.shape
    d = config.head_dim
    theta = config.rope_parameters["rope_theta"]
    angle = torch.arange(length, device=ids.device).float()[:, None] / theta ** (
        torch.arange(0, d, 2, device=ids.device).float() / d
    )
    angle = torch.cat((angle, angle), -1)
    cos, sin = angle.cos(), angle.sin()
    for layer in encoder.layers[:-1]:
        attention = layer.self_attn
        h = _norm(layer.input_layernorm, x)
        q = _norm(attention.q_norm, attention.q_proj(h).view(n, length, -1, d)).transpose(1, 2)
        k = _norm(attention.k_norm, attention.k_proj(h).view(n, length, -1, d)).transpose(1, 2)
        v = attention.v_proj(h).view(n, length, -1, d).transpose(1, 2)
        q = (q * cos + _rotate_half(q) * sin).to(v.dtype)
        k = (k * cos + _rotate_half(k) * sin).to(v.dtype)
        groups = config.num_attention_heads // config.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attention.o_proj(h.transpose(1, 2).reshape(n, length, -1))
        h = _norm(layer.post_attention_layernorm, x)
        mlp = layer.mlp
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))
    return x


# Transformer


def rotations(transformer, device):
    """Cosines and sines [1, tokens, 1, head_dim / 2] of the image's tokens and
    the caption's, at the places ZImageTransformer2DModel gives them."""
    side = LATENT // 2
    rows = torch.arange(TOKENS) // side
    columns = torch.arange(TOKENS) % side
    image = torch.stack([torch.full((TOKENS,), CAPTION + 1), rows, columns], -1)
    caption = torch.zeros(CAPTION, 3, dtype=torch.long)
    caption[:, 0] = torch.arange(1, CAPTION + 1)
    table = transformer.rope_embedder.precompute_freqs_cis(
        transformer.axes_dims, transformer.axes_lens, theta=transformer.rope_theta
    )

    def look_up(ids):
        turn = torch.cat([table[i][ids[:, i]] for i in range(3)], -1)[None, :, None]
        return turn.real.contiguous().to(device), turn.imag.contiguous().to(device)

    return look_up(image), look_up(caption)


def _rotate(x, turn):
    cos, sin = turn
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def _block(block, x, turn, adaln=None):
    attention, mlp = block.attention, block.feed_forward
    n, length, _ = x.shape
    scale1 = gate1 = scale2 = gate2 = 1.0
    if adaln is not None:
        scale1, gate1, scale2, gate2 = block.adaLN_modulation(adaln)[:, None].chunk(4, -1)
        scale1, scale2, gate1, gate2 = 1 + scale1, 1 + scale2, gate1.tanh(), gate2.tanh()
    h = _norm(block.attention_norm1, x) * scale1
    v = attention.to_v(h).view(n, length, attention.heads, -1)
    q = _norm(attention.norm_q, attention.to_q(h).view_as(v))
    k = _norm(attention.norm_k, attention.to_k(h).view_as(v))
    q, k = _rotate(q, turn).to(v.dtype), _rotate(k, turn).to(v.dtype)
    h = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    h = attention.to_out[0](h.transpose(1, 2).reshape(n, length, -1))
    x = (x + gate1 * _norm(block.attention_norm2, h)).to(x.dtype)
    h = _norm(block.ffn_norm1, x) * scale2
    h = mlp.w2(F.silu(mlp.w1(h)) * mlp.w3(h))
    return (x + gate2 * _norm(block.ffn_norm2, h)).to(x.dtype)


def denoise(transformer, latents, t, text, lengths, turns, tap=None, run=_block):
    """The transformer's output for latents [n, 8, 32, 32], times t [n] (1 is a
    clean picture) and text features [n, 32, width] of which lengths [n] count.
    The output is the clean latents less the noise. With tap, also the image
    tokens after that many layers. run is _block, perhaps compiled."""
    n, channels, height, width = latents.shape
    image_turn, caption_turn = turns
    adaln = transformer.t_embedder(t * transformer.t_scale).to(latents.dtype)
    x = latents.view(n, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(n, TOKENS, -1)
    x = transformer.all_x_embedder["2-1"](x)
    for block in transformer.noise_refiner:
        x = run(block, x, image_turn, adaln)

    norm, linear = transformer.cap_embedder
    caption = linear(_norm(norm, text))
    real = torch.arange(CAPTION, device=latents.device)[None] < lengths[:, None]
    caption = torch.where(real[..., None], caption, transformer.cap_pad_token.to(caption.dtype))
    for block in transformer.context_refiner:
        caption = run(block, caption, caption_turn)

    turn = tuple(torch.cat(pair, 1) for pair in zip(image_turn, caption_turn))
    x = torch.cat((x, caption), 1)
    tapped = None
    for i, block in enumerate(transformer.layers):
        x = run(block, x, turn, adaln)
        if i + 1 == tap:
            tapped = x[:, :TOKENS]
    final = transformer.all_final_layer["2-1"]
    x = final(x[:, :TOKENS], adaln)
    x = x.view(n, height // 2, width // 2, 2, 2, channels).permute(0, 5, 1, 3, 2, 4).reshape(latents.shape)
    return x if tap is None else (x, tapped)


def schedule(steps, shift):
    """Noise levels of FlowMatchEulerDiscreteScheduler as ZImagePipeline asks
    for them: steps + 1 values from 1 to 0."""
    sigmas = torch.linspace(1.0, 1 / steps, steps)
    return torch.cat((shift * sigmas / (1 + (shift - 1) * sigmas), torch.zeros(1)))


@torch.no_grad()
def generate(transformer, encoder, ids, lengths, empty, noise, turns, steps, guidance, shift):
    """Latents for token ids [n, 32]; empty is (ids, length) of the prompt ""."""
    n = len(ids)
    text = encode_text(encoder, torch.cat((ids, empty[0].expand(n, -1))))
    lengths = torch.cat((lengths, empty[1].expand(n)))
    x, sigmas = noise, schedule(steps, shift)
    for i in range(steps):
        t = (1 - sigmas[i]).to(x.device).expand(2 * n)
        positive, negative = denoise(transformer, x.repeat(2, 1, 1, 1), t, text, lengths, turns).float().chunk(2)
        x = x - (sigmas[i + 1] - sigmas[i]) * (positive + guidance * (positive - negative))
    return x


@torch.no_grad()
def check_against_diffusers(transformer, encoder, device):
    """Fails unless the batched passes here equal diffusers' own in fp32."""
    g = torch.Generator().manual_seed(0)
    vocabulary = encoder.config.vocab_size
    ids = torch.randint(0, vocabulary, (3, CAPTION), generator=g).to(device)
    lengths = torch.tensor([9, 20, 32], device=device)
    mask = torch.arange(CAPTION, device=device)[None] < lengths[:, None]
    reference = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-2]
    text = encode_text(encoder, ids)
    latents = torch.randn(3, LATENT_CHANNELS, LATENT, LATENT, generator=g).to(device)
    t = torch.tensor([0.0, 0.4, 0.9], device=device)
    expected = transformer(
        [z[:, None] for z in latents], t, [r[:k] for r, k in zip(reference, lengths.tolist())], return_dict=False
    )[0]
    expected = torch.stack([e[:, 0] for e in expected])
    found = denoise(transformer, latents, t, text, lengths, rotations(transformer, device))
    torch.testing.assert_close(text[mask], reference[mask], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def save_pipeline(folder, vae, text_encoder, transformer, tokenizer_folder, shift):
    """Saves all parts in bf16 as a ZImagePipeline folder."""
    pipeline = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift),
        vae=vae.to(torch.bfloat16),
        text_encoder=text_encoder.to(torch.bfloat16),
        tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder),
        transformer=transformer.to(torch.bfloat16),
    )
    pipeline.save_pretrained(folder)

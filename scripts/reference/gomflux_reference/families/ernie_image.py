"""ERNIE-Image: a transformer of one stream of image and text, a Ministral 3, FLUX.2's autoencoder."""

import random
from contextlib import contextmanager
from unittest import mock

import diffusers
import torch

from .. import tokenizer
from . import Family, autoencoders, parts, text_encoders


def transformer(d: dict) -> diffusers.ErnieImageTransformer2DModel:
    return diffusers.ErnieImageTransformer2DModel(
        hidden_size=d["heads"] * sum(d["axes_dims"]),
        num_attention_heads=d["heads"],
        num_layers=d["layers"],
        ffn_hidden_size=d["intermediate"],
        in_channels=4 * d["latent_channels"],
        out_channels=4 * d["latent_channels"],
        text_in_dim=d["text_hidden"],
        rope_theta=d["rope_theta"],
        rope_axes_dim=list(d["axes_dims"]),
        eps=d["norm_eps"],
    )


def build(d: dict) -> dict:
    tok = tokenizer.train_mistral(d["merges"], padding_side=d["padding_side"])
    return {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=d["shift"]),
        "text_encoder": text_encoders.mistral3(d, tok).model,
        "tokenizer": tok,
    }


def draw(r: random.Random) -> dict:
    attention = parts.draw_attention(r)
    while not parts.rounds_sinusoids(attention["heads"] * sum(attention["axes_dims"])):
        attention = parts.draw_attention(r)
    return dict(
        **attention,
        intermediate=4 * r.randint(5, 20),
        rope_theta=r.randint(50, 1000),
        norm_eps=r.choice((1e-6, 1e-5, 3e-5)),
        **text_encoders.draw_ministral3(r, r.randint(2, 5)),
        **autoencoders.draw_kl_flux2(r),
        shift=r.choice((1.0, 3.0, 4.0)),
        padding_side=r.choice(("left", "right")),
    )


def latents(pipe, height: int, width: int) -> tuple:
    scale = pipe.vae_scale_factor
    return 1, pipe.transformer.config.in_channels, height // scale, width // scale


@contextmanager
def running(pipe):
    """Calls the transformer for each prompt by itself, without padding, which no other token sees: see
    selftest.one_by_one."""
    call = torch.nn.Module.__call__

    def one_by_one(self, hidden_states, timestep, text_bth, text_lens, **kwargs):
        rows = [
            call(
                self,
                hidden_states=hidden_states[i : i + 1],
                timestep=timestep[i : i + 1],
                text_bth=text_bth[i : i + 1, : text_lens[i]],
                text_lens=text_lens[i : i + 1],
                **kwargs,
            )[0]
            for i in reversed(range(len(text_lens)))  # the negative prompt is the first row
        ]
        return (torch.cat(rows[::-1]),)

    with mock.patch.object(type(pipe.transformer), "__call__", one_by_one):
        yield


FAMILY = Family(
    pipeline=diffusers.ErnieImagePipeline,
    dims=dict(
        heads=3, axes_dims=(4, 6, 6), layers=2, intermediate=56, rope_theta=256, norm_eps=1e-6,
        **text_encoders.MINISTRAL, **autoencoders.KL_FLUX2, shift=4.0, padding_side="left",
    ),
    full=dict(
        heads=32, axes_dims=(32, 48, 48), layers=36, intermediate=12288, rope_theta=256,
        **text_encoders.MINISTRAL_3B, **autoencoders.KL_FLUX2_32,
    ),
    build=build,
    transformer=transformer,
    autoencoder=autoencoders.kl_flux2,
    draw=draw,
    latents=latents,
    arguments=lambda pipe, guidance, negative: {
        "guidance_scale": guidance, "negative_prompt": negative or "", "use_pe": False
    },
    prompts=lambda args, kwargs: [{"embeds": kwargs["text_bth"][0]}],
    encodings={"encode_prompt": lambda result: {"embeds": result[0]}},
    embeddings=lambda pipe: (pipe.text_encoder.config.text_config.num_hidden_layers - 1,),
    guidance=lambda r: 1.0 if r.random() < 0.2 else round(r.uniform(1.5, 5), 2),
    negative_prompt=True,
    running=running,
    pack=lambda pipe, x: x.to(pipe.transformer.dtype),  # the pipeline takes them as they are
    unrotated={"transformer": ("norm_q", "norm_k")},
    gains={
        r"^(transformer|text_encoder)\..*\.(to_[qk]|[qk]_proj)\.weight$": 1.5,
        r"^transformer\.(adaLN_modulation\.1|final_norm\.linear)\.weight$": 0.7,
    },
    small=(
        r"^transformer\.(x_embedder\.proj|text_proj)\.",
        r"^transformer\..*\.(to_[qk]|to_out\.0|linear_fc2)\.weight$",
        text_encoders.SMALL_QWEN3,
        *autoencoders.SMALL_KL,
    ),
)  # fmt: skip

FAMILIES = {"ernie-image": FAMILY}

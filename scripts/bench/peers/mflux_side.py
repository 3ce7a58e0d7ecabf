"""The transformers and autoencoders of mflux, with random weights, run as mflux runs them or compiled by mx.compile.

mflux itself compiles the steps of Z-Image and FLUX.2 (on most machines), and no others. Three things differ from mflux,
and are faster: inputs are of the weights' dtype, although mflux's noise for FLUX.1 and Qwen-Image is float32, which makes
their steps float32; images are decoded at once, not in strips; and Qwen-Image has a second pass only if that is measured.
FLUX.1 in mflux computes in float32 even so, from the first rotary embedding on.
"""

import functools
import math
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .cases import LATENT, PIXELS, Case, Unsupported, versions

PACKAGES = ("mflux", "mlx")
GROUP = 64  # values that share a scale in quantized weights, as in mflux


def prepare(case: Case, part: str, compiled: bool, device: str | None) -> dict:
    """Returns the call to time and finish for timing.measure, and what is to be reported."""
    from mflux.models.common.config.model_config import ModelConfig

    if case.inpaint or case.spec.fills:
        raise Unsupported("mflux's inpainting is not compared")
    if compiled and part == "step" and case.family == "qwen-image-2.1":
        raise Unsupported("mflux compiles this step itself")
    if device or not mx.is_available(mx.gpu):
        mx.set_default_device(mx.cpu if device in ("cpu", None) else mx.gpu)
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    dtype = ModelConfig.precision = getattr(mx, case.dtype)
    mx.random.seed(0)
    model, predicate = transformer(case) if part == "step" else (autoencoder(case), None)
    parameters = draw_weights(model, dtype)
    if case.quantize and part == "step":
        quantize(model, predicate, case.quantize)
    function, inputs = (steps(case, model) if part == "step" else decoding(case, model))(dtype)
    mx.eval(model.parameters(), inputs)
    mx.clear_cache()
    if compiled:
        function = mx.compile(function)
    return {
        "call": functools.partial(evaluate if part == "step" else to_bytes, function, inputs),
        "finish": lambda: None,  # what is called evaluates
        "stamp": None,
        "peak": mx.get_peak_memory,
        "device": "cpu" if on_cpu else mx.device_info().get("device_name", "gpu"),
        "parameters": parameters,
        "versions": versions(PACKAGES),
    }


def draw_weights(model: nn.Module, dtype) -> int:
    """Replaces weights, which are not evaluated yet, by random ones of a dtype. Returns their number."""
    count = 0

    def draw(p: mx.array) -> mx.array:
        nonlocal count
        count += p.size
        if p.ndim == 1:
            return mx.random.uniform(0.9, 1.1, p.shape, dtype)  # of norms, and biases, too
        return mx.random.normal(p.shape, dtype, scale=1 / math.sqrt(p.size / p.shape[0]))

    model.apply(draw)
    mx.eval(model.parameters())
    return count


def quantize(model: nn.Module, predicate, bits: int):
    def chosen(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % GROUP:
            return False
        return predicate(path, module, bits) if predicate else True

    nn.quantize(model, group_size=GROUP, bits=bits, class_predicate=chosen)


def transformer(case: Case):
    """Makes a transformer, and returns what mflux chooses the bits of its layers by, if there is such a function."""
    from mflux.models.common.config.model_config import ModelConfig

    if case.family in ("z-image", "z-image-small"):
        from mflux.models.z_image.model.z_image_transformer.transformer import ZImageTransformer

        d = {"dim": 128, "heads": 1, "layers": 1} if case.tiny else case.spec.dims
        names = {"dim": "dim", "heads": "n_heads", "layers": "n_layers"}
        return ZImageTransformer(**{names[k]: v for k, v in d.items()}), None
    if case.family in ("flux2-klein-4b", "flux2-klein-9b"):
        from mflux.models.flux2.model.flux2_transformer.transformer import Flux2Transformer

        config = ModelConfig.flux2_klein_9b() if case.family.endswith("9b") else ModelConfig.flux2_klein_4b()
        small = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 64}
        return Flux2Transformer(**config.transformer_overrides | (small if case.tiny else {})), None
    if case.family == "krea-2":
        from mflux.models.krea2.model.krea2_transformer.transformer import Krea2Transformer

        small = {"features": 128, "heads": 2, "kvheads": 1, "layers": 1, "txtdim": 64, "txtheads": 2, "txtkvheads": 2}
        return Krea2Transformer(**(small if case.tiny else {})), None
    if case.family == "qwen-image-2.1":
        from mflux.models.qwen21.model.qwen21_transformer.qwen21_transformer import Qwen21Transformer

        small = {"num_layers": 1, "num_attention_heads": 1, "context_in_dim": 64}
        return Qwen21Transformer(**(small if case.tiny else {})), None
    if case.spec.autoencoder == "flux":
        from mflux.models.flux.model.flux_transformer.transformer import Transformer

        small = {"num_transformer_blocks": 1, "num_single_transformer_blocks": 1}
        return Transformer(model_config(case), **(small if case.tiny else {})), None
    from mflux.models.qwen.model.qwen_transformer.qwen_transformer import QwenTransformer
    from mflux.models.qwen.weights.qwen_weight_definition import QwenWeightDefinition

    if case.family == "qwen-image-edit":
        raise Unsupported("mflux has Qwen-Image-Edit-2509 and 2511 only")
    small = {"num_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 64}
    return QwenTransformer(**(small if case.tiny else {})), QwenWeightDefinition.quantization_predicate


def model_config(case: Case):
    from mflux.models.common.config.model_config import ModelConfig

    return {
        "flux1-schnell": ModelConfig.schnell,
        "flux1-dev": ModelConfig.dev,
        "flux1-kontext": ModelConfig.dev_kontext,
        "qwen-image": ModelConfig.qwen_image,
        "qwen-image-edit-plus": ModelConfig.qwen_image_edit,
    }[case.family]()


def settings(case: Case):
    """mflux's settings of a run, which some of its transformers read."""
    from mflux.models.common.config.config import Config

    return Config(
        model_config=model_config(case), num_inference_steps=4, height=case.size, width=case.size, guidance=case.guidance
    )


def steps(case: Case, model: nn.Module):
    if case.family == "qwen-image-2.1":
        return functools.partial(qwen_image_21, case, model)
    kinds = {"z": z_image, "flux2": flux_2, "flux1": flux_1, "qwen": qwen_image, "krea": krea_2}
    return functools.partial(kinds[case.family.split("-")[0]], case, model)


def normal(dtype, *shape) -> mx.array:
    return mx.random.normal(shape, dtype)


def guided(case: Case, positive: mx.array, negative: mx.array) -> mx.array:
    return negative + case.guidance * (positive - negative)


def z_image(case: Case, model: nn.Module, dtype):
    side, width = case.size // LATENT, model.cap_embedder[0].weight.shape[0]
    prompts = [normal(dtype, case.prompt_tokens, width) for _ in range(1 + case.guided)]
    sigmas = mx.linspace(1, 0, 5)

    def predict(x, timestep, sigmas, *prompts):
        noise = [model(x=x, timestep=timestep, sigmas=sigmas, cap_feats=p) for p in prompts]
        return guided(case, *noise) if case.guided else noise[0]

    return predict, [normal(dtype, 16, 1, side, side), mx.array([0.5]), sigmas, *prompts]


def flux_2(case: Case, model: nn.Module, dtype):
    from mflux.models.flux2.latent_creator.flux2_latent_creator import Flux2LatentCreator

    channels, width = model.x_embedder.weight.shape[-1], model.context_embedder.weight.shape[-1]
    channels, width = unpacked(model.x_embedder, channels), unpacked(model.context_embedder, width)
    images = [case.side] + [case.reference_side] * case.images
    places = [
        Flux2LatentCreator.prepare_grid_ids(mx.zeros((1, 1, side, side)), t_coord=10 * i) for i, side in enumerate(images)
    ]
    text = mx.stack([mx.zeros(case.prompt_tokens, mx.int32)] * 3 + [mx.arange(case.prompt_tokens, dtype=mx.int32)], axis=1)

    def predict(latents, references, prompt, img_ids, txt_ids, timestep):
        hidden = mx.concatenate([latents, references], axis=1)
        noise = model(
            hidden_states=hidden, encoder_hidden_states=prompt, timestep=timestep, img_ids=img_ids, txt_ids=txt_ids
        )
        return noise[:, : latents.shape[1]]

    rest = case.image_tokens - case.side**2
    return predict, [
        normal(dtype, 1, case.side**2, channels), normal(dtype, 1, rest, channels),
        normal(dtype, 1, case.prompt_tokens, width), mx.concatenate(places, axis=1), text[None], mx.array(500.0),
    ]  # fmt: skip


def unpacked(layer: nn.Module, width: int) -> int:
    """The input width of a linear layer whose weight may be quantized."""
    return width * 32 // layer.bits if isinstance(layer, nn.QuantizedLinear) else width


def flux_1(case: Case, model: nn.Module, dtype):
    from mflux.models.flux.variants.kontext.kontext_util import KontextUtil

    config = settings(case)
    pixels = case.reference_side * PIXELS
    more = {"kontext_image_ids": KontextUtil._create_image_ids(pixels, pixels)} if case.images else {}

    def predict(hidden, prompt, pooled):
        noise = model(
            t=1, config=config, hidden_states=hidden, prompt_embeds=prompt, pooled_prompt_embeds=pooled, **more
        )
        return noise[:, : case.side**2]

    mx.eval(config.scheduler.sigmas, *more.values())
    inputs = [normal(dtype, 1, case.image_tokens, 64), normal(dtype, 1, case.prompt_tokens, 4096)]
    return predict, [*inputs, normal(dtype, 1, 768)]


def qwen_image(case: Case, model: nn.Module, dtype):
    config = settings(case)
    mask = mx.ones((1, case.prompt_tokens), mx.int32)
    grids = [(1, case.reference_side, case.reference_side)] * case.images
    more = {"cond_image_grid": grids if len(grids) > 1 else grids[0]} if grids else {}
    width = model.txt_norm.weight.shape[0]

    def predict(hidden, *prompts):
        noise = [
            model(
                t=1, config=config, hidden_states=hidden, encoder_hidden_states=p, encoder_hidden_states_mask=mask, **more
            )[:, : case.side**2]
            for p in prompts
        ]  # fmt: skip
        return guided(case, *noise) if case.guided else noise[0]

    mx.eval(config.scheduler.sigmas, mask)
    prompts = [normal(dtype, 1, case.prompt_tokens, width) for _ in range(1 + case.guided)]
    return predict, [normal(dtype, 1, case.image_tokens, 64), *prompts]


def krea_2(case: Case, model: nn.Module, dtype):
    side = case.size // LATENT

    def predict(latents, timestep, *prompts):
        noise = [model(latents, timestep, p) for p in prompts]
        return guided(case, *noise) if case.guided else noise[0]

    width = model.txtlayers * model.txtdim
    prompts = [normal(dtype, 1, case.prompt_tokens, width) for _ in range(1 + case.guided)]
    return predict, [normal(dtype, 1, 16, side, side), mx.array([0.5]), *prompts]


def qwen_image_21(case: Case, model: nn.Module, dtype):
    """The steps after the first one, which take the keys and values of the prompt from a cache. mflux compiles them itself."""
    size = SimpleNamespace(height=case.size, width=case.size)
    width = unpacked(model.txt_in.in_layer, model.txt_in.in_layer.weight.shape[-1])
    prompts = [normal(dtype, 1, case.prompt_tokens, width) for _ in range(1 + case.guided)]  # the caches know them by identity

    def predict(latents):
        noise = [model(t=0.5, config=size, hidden_states=latents, encoder_hidden_states=p) for p in prompts]
        return guided(case, *noise) if case.guided else noise[0]

    latents = normal(dtype, 1, case.image_tokens, 64)
    mx.eval(predict(latents), prompts)
    return predict, [latents]


def autoencoder(case: Case) -> nn.Module:
    if case.spec.autoencoder == "flux":
        from mflux.models.z_image.model.z_image_vae.vae import VAE
    elif case.spec.autoencoder == "flux2":
        from mflux.models.flux2.model.flux2_vae.vae import Flux2VAE as VAE
    elif case.spec.autoencoder == "qwen21":
        from mflux.models.qwen21.model.qwen21_vae.qwen21_vae import Qwen21VAE as VAE
    else:
        from mflux.models.qwen.model.qwen_vae.qwen_vae import QwenVAE as VAE
    return VAE()


def decoding(case: Case, model: nn.Module):
    side = case.size // (PIXELS if case.spec.autoencoder == "qwen21" else LATENT)

    def decode(latents):
        image = model.decode(latents)
        return mx.clip(mx.round((image / 2 + 0.5) * 255), 0, 255).astype(mx.uint8)

    return lambda dtype: (decode, [normal(dtype, 1, model.latent_channels, side, side)])


def evaluate(function, inputs: list) -> mx.array:
    result = function(*inputs)
    mx.eval(result)
    return result


def to_bytes(function, inputs: list) -> np.ndarray:
    """Decodes latents to an image of bytes in the computer's memory, which gomflux's time includes, too."""
    return np.array(function(*inputs))

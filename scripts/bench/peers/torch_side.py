"""The transformers and autoencoders of diffusers, with random weights, in PyTorch or compiled by torch.compile."""

import functools

import torch

from .cases import LATENT, PIXELS, Case, Unsupported, dims, versions

PACKAGES = ("diffusers", "torch", "transformers")


def prepare(case: Case, part: str, compiled: bool, device: str | None) -> dict:
    """Returns the call to time, finish and stamp for timing.measure, and what is to be reported."""
    if case.quantize:
        raise Unsupported("diffusers quantizes with other packages, which are not compared")
    device = device or default_device()
    if device != "cpu":
        torch.zeros(1, device=device)  # fails here if there is no such device
    with torch.no_grad():
        model = build(case, part, device)
        function = model if part == "step" else model.decode
        if compiled:
            function = torch.compile(function, dynamic=False)
        draw = Draw(device, getattr(torch, case.dtype))
        arguments = step_arguments(case, model, draw) if part == "step" else (latents(case, model, draw),)
        run = step if part == "step" else decode
        if part == "step" and case.inpaint and not case.spec.fills:
            run = functools.partial(inpaint, inpainting(case, arguments[0], draw))
    call = torch.no_grad()(functools.partial(run, function, arguments, case))
    return {
        "call": call,
        "finish": finisher(device),
        "stamp": stamp if device.startswith("cuda") else None,
        "peak": functools.partial(peak_memory, device),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": versions(PACKAGES),
    }


def default_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def finisher(device: str):
    if device.startswith("cuda"):
        return torch.cuda.synchronize
    return torch.mps.synchronize if device == "mps" else lambda: None


def stamp():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def peak_memory(device: str) -> int | None:
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else None


def build(case: Case, part: str, device: str):
    """Makes a component on the device, with the random weights that its layers begin with."""
    from gomflux_reference.families import FAMILIES

    family = FAMILIES[case.spec.reference]
    usual = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, case.dtype))
    try:
        torch.manual_seed(0)
        with torch.device(device):
            model = (family.transformer if part == "step" else family.autoencoder)(dims(case.spec, family, case.tiny))
        for name, p in model.named_parameters():
            if name.endswith("pad_token"):
                p.normal_()  # is not initialized
    finally:
        torch.set_default_dtype(usual)
    return model.eval()


class Draw:
    """Makes inputs on a device."""

    def __init__(self, device: str, dtype: torch.dtype):
        self.device, self.dtype = device, dtype

    def normal(self, *shape) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def constant(self, value: float) -> torch.Tensor:
        return torch.full((1,), value, device=self.device, dtype=self.dtype)

    def ids(self, rows: list) -> torch.Tensor:
        return torch.tensor(rows, device=self.device, dtype=torch.float32)


def step_arguments(case: Case, model, draw: Draw) -> list:
    """The keyword arguments of each call of a step."""
    make = {
        "ZImageTransformer2DModel": z_image,
        "FluxTransformer2DModel": flux_1,
        "Flux2Transformer2DModel": flux_2,
        "Flux3Transformer2DModel": flux_3,
        "QwenImageTransformer2DModel": qwen_image,
        "Krea2Transformer2DModel": krea_2,
        "ErnieImageTransformer2DModel": ernie_image,
        "CosmosTransformer3DModel": anima,
        "QwenImage21Transformer2DModel": functools.partial(qwen_image_21, model),
    }[type(model).__name__]
    return make(case, model.config, draw)


def grids(case: Case) -> list:
    """Tokens of the sides of the image, of its layers and of each reference image."""
    return [case.side] * (1 + case.spec.layers) + [case.reference_side] * case.images


def z_image(case: Case, config, draw: Draw) -> list:
    n, side = 1 + case.guided, case.size // LATENT
    return [
        {
            "x": [draw.normal(config.in_channels, 1, side, side)] * n,
            "t": draw.constant(0.5).repeat(n),
            "cap_feats": [draw.normal(case.prompt_tokens, config.cap_feat_dim) for _ in range(n)],
        }
    ]


def flux_1(case: Case, config, draw: Draw) -> list:
    places = [(image, y, x) for image, side in enumerate(grids(case)) for y in range(side) for x in range(side)]
    return [
        {
            "hidden_states": draw.normal(1, case.image_tokens, config.in_channels),
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.joint_attention_dim),
            "pooled_projections": draw.normal(1, config.pooled_projection_dim),
            "timestep": draw.constant(0.5),
            "img_ids": draw.ids(places).to(draw.dtype),
            "txt_ids": draw.ids([[0, 0, 0]] * case.prompt_tokens).to(draw.dtype),
            "guidance": draw.constant(case.guidance) if config.guidance_embeds else None,
        }
    ]


def flux_2(case: Case, config, draw: Draw) -> list:
    places = [(10 * image, y, x, 0) for image, side in enumerate(grids(case)) for y in range(side) for x in range(side)]
    return [
        {
            "hidden_states": draw.normal(1, case.image_tokens, config.in_channels),
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.joint_attention_dim),
            "timestep": draw.constant(0.5),
            "img_ids": draw.ids(places)[None].long(),
            "txt_ids": draw.ids([(0, 0, 0, i) for i in range(case.prompt_tokens)])[None].long(),
            "guidance": None,
        }
    ]


def flux_3(case: Case, config, draw: Draw) -> list:
    def call() -> dict:
        def places(side: int, image: int) -> list:
            return [(0, y / 2, x / 2, -image) for y in range(side) for x in range(side)]

        def tokens(n: int):
            return draw.normal(1, n, config.in_channels)

        target, *references = grids(case)
        found = {
            "hidden_states": tokens(target**2),
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.joint_attention_dim),
            "timestep": draw.constant(0.5),
            "target_timestep": draw.constant(0.4) if config.flow_map else None,
            "img_ids": draw.ids(places(target, 0)),
            "txt_ids": draw.ids([(0, 0, 0, i) for i in range(case.prompt_tokens)]),
        }
        if references:
            found["image_cond_hidden_states"] = tokens(sum(side**2 for side in references))
            found["image_cond_ids"] = draw.ids([p for i, side in enumerate(references, 1) for p in places(side, i)])
        return found

    return [call() for _ in range(1 + case.guided)]


def qwen_image(case: Case, config, draw: Draw) -> list:
    hidden = draw.normal(1, case.image_tokens, config.in_channels)
    return [
        {
            "hidden_states": hidden,
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.joint_attention_dim),
            "encoder_hidden_states_mask": None,
            "timestep": draw.constant(0.5),
            "img_shapes": [[(1, side, side) for side in grids(case)]],
            "additional_t_cond": torch.zeros(1, dtype=torch.long, device=draw.device) if config.use_additional_t_cond else None,
        }
        for _ in range(1 + case.guided)
    ]


def krea_2(case: Case, config, draw: Draw) -> list:
    places = [(0, 0, 0)] * case.prompt_tokens + [(0, y, x) for y in range(case.side) for x in range(case.side)]
    return [
        {
            "hidden_states": draw.normal(1, case.image_tokens, config.in_channels),
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.num_text_layers, config.text_hidden_dim),
            "timestep": draw.constant(0.5),
            "position_ids": draw.ids(places),
        }
        for _ in range(1 + case.guided)
    ]


def ernie_image(case: Case, config, draw: Draw) -> list:
    n = 1 + case.guided
    return [
        {
            "hidden_states": draw.normal(n, config.in_channels, case.side, case.side),
            "timestep": draw.constant(500).repeat(n),
            "text_bth": draw.normal(n, case.prompt_tokens, config.text_in_dim),
            "text_lens": torch.full((n,), case.prompt_tokens, device=draw.device),
        }
    ]


def anima(case: Case, config, draw: Draw) -> list:
    side = case.size // LATENT
    return [
        {
            "hidden_states": draw.normal(1, config.in_channels, 1, side, side),
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.text_embed_dim),
            "timestep": draw.constant(0.5),
            "padding_mask": torch.zeros(1, 1, case.size, case.size, device=draw.device, dtype=draw.dtype),
        }
        for _ in range(1 + case.guided)
    ]


def qwen_image_21(model, case: Case, config, draw: Draw) -> list:
    """The steps after the first one, which take the keys and values of the prompt from a cache."""
    from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

    slots = torch.tensor([[False] * case.prompt_tokens + [True] * (case.image_tokens // 4)], device=draw.device)
    calls = [
        {
            "hidden_states": draw.normal(1, case.image_tokens, config.in_channels),
            "encoder_hidden_states": draw.normal(1, case.prompt_tokens, config.context_in_dim),
            "timestep": draw.constant(0.5),
            "img_shapes": [[(1, side, side) for side in grids(case)]],
            "img_mask": slots,
            "kv_cache": QwenImage21KVCache(config.num_layers),
        }
        for _ in range(1 + case.guided)
    ]
    for kwargs in calls:
        model(**kwargs, kv_cache_mode="extract")
        kwargs["kv_cache_mode"] = "cached"
    return calls


def step(function, calls: list, case: Case):
    """Predicts the noise, in one batch or in several calls, as the pipeline of diffusers does."""
    predicted = [x for kwargs in calls for x in function(**kwargs, return_dict=False)[0]]
    if not case.guided:
        return predicted[0]
    positive, negative = predicted
    return negative + case.guidance * (positive - negative)


def inpainting(case: Case, first: dict, draw: Draw) -> dict:
    """What diffusers' pipelines for inpainting keep over the steps: latents of the image, noise and the mask, packed."""
    latents = first["x"][0][None] if "x" in first else first["hidden_states"][:, : case.side**2]
    shape = latents.shape
    mask = (torch.arange(shape[-1], device=draw.device) < shape[-1] // 2).to(draw.dtype).expand(shape)
    return {"latents": latents, "image": draw.normal(*shape), "noise": draw.normal(*shape), "mask": mask}


def inpaint(kept: dict, function, calls: list, case: Case):
    """Predicts the noise, steps as FlowMatchEulerDiscreteScheduler does, and blends as the inpaint pipelines do."""
    latents = kept["latents"]
    velocity = step(function, calls, case)[None] if latents.ndim == 5 else step(function, calls, case)[: latents.shape[1]]
    stepped = (latents.float() - 0.05 * velocity.float()).to(latents.dtype)
    noised = 0.45 * kept["noise"] + 0.55 * kept["image"]
    return (1 - kept["mask"]) * noised + kept["mask"] * stepped


def latents(case: Case, model, draw: Draw) -> torch.Tensor:
    side = case.size // (PIXELS if case.spec.autoencoder == "qwen21" else LATENT)
    channels = model.config.z_dim if "z_dim" in model.config else model.config.latent_channels
    return draw.normal(1, channels, *([1] if "z_dim" in model.config else []), side, side)


def decode(function, arguments: tuple, case: Case):
    """Decodes latents to an image of bytes in the computer's memory, which gomflux's time includes, too."""
    image = function(*arguments, return_dict=False)[0]
    return (image / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).cpu()

"""What differs between model families. A new one is made by a module here, and listed in FAMILIES."""

import importlib
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Callable

from PIL import Image

from ..files import STEPPED
from .parts import option


def valid_rows(config, ids, mask) -> int:
    """Returns the tokens that are not pads; all of them without a mask."""
    return ids.shape[1] if mask is None else int(mask.sum())


def all_rows(config, ids, mask) -> int:
    return ids.shape[1]


NORMED = "normed"  # the hidden states after a text encoder's final norm


@dataclass(frozen=True)
class TextEncoder:
    suffix: str = ""  # of its prompts' names
    valid: Callable = valid_rows  # its config, ids and mask [1, L] -> the tokens that are no pads
    kept: Callable | None = None  # the same -> how many rows of its tensors are recorded, if not those
    ids: str = "input_ids"  # its argument


@dataclass(frozen=True)
class Family:
    pipeline: type
    dims: dict  # command-line flags of `tiny` and their defaults
    full: dict  # the same, where the published model has more
    transformer: Callable[[dict], object]  # dims -> that component, with any weights
    autoencoder: Callable[[dict], object]  # the same
    build: Callable[[dict], dict]  # dims -> the other arguments of the pipeline's class
    draw: Callable  # random.Random -> dims, all of them other than in dims, of a model that is quick to run
    latents: Callable  # pipe, height, width -> shape of the latents as pictures, [1, C, h, w]
    guidance: Callable  # random.Random -> guidance of a run that is quick
    image_pipeline: type | None = None  # picture to picture
    inpaint_pipeline: type | None = None  # a part of a picture
    # pipe, guidance, negative prompt -> arguments of its call
    arguments: Callable = lambda pipe, scale, negative: {"guidance_scale": scale, "negative_prompt": negative}
    # positional and keyword arguments of the transformer -> for each prompt in them, values by name
    prompts: Callable = lambda args, kwargs: [{"embeds": kwargs["encoder_hidden_states"][0]}]
    # method of the pipeline that encodes one prompt -> its result -> those values, before the transformer gets them. Of a
    # modular pipeline a block -> the pipeline's state -> the same, for each prompt
    encodings: dict = field(default_factory=lambda: {"encode_prompt": lambda result: {"embeds": result[0][0]}})
    # pipe -> the hidden states that prompt.embeds are, side by side: numbers of layers from 1, or NORMED
    embeddings: Callable = lambda pipe: (NORMED,)
    matches: Callable = lambda pipe: True  # whether a pipeline of that class is of this family
    prepare: Callable = lambda pipe: None  # puts right what is wrong in diffusers
    running: Callable = lambda pipe: nullcontext()  # what has to be in place while it is called
    without: tuple = ()  # blocks of a modular pipeline that are left out, and their components
    # block of a modular pipeline -> the pipeline's state after it -> values that are recorded then, by name
    states: dict = field(default_factory=dict)
    pack: Callable = lambda pipe, x: x  # latents as pictures -> the pipeline's argument
    unpack: Callable = lambda pipe, x, height, width: x  # what its scheduler steps with -> latents as pictures
    read: Callable = lambda pipe, file: Image.open(file)  # gomflux's file -> the image as the pipeline returns it here
    index: Callable = lambda d: {}  # dims -> what model_index.json has besides
    # arguments of the pipeline's call that small models name in model_index.json -> their dims
    options: dict = field(default_factory=dict)
    one_batch: bool = False  # guidance takes both prompts as rows of one batch, not in two calls
    negative_prompt: bool = False  # there is one to be chosen
    # what classifier-free guidance has besides that: an argument of the pipeline's call -> how to draw a value
    cfg: dict = field(default_factory=dict)
    steps: tuple = (2, 4)  # the fewest and the most steps of a run that is quick
    references: tuple = (0,)  # how many pictures are edited at once (parity tries all of them)
    fills: bool = False  # the transformer sees the mask and the picture around it, and there is no run without
    inpaint_references: tuple = (0,)  # how many of them besides the picture that is inpainted
    # pipe, width and height of a picture -> the size in which it is inpainted, if the pipeline chooses that itself
    inpaint_size: Callable | None = None
    inpaint_resized: bool = False  # it keeps the picture's size, which is therefore resized first, unless it is cropped
    inpaint_pastes: bool = True  # inpainting with a crop pastes its result into the whole picture
    transparent: bool = False  # it knows the alpha of pictures that it edits
    reference_sides: tuple = (64, 100)  # the smallest and largest sides of such pictures, for parity
    without_effect: Callable = lambda config: "(?!)"  # transformer's config -> pattern of weights that change nothing
    schedulers: tuple = ()  # that it works with besides its own; Heun's does not shift by size
    stepped: tuple = ("transformer",)  # components that run once per step
    text_encoders: dict = field(default_factory=lambda: {"text_encoder": TextEncoder()})
    bare_tokenizers: tuple = ()  # published as vocab.json and merges.txt, without tokenizer.json
    unrotated: dict = field(default_factory=dict)  # see inner.observe
    untapped: tuple = ()  # globs of what is never recorded
    gains: dict = field(default_factory=dict)  # pattern -> gain of the weights it matches (else 1)
    biases: dict = field(default_factory=dict)  # pattern -> gain of the biases it matches (else 1)
    minus_one: tuple = ()  # patterns of norms' weights that are stored minus one
    small: tuple = ()  # what the small-activations kind scales down
    bare: bool = False  # made by bare, for a pipeline that no module here describes

    def components(self, d: dict) -> dict:
        """Returns the arguments of the pipeline's class for some dims."""
        return self.build(d) | {"vae": self.autoencoder(d), "transformer": self.transformer(d)}

    def model_index(self, d: dict) -> dict:
        """Returns what model_index.json has besides the components, for some dims."""
        return self.index(d) | {name: d[dim] for name, dim in self.options.items()}

    def call(self, pipe, guidance: float, negative: str | None) -> dict:
        """Returns the arguments of the pipeline's call for its guidance, and the options of the model."""
        named = {name: value for name in self.options if (value := option(pipe, name))}
        return self.arguments(pipe, guidance, negative) | named


def unfilled(place: str):
    """What stands for a function of a new family."""

    def fail(*_, **__):
        raise SystemExit(f"families/{place} is not filled in (docs/adding-a-family.md)")

    return fail


MODULES = ("z_image", "flux_1", "flux_2", "qwen_image", "qwen_image_21", "krea_2", "flux_3", "ernie_image", "anima")
FAMILIES = {
    name: family
    for module in MODULES
    for name, family in importlib.import_module(f"{__name__}.{module}").FAMILIES.items()
}


def module_of(name: str) -> str:
    """The module of a family."""
    return next(m for m in MODULES if name in importlib.import_module(f"{__name__}.{m}").FAMILIES)


def bare(pipe) -> Family:
    """A pipeline that no module here describes: what its hooks show, in the shapes that it has itself."""
    nothing = dict.fromkeys(("transformer", "autoencoder", "build", "draw", "latents", "guidance"))
    stepped = tuple(name for name in STEPPED if getattr(pipe, name, None) is not None)
    if not stepped or not hasattr(pipe, "scheduler"):
        raise SystemExit(f"{type(pipe).__name__}: it has no scheduler, or none of {', '.join(STEPPED)}: debug start stops its script")
    return Family(
        pipeline=type(pipe), dims={}, full={}, **nothing, prompts=lambda args, kwargs: [], encodings={}, embeddings=lambda pipe: (),
        text_encoders={}, stepped=stepped, one_batch=True, negative_prompt=True, bare=True,
    )  # fmt: skip


def family_of(pipe, described: bool = True) -> str | None:
    """The name of a pipeline's family. One without a family is refused, if it must be described."""
    for name, family in FAMILIES.items():
        if type(pipe) in (family.pipeline, family.image_pipeline, family.inpaint_pipeline) and family.matches(pipe):
            return name
    if not described:
        return None
    known = ", ".join(dict.fromkeys(f.pipeline.__name__ for f in FAMILIES.values()))
    raise SystemExit(f"{type(pipe).__name__} is not supported; these pipelines are: {known}")

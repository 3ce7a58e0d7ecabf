"""What is measured: a step or a decode of a model with random weights, of given shapes."""

from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version

ENGINES = {
    "gomflux": "gomflux",
    "mflux": "mflux",
    "mflux-compile": "mflux, mx.compile",
    "diffusers": "diffusers",
    "diffusers-compile": "diffusers, torch.compile",
}
PARTS = ("step", "decode")
DTYPES = ("bfloat16", "float16", "float32")


class Unsupported(Exception):
    """An engine cannot run a case. The message is one line."""


@dataclass(frozen=True)
class Family:
    title: str
    reference: str  # the family of gomflux_reference, which knows the dimensions
    autoencoder: str  # a key of AUTOENCODERS
    tokens: int  # of the prompt, unless given
    random: str = ""  # what gomflux bench --random calls it; without, a folder of configs is made
    dims: dict = field(default_factory=dict)  # that differ from gomflux_reference's
    guidance: tuple = (0.0, None)  # without and with a second pass for the negative prompt, if there is one
    references: int = 0  # reference images, unless given
    vision: int = 0  # tokens that the text encoder makes of each reference image
    edits: bool = False  # any number of reference images is possible
    kept_area: bool = False  # reference images of less than a megapixel keep their size
    layers: int = 0  # images that it makes in addition to the first, and its reference image has the same size
    fills: bool = False  # always inpaints: the transformer sees the mask, and nothing is blended after a step


FAMILIES = {
    "z-image": Family("Z-Image", "z-image", "flux", 23, "z-image", guidance=(0.0, 4.0)),
    # A model of the same class that two cores can run, with the full-size autoencoder.
    "z-image-small": Family(
        "Z-Image with a dimension of 1024 and 8 layers", "z-image", "flux", 23,
        dims={"dim": 1024, "heads": 8, "layers": 8}, guidance=(0.0, 4.0),
    ),
    "flux2-klein-4b": Family(
        "FLUX.2-klein-4B", "flux2-klein", "flux2", 512, "flux2-klein-4b", guidance=(1.0, None), edits=True, kept_area=True
    ),
    "flux2-klein-9b": Family(
        "FLUX.2-klein-9B", "flux2-klein", "flux2", 512, "flux2-klein-9b", guidance=(1.0, None), edits=True, kept_area=True,
        dims={"heads": 32, "layers": 8, "single_layers": 24, "text_hidden": 4096, "text_intermediate": 12288},
    ),
    "flux2-dev": Family("FLUX.2-dev", "flux2-dev", "flux2", 512, "flux2-dev", guidance=(4.0, None), edits=True, kept_area=True),
    "flux3-klein": Family("FLUX.3 klein", "flux3-klein", "flux2", 320, "flux3-klein", guidance=(1.0, None), edits=True, kept_area=True),
    "flux3-klein-base": Family(
        "FLUX.3 klein Base", "flux3-klein-base", "flux2", 320, "flux3-klein-base", guidance=(1.0, 3.5), edits=True, kept_area=True
    ),
    "flux1-schnell": Family("FLUX.1-schnell", "flux1-schnell", "flux", 256, "flux1-schnell"),
    "flux1-dev": Family("FLUX.1-dev", "flux1-dev", "flux", 512, "flux1-dev", guidance=(3.5, None)),
    "flux1-kontext": Family(
        "FLUX.1-Kontext-dev", "flux1-kontext", "flux", 512, "flux1-kontext-dev", guidance=(2.5, None), references=1
    ),
    "flux1-fill": Family("FLUX.1-Fill-dev", "flux1-fill", "flux", 512, "flux1-fill-dev", guidance=(30.0, None), fills=True),
    "qwen-image": Family("Qwen-Image", "qwen-image", "qwen", 20, "qwen-image", guidance=(1.0, 4.0)),
    "qwen-image-edit": Family(
        "Qwen-Image-Edit", "qwen-image-edit", "qwen", 30, "qwen-image-edit", guidance=(1.0, 4.0), references=1, vision=1369
    ),
    "qwen-image-edit-plus": Family(
        "Qwen-Image-Edit-2509", "qwen-image-edit-plus", "qwen", 30, "qwen-image-edit-2509", guidance=(1.0, 4.0),
        references=1, vision=196, edits=True,
    ),
    "qwen-image-layered": Family(
        "Qwen-Image-Layered", "qwen-image-layered", "qwen", 100, "qwen-image-layered", guidance=(1.0, 4.0), references=1, layers=4
    ),
    "ernie-image": Family("ERNIE-Image", "ernie-image", "flux2", 64, "ernie-image", guidance=(1.0, 4.0)),
    "krea-2": Family("Krea 2", "krea-2", "qwen", 64, "krea-2", guidance=(0.0, 4.5)),
    "anima": Family("Anima", "anima", "qwen", 512, "anima", guidance=(1.0, 4.0)),
    "qwen-image-2.1": Family("Qwen-Image-2.1", "qwen-image-2.1", "qwen21", 64, "qwen-image-2.1", guidance=(1.0, 4.0)),
}  # fmt: skip

# By Family.autoencoder: the title, and the family in whose name it is measured.
AUTOENCODERS = {
    "flux": ("AutoencoderKL with 16 channels (Z-Image, FLUX.1)", "z-image"),
    "flux2": ("AutoencoderKLFlux2", "flux2-klein-4b"),
    "qwen": ("AutoencoderKLQwenImage (Qwen-Image, Krea 2)", "qwen-image"),
    "qwen21": ("AutoencoderKLQwenImage21", "qwen-image-2.1"),
}

# The autoencoders of tiny models, so that their tokens have as many pixels as the published models'.
TINY = {"vae_channels": (8, 8, 16, 16), "vae_decoder_channels": (8, 8, 12, 16)}
TINY_VISION = 4

PIXELS = 16  # of a token's side
LATENT = 8  # pixels of a latent's side
MEGAPIXEL = 1024


def dims(spec: Family, reference, tiny: bool) -> dict:
    """Returns the dimensions of a model, given its family of gomflux_reference."""
    if tiny and spec.autoencoder == "qwen21":
        return reference.dims  # one more level than the others
    if tiny:
        own = {k: v for k, v in TINY.items() if len(reference.dims.get(k, v)) != len(v)}
        return reference.dims | {k: v for k, v in own.items() if k in reference.dims}
    return reference.dims | reference.full | spec.dims


@dataclass(frozen=True)
class Case:
    family: str
    size: int = 1024  # height and width in pixels
    dtype: str = "bfloat16"
    tokens: int | None = None  # of the prompt; the family's if None
    references: int | None = None
    guided: bool = False  # two passes a step
    quantize: int | None = None  # bits of the weights
    tiny: bool = False  # the smallest dimensions, to try a command
    inpaint: bool = False  # half of an image

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family}: expected one of {', '.join(FAMILIES)}")
        if self.size <= 0 or self.size % PIXELS:
            raise ValueError(f"size {self.size}: must be a positive multiple of {PIXELS}")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens {self.tokens}: must be positive")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype}: expected one of {', '.join(DTYPES)}")
        if self.guided and self.spec.guidance[1] is None:
            raise ValueError(f"guidance: {self.spec.title} has no second pass")
        given = self.images
        if given < 0 or (not self.spec.edits and given != self.spec.references) or (self.spec.references and not given):
            raise ValueError(f"references {given}: {self.spec.title} does not take that many")

    @property
    def spec(self) -> Family:
        return FAMILIES[self.family]

    @property
    def own_tokens(self) -> int:
        """Tokens of the prompt without those of reference images."""
        return self.tokens or self.spec.tokens

    @property
    def prompt_tokens(self) -> int:
        vision = min(self.spec.vision, TINY_VISION) if self.tiny else self.spec.vision
        return self.own_tokens + self.images * vision

    @property
    def images(self) -> int:
        """How many reference images there are. An image to inpaint is one too, for models that edit."""
        least = max(self.spec.references, int(self.inpaint and self.spec.edits))
        return least if self.references is None else self.references

    @property
    def guidance(self) -> float:
        return self.spec.guidance[self.guided]

    @property
    def side(self) -> int:
        """Tokens of a side of the image."""
        return self.size // PIXELS

    @property
    def reference_side(self) -> int:
        """Tokens of a side of a reference image, as the pipelines resize one of the image's size."""
        pixels = min(self.size, MEGAPIXEL) if self.spec.kept_area else MEGAPIXEL
        return (self.size if self.tiny or self.spec.layers else pixels) // PIXELS

    @property
    def image_tokens(self) -> int:
        return (1 + self.spec.layers) * self.side**2 + self.images * self.reference_side**2

    @property
    def title(self) -> str:
        more = f"{self.size}x{self.size}"
        if self.images:
            more += f", {self.images} reference image" + "s" * (self.images > 1)
        if self.guided:
            more += ", with guidance"
        if self.inpaint:
            more += ", inpainting"
        if self.quantize:
            more += f", {self.quantize} bits"
        return more

    def part_of(self, part: str) -> "Case":
        """Returns the case of which a part's time is that of this one: a decode depends on few of the fields."""
        if part == "step":
            return self
        return Case(AUTOENCODERS[self.spec.autoencoder][1], self.size, self.dtype, tiny=self.tiny)

    def arguments(self) -> list:
        """The command-line arguments that make this case again."""
        words = ["--family", self.family, "--size", str(self.size), "--dtype", self.dtype]
        for name in ("tokens", "references", "quantize"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name}", str(value)]
        return words + ["--guided"] * self.guided + ["--tiny"] * self.tiny + ["--inpaint"] * self.inpaint

    def json(self) -> dict:
        return asdict(self)


def from_json(values: dict) -> Case:
    return Case(**{f.name: values[f.name] for f in fields(Case) if f.name in values})


def versions(packages: tuple) -> dict:
    """Returns the versions of packages, of those that were installed by pip."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found

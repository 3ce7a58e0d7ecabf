"""The images of a run: one to start from, one with a mask to inpaint, and references to edit."""

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image


@dataclass(frozen=True)
class Pictures:
    picture: Path | None = None  # to start from
    image_strength: float | None = None  # how much of it is kept
    references: list[Path] | tuple = ()  # images to edit
    mask: Path | None = None  # white is the part of the picture that is made anew
    mask_crop: int | None = None  # padding around the mask, if the model sees only that part of the picture
    sample_posterior: bool = False  # draw from the encoder's distribution, as diffusers does, instead of taking its mean

    def files(self) -> list[Path]:
        return [file for file in (self.picture, self.mask, *(self.references or ())) if file]

    def first_step(self, steps: int) -> int:
        """Returns the first step that runs. Of inpainting as diffusers counts, of image-to-image as mflux does: the higher
        the strength, the more is kept."""
        if self.mask:
            return int(max(steps - min(steps * self.strength, steps), 0))
        return max(1, int(steps * self.image_strength)) if self.picture else 0

    @property
    def strength(self) -> float:
        """diffusers' strength is how much is changed."""
        return 1 - self.image_strength

    def pipeline(self, pipe, family):
        """Returns the same model as the pipeline of diffusers that takes these images."""
        if not self.picture:
            return pipe
        return recast(pipe, family.inpaint_pipeline if self.mask else family.image_pipeline)

    def check(self, name: str, family, scheduler: str | None):
        """Ends the program if a family has no pipeline for these images."""
        n = len(self.references or ())
        if self.picture and scheduler:
            raise SystemExit("image-to-image and inpainting are recorded with the model's own scheduler only")
        if self.mask and not self.picture:
            raise SystemExit("--mask needs --picture")
        if family.fills and not self.mask:
            raise SystemExit(f"{name} needs an image and what of it is to be filled (--picture, --mask)")
        if self.mask_crop is not None and not self.mask:
            raise SystemExit("--mask-crop needs --mask")
        if self.mask and not family.inpaint_pipeline:
            raise SystemExit(f"{name} has no pipeline in diffusers that inpaints")
        if self.picture and not self.mask and not family.image_pipeline:
            raise SystemExit(f"{name} does not support image-to-image")
        if self.mask and n not in family.inpaint_references:
            raise SystemExit(f"{name} inpaints with at most {max(family.inpaint_references)} further images, not {n}")
        if self.mask_crop is not None and n and not family.inpaint_resized:
            raise SystemExit(f"{name} crops further images around the mask too, so --references cannot be combined with --mask-crop")
        if self.picture and n and not self.mask:
            raise SystemExit("--picture and --references cannot be combined without --mask")
        if not self.mask:
            check_references(name, family, n)
        files = {file.resolve() for file in self.files()}
        if len({file.name for file in files}) < len(files):
            raise SystemExit("images need different file names, even in different folders")


def recast(pipe, cls):
    """Returns the same model as another pipeline of diffusers."""
    if type(pipe) is cls:  # whose blocks depend on the inputs
        return pipe
    named = {k: v for k, v in pipe.config.items() if k in inspect.signature(cls.__init__).parameters}
    other = cls(**named | pipe.components)
    other.register_to_config(_name_or_path=pipe.config["_name_or_path"])
    return other


def check_references(name: str, family, n: int):
    if n and max(family.references) == 0:
        raise SystemExit(f"{name} does not edit images")
    if not n and 0 not in family.references:
        raise SystemExit(f"{name} needs images to edit (--references)")
    if n > 1 and max(family.references) == 1:
        raise SystemExit(f"{name} edits one image, not {n}")


def arguments(pipe, family, given: Pictures, height: int, width: int) -> dict:
    """Returns the images as arguments of an inpainting pipeline, and what it is told about them."""
    photo, mask = Image.open(given.picture).convert("RGB"), Image.open(given.mask).convert("L")
    found = {"strength": given.strength}
    if given.references:
        found["image_reference"] = Image.open(given.references[0]).convert("RGB")
    crop = given.mask_crop is not None
    if crop and mask.size != photo.size:
        raise SystemExit(f"the mask has {mask.width}x{mask.height} pixels, expected {photo.width}x{photo.height} for --mask-crop")
    if family.inpaint_resized and not crop:
        photo = pipe.image_processor.resize(photo, height, width)
    chosen = chosen_size(pipe, family, *photo.size, crop) or (width, height)
    if chosen != (width, height):
        name = type(pipe).__name__
        raise SystemExit(f"{name} inpaints a picture of {photo.width}x{photo.height} in {chosen[0]}x{chosen[1]}, not {width}x{height}")
    if crop and chosen_before(family) and photo.size != chosen:
        raise SystemExit(f"the picture has {photo.width}x{photo.height} pixels, expected {width}x{height} for --mask-crop")
    if crop and crops_itself(pipe):
        found["padding_mask_crop"] = given.mask_crop
    elif crop:
        region = region_of(pipe, given, height, width)
        photo, mask = (pipe.image_processor.resize(x.crop(region), height, width, "fill") for x in (photo, mask))
    return found | {"image": photo, "mask_image": mask}


def chosen_size(pipe, family, width: int, height: int, crop: bool) -> tuple | None:
    """Returns the width and height that an inpainting pipeline chooses for a picture; None if it keeps to what it is told."""
    if not family.inpaint_size or family.inpaint_resized and not crop:
        return None
    return family.inpaint_size(pipe, width, height)


def chosen_before(family) -> bool:
    """Reports whether a pipeline resizes the picture to the size that it chooses before it crops it, around a mask that it
    does not resize."""
    return family.inpaint_size is not None and not family.inpaint_resized


def pastes(pipe, family, given: Pictures) -> bool:
    """Reports whether the result of a run is pasted into the whole picture."""
    return given.mask_crop is not None and (family.inpaint_pastes or not crops_itself(pipe))


def crops_itself(pipe) -> bool:
    return "padding_mask_crop" in inspect.signature(type(pipe).__call__).parameters


def region_of(pipe, given: Pictures, height: int, width: int) -> tuple:
    """Returns the left, top, right and bottom of the part of the picture that a model sees with mask_crop."""
    return pipe.mask_processor.get_crop_region(Image.open(given.mask), width, height, given.mask_crop)


def observe(pipe, family, record, height: int, width: int):
    """Records the mask in the size of latents, the latents of further images, and the image before it is pasted into the
    picture. The latents of the masked picture are not computed: the pipelines that replace latents outside the mask make
    no use of them."""
    if family.fills:
        return observe_filled(pipe, family, record, height, width)
    encode, prepare, overlay = pipe.vae.encode, pipe.prepare_mask_latents, pipe.image_processor.apply_overlay
    reference = getattr(pipe, "_encode_vae_image", None)
    preparing, encoded, known = [], {}, []  # encoded: by shape of the picture

    def encode_pictures(pictures, *args, **kwargs):
        if not preparing:
            encoded[pictures.shape] = encode(pictures, *args, **kwargs)
        return encoded[pictures.shape]

    def prepare_mask(*args, **kwargs):
        preparing.append(True)
        result = prepare(*args, **kwargs)
        preparing.clear()
        mask = family.unpack(pipe, result[0] if isinstance(result, tuple) else result, height, width)
        if not torch.equal(mask, mask[:, :1].expand_as(mask)):
            raise SystemExit("the mask differs from channel to channel: this version of diffusers cannot be recorded")
        record.put("latents.mask", mask[:, :1])
        return result

    def paste(mask, photo, image, region=None):
        if not family.inpaint_pastes:
            return image
        record.put("image", pixels(image))
        return overlay(mask, photo, image, region)

    def encode_further(*args, **kwargs):
        latents = reference(*args, **kwargs)
        if known:  # the first one is the picture's
            record.put_next("latents.reference", latents)
        known.append(True)
        return latents

    pipe.vae.encode, pipe.prepare_mask_latents, pipe.image_processor.apply_overlay = encode_pictures, prepare_mask, paste
    if max(family.inpaint_references):
        pipe._encode_vae_image = encode_further


def observe_filled(pipe, family, record, height: int, width: int):
    """Records the masked picture and its latents, and the mask as the transformer sees it."""
    prepare = pipe.prepare_mask_latents

    def prepare_mask(mask, masked, *args, **kwargs):
        record.put_next("vae.encode.in", masked)
        mask, latents = prepare(mask, masked, *args, **kwargs)
        record.put("latents.masked", family.unpack(pipe, latents, height, width))
        record.put("fill.mask", mask.float())
        return mask, latents

    pipe.prepare_mask_latents = prepare_mask


def finished(pipe, record, given: Pictures, image, height: int, width: int):
    """Records the result of a pipeline. Returns it, pasted into the whole picture if the model has seen a part of it."""
    if given.mask_crop is not None and not crops_itself(pipe):
        record.put("image", pixels(image))
        image = paste(pipe, given, image, height, width)
    record.put("image.pasted" if "image" in record.seen else "image", pixels(image))
    return image


def paste(pipe, given: Pictures, image, height: int, width: int):
    """Returns the result of a pipeline that was given a part of the picture, pasted into the whole picture."""
    processor = pipe.image_processor
    photo, mask = Image.open(given.picture).convert("RGB"), Image.open(given.mask).convert("L")
    return type(processor).apply_overlay(processor, mask, photo, image, region_of(pipe, given, height, width))


def pixels(image) -> torch.Tensor:
    return torch.from_numpy(np.array(image))

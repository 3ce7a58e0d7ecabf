"""Writes the folder of a model without its weights, for gomflux bench --random."""

from pathlib import Path

import torch
import transformers

from .cases import FAMILIES, dims


def write(folder: Path, name: str, tiny: bool):
    from gomflux_reference.families import FAMILIES as REFERENCE
    from gomflux_reference import modular
    from gomflux_reference.files import MODULAR_INDEX, read_json, write_json

    spec = FAMILIES[name]
    family = REFERENCE[spec.reference]
    d = dims(spec, family, tiny)
    with torch.device("meta"):
        components = family.components(d)
    if modular.is_modular(family.pipeline):
        index = {"_class_name": family.pipeline.__name__}
        for component, value in components.items():
            index[component] = [type(value).__module__.split(".")[0], type(value).__name__, {"subfolder": component}]
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / MODULAR_INDEX, index | family.index(d))
    else:
        family.pipeline(**components).save_config(folder)
        index = folder / "model_index.json"
        write_json(index, read_json(index) | family.index(d))
    for component, value in components.items():
        if isinstance(value, transformers.PreTrainedModel):
            value.config.architectures = [type(value).__name__]
            value.config.save_pretrained(folder / component)
        elif hasattr(value, "save_config"):
            value.save_config(folder / component)
        elif isinstance(value, (transformers.PreTrainedTokenizerBase, transformers.ProcessorMixin)):
            value.save_pretrained(folder / component)

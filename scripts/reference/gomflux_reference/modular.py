"""Pipelines that diffusers has as blocks only (ModularPipeline): loaded, saved and observed like the others.

Their index is modular_model_index.json. A component without a folder there is made by its block, as the schedulers of
published models are.
"""

import copy

import diffusers

from .files import MODULAR_INDEX, read_json, write_json


def is_modular(cls: type) -> bool:
    return issubclass(cls, diffusers.ModularPipeline)


def index_of(model) -> dict | None:
    """Returns a model's modular_model_index.json, unless another pipeline of diffusers loads the model."""
    try:
        diffusers.DiffusionPipeline.load_config(model)
        return None
    except OSError:
        pass
    try:
        return diffusers.ModularPipeline.load_config(model)
    except OSError:
        return None


def empty(cls: type, without: tuple = (), model=None):
    """Returns a pipeline with the blocks of its class, but for some, and without components."""
    blocks = copy.deepcopy(getattr(diffusers, cls.default_blocks_name)())
    for name in without:
        blocks.sub_blocks.pop(name)
    return cls(blocks=blocks, pretrained_model_name_or_path=model)


def load(model, index: dict, families: dict, dtype):
    """Returns the pipeline of a model, without the blocks that its family leaves out."""
    cls = getattr(diffusers, index["_class_name"])
    family = next((f for f in families.values() if f.pipeline is cls), None)
    pipe = empty(cls, family.without if family else (), str(model))
    pipe.load_components(dtype=dtype)
    if missing := [name for name in pipe.pretrained_component_names if getattr(pipe, name) is None]:
        raise SystemExit(f"{model}: could not load {', '.join(missing)}, which {cls.__name__} needs")
    pipe.register_to_config(_name_or_path=str(model))
    return pipe


def with_components(family, components: dict):
    """Returns a pipeline whose index has some components, also those that its blocks would make."""
    pipe = empty(family.pipeline, family.without)
    for part in components:
        pipe._component_specs[part].default_creation_method = "from_pretrained"
        pipe._component_specs[part].subfolder = part
    pipe.register_components(**components)
    return pipe


def save(family, name: str, components: dict, folder):
    """Writes a pipeline of some components."""
    pipe = with_components(family, components)
    pipe.save_pretrained(str(folder), overwrite_modular_index=True)
    index = read_json(folder / MODULAR_INDEX)
    for part in components:
        index[part][2]["pretrained_model_name_or_path"] = f"gomflux/{name}"  # not the path of this machine
    write_json(folder / MODULAR_INDEX, index)


def blocks(pipe):
    """Yields each block, after its path: the names in sub_blocks, joined by periods."""

    def inside(parent, path):
        for name, block in parent.sub_blocks.items():
            yield (full := f"{path}.{name}" if path else name), block
            yield from inside(block, full)

    yield from inside(pipe._blocks, "")


def quiet(pipe):
    for _, block in blocks(pipe):
        if hasattr(block, "set_progress_bar_config"):
            block.set_progress_bar_config(disable=True)


def observe(pipe, path: str, after):
    """Calls after with the pipeline's state whenever the block of a path has run."""
    found = dict(blocks(pipe))
    if path not in found:
        raise SystemExit(f"{type(pipe).__name__} has no block {path} (its blocks: {', '.join(found)})")
    block = found[path]
    cls = type(block)  # a call looks for the method there

    def observed(self, components, state, *args, **kwargs):
        result = cls.__call__(self, components, state, *args, **kwargs)
        after(state)
        return result

    block.__class__ = type(cls.__name__, (cls,), {"__call__": observed})

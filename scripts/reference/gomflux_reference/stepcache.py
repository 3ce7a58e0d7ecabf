"""diffusers' step cache: steps that leave out most of the transformer."""

from contextlib import contextmanager

import diffusers
from diffusers.hooks import FirstBlockCacheConfig, apply_first_block_cache, first_block_cache
from diffusers.hooks._helpers import TransformerBlockRegistry
from diffusers.hooks.hooks import CacheContext, _set_cache_context

FIRST_BLOCK = "first-block"
MARGIN = 1e-3  # a difference nearer to the threshold could be on its other side after rounding


def threshold_of(text: str) -> float:
    """The threshold of first-block:THRESHOLD."""
    name, _, threshold = text.partition(":")
    try:
        if name == FIRST_BLOCK:
            return float(threshold)
    except ValueError:
        pass
    raise SystemExit(f"--step-cache {text}: expected {FIRST_BLOCK}: and a number")


@contextmanager
def applied(pipe, text: str | None, record, settings: dict):
    """Runs a pipeline with the cache. The settings get the steps, from 1, that used it: for the prompt, and for the
    negative prompt."""
    if not text:
        yield
        return
    threshold = threshold_of(text)
    transformer = pipe.transformer
    repair_names(transformer)
    apply_first_block_cache(transformer, FirstBlockCacheConfig(threshold=threshold))
    leader = next(h for m in transformer.modules() if (h := hook_of(m, first_block_cache._FBC_LEADER_BLOCK_HOOK)))
    repair_tail(transformer, leader.state_manager)
    if not hasattr(transformer, "cache_context"):  # its pipeline takes both prompts in one call
        _set_cache_context(transformer, CacheContext("cond"))
    decide = leader._should_compute_remaining_blocks
    steps = {"cond": [], "uncond": []}

    def observed(residual):
        state = leader.state_manager.get_state()
        if (before := state.head_block_residual) is not None:
            difference = float((residual - before).abs().mean() / before.abs().mean())
            if abs(difference - threshold) < MARGIN:
                raise SystemExit(f"step {record.step + 1}: the difference {difference:.5f} is too near to {text}")
        computes = decide(residual)
        if not computes:
            steps[leader.state_manager.context.name].append(record.step + 1)
        return computes

    leader._should_compute_remaining_blocks = observed
    yield
    settings["skipped_steps"], settings["skipped_negative_steps"] = steps["cond"], steps["uncond"]


def hook_of(module, name: str):
    registry = getattr(module, "_diffusers_hook", None)
    return registry and registry.hooks.get(name)


def repair_names(transformer):
    """In 0.42.1 the blocks of Z-Image are registered without the name of their first argument, which is x."""
    if isinstance(transformer, diffusers.ZImageTransformer2DModel):
        TransformerBlockRegistry.get(type(transformer.layers[0]))._cached_parameter_indices = {"hidden_states": 0}


class JointTail(first_block_cache.FBCBlockHook):
    """The hook of a last block that returns text and image as one tensor. In 0.42.1 FBCBlockHook subtracts both streams
    of the first block from it, a list, which is an error."""

    def new_forward(self, module, *args, **kwargs):
        state = self.state_manager.get_state()
        if not state.should_compute:
            return super().new_forward(module, *args, **kwargs)
        output = self.fn_ref.original_forward(*args, **kwargs)
        image, text = state.head_block_output
        n = text.shape[1]
        state.tail_block_residuals = (output[:, n:] - image, output[:, :n] - text)
        return output


def repair_tail(transformer, state_manager):
    if isinstance(transformer, diffusers.Flux2Transformer2DModel):
        registry = transformer.single_transformer_blocks[-1]._diffusers_hook
        registry.remove_hook(first_block_cache._FBC_BLOCK_HOOK, recurse=False)
        registry.register_hook(JointTail(state_manager, is_tail=True), first_block_cache._FBC_BLOCK_HOOK)

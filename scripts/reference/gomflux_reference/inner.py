"""Taps inside attention, where no module's output is: the functions that modules call are wrapped while a run lasts.

    :q :k :v                     what attention gets, normed, rotated, in the layout of the function that is called:
                                 [B, L, heads, D] in diffusers' dispatch_attention_fn, [B, heads, L, D] in
                                 transformers' attention functions and torch's scaled_dot_product_attention
    :q.unrotated :k.unrotated    the same before the rotary embedding
    :weights                     softmax(q kT scale + mask), [B, heads, Lq, Lk], in float32
    :entropy                     -sum(w ln w) of each row of the weights, [B, heads, Lq], in nats

They belong to the module that is running when the function is called. Should it call attention several times (for
windows), they are those of the first.
"""

import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
import torch.nn.functional as F


@contextmanager
def observe(record, components: dict, unrotated: dict):
    """Wraps the functions for a recorder that wants inner values.

    components are the modules by name. unrotated says of components that rotate in a function of their own, out of
    reach: which two of an attention's modules return q and k as they are before it.
    """
    if not record.any_inner():
        yield
        return
    watch = Watch(record, unrotated)
    with ExitStack() as patches:
        for component, module in components.items():
            for m in module.modules():
                for i, name in enumerate(unrotated.get(component, ())):
                    if (part := getattr(m, name, None)) is not None:
                        patches.callback(part.register_forward_hook(watch.unrotated_by_module(i)).remove)
        sources = {type(m).__module__ for module in components.values() for m in module.modules()}
        for source in (sys.modules[name] for name in sorted(sources)):
            if function := getattr(source, "dispatch_attention_fn", None):
                patches.enter_context(mock.patch.object(source, "dispatch_attention_fn", watch.diffusers(function)))
            if functions := getattr(source, "ALL_ATTENTION_FUNCTIONS", None):
                patches.enter_context(
                    mock.patch.object(source, "ALL_ATTENTION_FUNCTIONS", Interfaces(functions, watch.transformers))
                )
            for name, function in list(vars(source).items()):
                if name.startswith("apply_") and "rotary" in name and callable(function):
                    patches.enter_context(mock.patch.object(source, name, watch.rotary(function)))
        sdpa = F.scaled_dot_product_attention
        patches.enter_context(mock.patch.object(F, "scaled_dot_product_attention", watch.torch(sdpa)))
        yield


class Interfaces:
    """Wraps every function that transformers' table of attention functions returns."""

    def __init__(self, functions, wrap):
        self._functions, self._wrap = functions, wrap

    def get_interface(self, *args):
        return self._wrap(self._functions.get_interface(*args))

    def __getattr__(self, name):
        return getattr(self._functions, name)

    def __getitem__(self, name):
        return self._wrap(self._functions[name])


class Watch:
    def __init__(self, record, unrotated):
        self.record = record
        self.pairs = []  # (before, after) of each rotation in the running module
        self.before = [None, None]  # q and k, as modules have returned them
        self.owner = None  # whose they are
        self.calls = 0
        self.busy = False  # inside an attention function: those that it calls are not others

    def _enter(self):
        """Forgets the values of another module, or of an earlier call."""
        owner = self.record.running[-1][1] if self.record.running else None
        if owner != self.owner:
            self.owner, self.pairs, self.calls = owner, [], 0

    def unrotated_by_module(self, i: int):
        def hook(module, args, output):
            self.before[i] = output

        return hook

    def rotary(self, function):
        def rotate(*args, **kwargs):
            self._enter()
            result = function(*args, **kwargs)
            after = result if isinstance(result, tuple) else (result,)
            self.pairs += zip([a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)], after)
            return result

        return rotate

    def diffusers(self, function):
        def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, *args, **kwargs):
            with self._attention(1, query, key, value, attn_mask, is_causal, scale):
                return function(query, key, value, attn_mask, dropout_p, is_causal, scale, *args, **kwargs)

        return attend

    def transformers(self, function):
        def attend(module, query, key, value, attention_mask=None, *args, **kwargs):
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            causal = causal and attention_mask is None and query.shape[2] > 1
            added = kwargs.get("position_bias")  # T5's
            mask = attention_mask if added is None or attention_mask is None else masked(added, attention_mask)
            mask = added if mask is None else mask
            with self._attention(2, query, key, value, mask, causal, kwargs.get("scaling")):
                return function(module, query, key, value, attention_mask, *args, **kwargs)

        return attend

    def torch(self, function):
        def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, **kwargs):
            with self._attention(2, query, key, value, attn_mask, is_causal, scale):
                return function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **kwargs)

        return attend

    @contextmanager
    def _attention(self, axis, query, key, value, mask, causal, scale):
        """Taps a call. axis is the axis of the sequence, 1 or 2; the other one is that of the heads."""
        if self.busy or self.record.paused or not self.record.running:
            yield
            return
        self._enter()
        self.busy = True
        try:
            if not self.calls:
                self._tap(*self.record.running[-1], axis, query, key, value, mask, causal, scale)
            self.calls += 1
            yield
        finally:
            self.busy, self.before = False, [None, None]

    def _tap(self, component, name, axis, query, key, value, mask, causal, scale):
        record = self.record
        padded, valid = record.crop.get(component, (None, None))

        def keep(point, tensor, *axes):
            record.seen.add(f"{name}:{point}")
            if not record.wants(f"{name}:{point}"):
                return
            tensor = tensor() if callable(tensor) else tensor
            if tensor is None:
                return
            for a in axes:
                if tensor.shape[a] == padded:
                    tensor = tensor.narrow(a, 0, valid)
            record.tapped(f"{name}:{point}", tensor, record.modules[-1])

        for point, tensor in (("q", query), ("k", key), ("v", value)):
            keep(point, tensor, axis)
        for i, (point, tensor) in enumerate((("q.unrotated", query), ("k.unrotated", key))):
            keep(point, lambda: self._before_rotation(i, tensor, axis), axis)
        if axis == 1:
            query, key = query.transpose(1, 2), key.transpose(1, 2)
        keep("weights", lambda: weights(query, key, mask, causal, scale, record.memory), 2, 3)
        keep("entropy", lambda: entropy(query, key, mask, causal, scale), 2)

    def _before_rotation(self, i, x, axis):
        """x with its parts along the sequence as they were before they were rotated; None if it was not."""
        parts, at = [], 0
        # some rotate before they move the axis of the heads
        moved = [tuple(a.transpose(1, 2) for a in pair) for pair in self.pairs if all(a.dim() == 4 for a in pair)]
        while self.pairs and at < x.shape[axis]:
            for before, after in self.pairs + moved:
                n = after.shape[axis]
                if at + n <= x.shape[axis] and same_heads(x.narrow(axis, at, n), after.to(x.dtype), 3 - axis):
                    parts.append(before)
                    at += n
                    break
            else:
                return None
        if parts:
            return torch.cat(parts, axis)
        return self.before[i]


def same_heads(x, y, axis: int) -> bool:
    """Whether x is y, or y with each of its heads repeated, as some modules do it for grouped queries."""
    if x.shape != y.shape and x.dim() == y.dim() and x.shape[axis] % y.shape[axis] == 0:
        y = y.repeat_interleave(x.shape[axis] // y.shape[axis], axis)
    return torch.equal(x, y)


def rows(query, key, mask, causal, scale, head: int):
    """softmax(q kT scale + mask) of one head of all samples, in float32: [B, Lq, Lk]."""
    kv = head // (query.shape[1] // key.shape[1])
    q, k = query[:, head].float(), key[:, kv].float()
    scores = q @ k.mT * (scale if scale is not None else q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    if mask is not None:
        scores = masked(scores, mask[:, min(head, mask.shape[1] - 1)] if mask.dim() == 4 else mask)
    return scores.softmax(-1).nan_to_num()  # no weights for a query that sees nothing


def masked(scores, mask):
    """Applies a mask: booleans of the tokens to attend to, or values to add."""
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def weights(query, key, mask, causal, scale, limit: int):
    size = 4 * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    if size > limit:
        raise SystemExit(
            f"attention weights of {size / 1e6:.0f} MB do not fit into --max-memory: raise it, or tap :entropy"
        )
    return torch.stack([rows(query, key, mask, causal, scale, h) for h in range(query.shape[1])], 1)


def entropy(query, key, mask, causal, scale):
    def of(w):
        return torch.special.entr(w).sum(-1)

    return torch.stack([of(rows(query, key, mask, causal, scale, h)) for h in range(query.shape[1])], 1)

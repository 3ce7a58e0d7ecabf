"""The comparison of two tensors in an expression."""

from .. import debug, replace
from . import expressions


class Difference(dict):
    """The result of compare: measures by name."""

    def __getattr__(self, name: str):
        if name in self:
            return self[name]
        raise AttributeError(f"difference has no {name} (it has: {', '.join(self)})")

    def __repr__(self) -> str:
        return f"difference({', '.join(f'{k}={expressions.text(v)}' for k, v in self.items())})"


def reading(got, want) -> Difference:
    """Compares two tensors of the same number of elements, with the measures of parity.Difference."""
    a, b = debug.plain(got), debug.plain(want)
    if a.numel() != b.numel():
        raise ValueError(f"compare: {replace.described(a)} and {replace.described(b)}")
    a, b = a.double().flatten(), b.double().flatten()
    errors = (a - b).abs()
    scale = a.norm() * b.norm()
    return Difference(
        l2=float(errors.norm() / b.norm()) if b.any() else float(errors.norm()),
        max=float(errors.max()) if len(a) else 0.0, max_ref=float(b.abs().max()) if len(b) else 0.0,
        mean=float(errors.mean()) if len(a) else 0.0, cosine=float(a @ b / scale) if scale else 1.0,
        at=int(errors.argmax()) if len(a) else 0, count=len(b), finite=bool(a.isfinite().all() and b.isfinite().all()),
    )  # fmt: skip

"""Stops at tensors: after the calls of modules, and at values of the pipeline, as a recorder names them."""

import numpy as np
import torch

from .. import debug, replace, stats
from ..record import INNER, changed, kept, leaves, near
from . import expressions, lines
from .difference import reading
from .wire import Refused


class Tensors:
    """The tensors of a recorder's run. The recorder calls entered and left, value and seen."""

    option, failed = "debug", None  # as an observer of the recorder: of inner values

    def __init__(self, session, recorder):
        self.session, self.recorder = session, recorder
        self.calls = []  # those of modules that are running, the innermost last
        self.values = {}  # of the pipeline by name: what was seen of them
        self.sigmas, self.timesteps = None, None
        recorder.observe(InnerPoints(session), self)
        if recorder.run:
            debug.use_run(recorder.run)

    @property
    def paused(self) -> bool:
        return self.session.paused

    def settings(self) -> dict:
        return {}

    def put(self, name: str, tensor, module=None):
        """Keeps an inner value until the call of its module is done."""
        name, _, point = name.rpartition(":")
        if self.calls and self.calls[-1].name == name:
            self.calls[-1].inner[point] = tensor

    def around(self) -> list:
        """The names and classes of the modules that are running, outermost first."""
        return [(call.name, type(call.module).__name__) for call in self.calls]

    def innermost(self) -> dict:
        """The module that is running, as the fields of a stop."""
        return self.calls[-1]._stop() if self.calls else {}

    def entered(self, component: str, path: str, name: str, stepped: bool, module, args, kwargs):
        self.calls.append(Call(self, component, path, name, stepped, module, args, kwargs))

    def left(self, output):
        """Sees a call that is done. Returns its output, or what replaces it."""
        call = self.calls.pop()
        call.outs = [("", output)] if isinstance(output, torch.Tensor) else list(leaves(output))
        if not call.outs:
            return output
        self.session.passed(call)
        if call.new is None:
            return output
        first = call.outs[0][0]
        return changed(output, lambda key, tensor: call.new if key == first else tensor)

    def value(self, name: str, tensor):
        """Sees a value of the pipeline that can be replaced. Returns it, or what replaces it."""
        return self._value(name, tensor, True)

    def seen(self, name: str, tensor):
        """Sees a value of the pipeline."""
        if name in ("sigmas", "timesteps"):
            setattr(self, name, tensor.tolist())
        self._value(name, tensor, False)

    def _value(self, name, tensor, replaceable):
        if self.paused or name in self.values:
            return tensor
        self.values[name] = True
        value = Value(self, name, tensor, replaceable)
        self.session.passed(value)
        return tensor if value.new is None else value.new

    def begin_again(self):
        """Forgets the values of an earlier run of the same pipeline."""
        self.values.clear()

    def negative(self, component: str) -> bool:
        """Reports whether a component runs for the negative prompt: its second call in a step, or in the run."""
        return component != "vae" and self.recorder.calls.get(component, 0) > 0

    def check(self, asked: dict):
        """Refuses a breakpoint that no tensor of this run can match."""
        step, steps = asked.get("step"), len(self.timesteps or ())
        if step is not None and steps and step >= steps:
            raise Refused(f"step {step}: the run has {steps} evaluations of the model, 0 to {steps - 1}")
        if self.recorder.names and "glob" in asked:
            from .. import dump

            if hint := dump.impossible(asked["glob"], self.recorder.names):
                raise Refused(f"{asked['glob']}: no module or value has such a name (near: {hint})")

    def near(self, glob: str) -> list[str]:
        """Names of tensors of the run that are like a glob."""
        found = near(glob, {lines.without_call(n) for n in self.recorder.seen if ":" not in n})
        return [] if found == "nothing" else found.split(", ")


class InnerPoints:
    """Taps for inner values: those of attention, and the costly ones if a breakpoint spells them."""

    def __init__(self, session):
        self.session = session

    def __contains__(self, name: str) -> bool:
        point = name.rpartition(":")[2]
        if point not in INNER:
            return False
        return point in "qkv" or any(point in b.asked["glob"].rpartition(":")[2] for b in self.session.at_tensors)

    def any_inner(self) -> bool:
        return True

    def without_match(self, seen) -> list:
        return []


class Here:
    """A tensor that passes, and a stop at it."""

    module, inner, new, step, replaceable, component = None, {}, None, -1, True, None

    def __init__(self, tensors, name: str):
        self.tensors, self.session, self.name = tensors, tensors.session, name
        self.outs = []  # keys and tensors, as they were computed

    def _shown(self, tensor):
        """A tensor as it is recorded."""
        return kept(self.tensors.recorder._cropped(self.component, tensor))

    @property
    def out(self):
        return self._shown(self.outs[0][1] if self.new is None else self.new)

    def here(self):
        out = self.out
        self.stop = {"name": self.name, "reason": "", **self._stop()}
        for key, values in (("sigma", self.tensors.sigmas), ("timestep", self.tensors.timesteps)):
            if values and 0 <= self.step < len(values):
                self.stop[key] = values[self.step]
        self.stop |= {"shape": list(out.shape), "dtype": str(out.dtype).removeprefix("torch.")}
        return self

    def around(self) -> list:
        return self.tensors.around()

    def place(self) -> dict:
        from ..files import code_context

        at = stats.place(self.module)
        if not at["file"]:
            return {"location": at}
        context = code_context(at)
        return {"location": at} | ({"code_context": context} if context else {})

    def variable(self) -> dict:
        return {"name": self.name, "point": "output", **expressions.described(self.out)}

    def variables(self, weights: bool) -> dict:
        found = [("out", "output", self.out)]
        found += [(f'outs["{key}"]', "output", self._shown(t)) for key, t in self.outs[1:]]
        found += [(f'inp["{key}"]', "input", t) for key, t in self.inputs().items()]
        found += [(f'inner["{key}"]', "inner value", t) for key, t in self.inner.items()]
        return {
            "name": self.name,
            "variables": [{"name": name, "point": point, **expressions.described(t)} for name, point, t in found],
            "parameters": [parameter(path, t, weights) for path, t in self.weights().items()],
        }

    def inputs(self) -> dict:
        return {}

    def weights(self) -> dict:
        return dict(self.module.named_parameters()) if self.module is not None else {}

    def names(self, hit: int) -> dict:
        stop = self.stop
        return {"torch": torch, "np": np} | self.session.defined | {
            "out": self.out, "inp": self.inputs(), "outs": {key: self._shown(t) for key, t in self.outs[1:]},
            "inner": self.inner, "w": {path: t.detach() for path, t in self.weights().items()}, "module": self.module,
            "step": stop["step"], "call": stop["call"], "negative": stop["negative"], "sigma": stop.get("sigma"),
            "timestep": stop.get("timestep"), "hit": hit, "load": lines.load, "compare": reading, "keep": self._keep,
        }  # fmt: skip

    def _keep(self, name: str, value):
        value = value.detach().clone() if isinstance(value, torch.Tensor) else value
        self.session.defined[name] = value
        return value

    def keep(self, before: dict, after: dict):
        """Keeps what an expression has defined for later ones."""
        self.session.defined |= {k: v for k, v in after.items() if k not in before or before[k] is not v}

    def save(self, name: str | None) -> dict:
        return lines.save(self.out, name or self.name, stats.place(self.module))

    def set(self, source: str) -> dict:
        if not self.replaceable:
            raise Refused(f"{self.name}: nothing is computed from this value (set the output of the module that computes it)")
        file, _, dtype = source.rpartition("@")
        cast = getattr(torch, dtype, None) if file else None
        cast = cast if isinstance(cast, torch.dtype) else None
        try:
            found, tensor = replace.find(self.name, file if cast else source)
        except ValueError as e:
            raise Refused(str(e)) from None
        new = self.outs[0][1].clone()
        place = self.tensors.recorder._cropped(self.component, new)
        place = torch.view_as_real(place) if place.is_complex() else place
        dtype = torch.float32 if place.dtype == torch.float64 else place.dtype
        tensor = tensor.to(cast) if cast else tensor
        if tensor.shape != place.shape or tensor.dtype != dtype:
            wrong, right = replace.described(tensor), replace.described(place, dtype)
            hint = f" (@{right.split()[0]} converts it)" if tensor.shape == place.shape else ""
            raise Refused(f"{found}: it is {wrong}, expected {right}{hint}")
        place.copy_(tensor)
        self.new = new
        return {"name": self.name, "source": found}


class Call(Here):
    """A call of a module."""

    def __init__(self, tensors, component, path, name, stepped, module, args, kwargs):
        super().__init__(tensors, name)
        self.component, self.path, self.module, self.args, self.kwargs = component, path, module, args, kwargs
        self.inner = {}
        self.step = tensors.recorder.step if stepped else -1
        self.call, self.negative = tensors.recorder.calls[path], tensors.negative(component)

    def _stop(self) -> dict:
        known = {"module": self.path, "class": type(self.module).__name__, "step": self.step}
        return known | {"call": self.call, "negative": self.negative}

    def inputs(self) -> dict:
        return {key: self._shown(t) for inputs in (list(self.args), self.kwargs) for key, t in leaves(inputs)}

    def matches(self, b) -> bool:
        def match(point):
            return b.matches(self.name + point, self.step, self.call, self.negative)

        if match(""):
            return True
        if ":" not in b.asked["glob"]:
            return False
        points = [f":out.{key}" for key, _ in self.outs[1:]] + [f":{key}" for key in self.inner]
        points += [f":in.{key}" for inputs in (list(self.args), self.kwargs) for key, _ in leaves(inputs)]
        return any(map(match, points))


class Value(Here):
    """A value of the pipeline."""

    def __init__(self, tensors, name, tensor, replaceable):
        super().__init__(tensors, name)
        self.path, self.replaceable, self.outs = lines.without_call(name), replaceable, [("", tensor)]
        step, call = name.partition("@")[2].partition("#")[0], name.partition("#")[2]
        self.step, self.call = int(step) if step else -1, int(call) if call else 0
        self.negative = name.startswith("negative.")

    def _stop(self) -> dict:
        return {"module": self.path, "class": "", "step": self.step, "call": self.call, "negative": self.negative}

    def matches(self, b) -> bool:
        return b.matches(self.name, self.step, self.call, self.negative)


def parameter(path: str, tensor, weights: bool) -> dict:
    known = {"path": path, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if weights and tensor.device.type != "meta":
        known["stats"] = expressions.described(tensor)["stats"]
    return known

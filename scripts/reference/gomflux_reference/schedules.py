"""Schedules of diffusers' flow matching schedulers under many configs, and the way of a sample along them, as JSON."""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import diffusers
import numpy as np
import torch

from .files import EULER, HEUN, LINEAR, write_json

CONFIGS = (
    (EULER, {}),
    (EULER, {"shift": 3.0}),
    (EULER, {"shift": 6.0, "num_train_timesteps": 500}),
    (EULER, {"use_dynamic_shifting": True}),
    (EULER, {"use_dynamic_shifting": True, "time_shift_type": "linear"}),
    (
        EULER,
        {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02},
    ),
    (EULER, {"shift": 2.0, "shift_terminal": 0.1}),
    (HEUN, {}),
    (HEUN, {"shift": 3.0}),
    (HEUN, {"shift": 6.0, "num_train_timesteps": 500}),
    (LINEAR, {"shift": 3.0}),
    (LINEAR, {"max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02}),
)  # fmt: skip

SAMPLE = (-1.0, 0.25, 1.5)


def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """A model that depends on place and time, in operations that round alike everywhere."""
    return x * x / 2 - x * (t / 1000) + 0.25


def scheduler_of(name: str, config: dict):
    """With what the class knows of a config. mflux's linear, as its source has it, is Euler, always shifted by size."""
    if name == HEUN:
        return diffusers.FlowMatchHeunDiscreteScheduler.from_config(config)
    if name == LINEAR:
        config = dict(config) | {"use_dynamic_shifting": True, "time_shift_type": "exponential"}
    return diffusers.FlowMatchEulerDiscreteScheduler.from_config(config)


def floats(values) -> list:
    """float32 values with as many digits as they need."""
    return [float(str(v)) for v in np.asarray(values, np.float32)]


def walk(scheduler) -> tuple[list, list]:
    """The sample after each evaluation of the model, and what the model takes to be its end.

    In float64, for which the class must not see torch.float32: Heun's divides by its sigmas, and at 0.001 float32
    loses four digits in that.
    """
    x = torch.tensor(SAMPLE, dtype=torch.float64)
    samples, ends = [], []
    double = SimpleNamespace(**vars(torch) | {"float32": torch.float64})
    with mock.patch.object(sys.modules[type(scheduler).__module__], "torch", double):
        for i, t in enumerate(scheduler.timesteps):
            v = velocity(x, t)
            ends.append(floats(x - scheduler.sigmas[i] * v))
            x = scheduler.step(v, t, x, return_dict=False)[0]
            samples.append(floats(x))
    return samples, ends


def make(out: Path):
    cases = []
    for name, config in CONFIGS:
        scheduler = scheduler_of(name, config)
        dynamic = scheduler.config.get("use_dynamic_shifting")
        for steps in (1, 2, 3, 8, 9, 20, 50):
            for tokens in (15, 4096) if dynamic else (4096,):
                if name == HEUN:  # takes no sigmas, and no mu
                    scheduler.set_timesteps(steps)
                else:
                    c = scheduler.config
                    slope = (c.max_shift - c.base_shift) / (c.max_image_seq_len - c.base_image_seq_len)
                    mu = tokens * slope + c.base_shift - slope * c.base_image_seq_len
                    scheduler.set_timesteps(sigmas=torch.linspace(1.0, 1 / steps, steps).tolist(), mu=mu)
                if not scheduler.sigmas.isfinite().all():
                    continue  # one step with shift_terminal divides 0 by 0
                case = {"scheduler": name, "config": config, "steps": steps, "tokens": tokens}
                case |= {"sigmas": floats(scheduler.sigmas), "timesteps": floats(scheduler.timesteps)}
                if steps < 50:
                    scheduler.set_begin_index(0)
                    case["samples"], case["denoised"] = walk(scheduler)
                cases.append(case)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"start": SAMPLE, "cases": cases}, indent=None)

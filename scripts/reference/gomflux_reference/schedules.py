"""Schedules of diffusers' FlowMatchEulerDiscreteScheduler under many configs, as JSON."""

from pathlib import Path

import diffusers
import torch

from .tiny import write_json

CONFIGS = (
    {},
    {"shift": 3.0},
    {"shift": 6.0, "num_train_timesteps": 500},
    {"use_dynamic_shifting": True},
    {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02},
    {"shift": 2.0, "shift_terminal": 0.1},
)


def make(out: Path):
    cases = []
    for config in CONFIGS:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**config)
        for steps in (1, 2, 3, 8, 9, 50):
            for tokens in (15, 4096):
                c = scheduler.config
                slope = (c.max_shift - c.base_shift) / (c.max_image_seq_len - c.base_image_seq_len)
                mu = tokens * slope + c.base_shift - slope * c.base_image_seq_len
                scheduler.set_timesteps(sigmas=torch.linspace(1.0, 1 / steps, steps).tolist(), mu=mu)
                if not scheduler.sigmas.isfinite().all():
                    continue  # one step with shift_terminal divides 0 by 0
                cases.append(
                    {
                        "config": config,
                        "steps": steps,
                        "tokens": tokens,
                        "sigmas": scheduler.sigmas.tolist(),
                        "timesteps": scheduler.timesteps.tolist(),
                    }
                )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, cases, indent=None)

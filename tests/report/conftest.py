"""Run folders written by hand, with all that training and evaluation leave in one."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from ebmbounds.evaluated import DensityMap, write_density, write_energies
from ebmbounds.experiments import experiment
from ebmbounds.launch import run_config
from ebmbounds.run import Run


@pytest.fixture
def make_run(write_run, tmp_path):
    """`write_run` below the test's own folder."""
    return partial(write_run, tmp_path)


@pytest.fixture(scope="session")
def write_run():
    """Write a run of 1000 steps, evaluated where figures are given; further arguments are settings."""

    def write(parent, folder, name="25gaussians/ebm-bb@quick", seed=0, figures=None, **overrides):
        random = np.random.default_rng(seed)
        spec = experiment(name, {"steps": 1000} | overrides)
        run = Run.create(parent / folder, run_config(spec, seed, "cpu", None))
        for step in range(100, 1001, 100):
            run.log({"step": step, "ms": 2.0, "loss_energy": seed + step / 1000, "lower_bound": 1.0, "nll": 1.0})
        for step in (500, 1000):
            (run.path / "pictures").mkdir(exist_ok=True)
            pixels = random.integers(0, 255, (40, 120, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(run.path / f"pictures/step_{step:07d}.png")
        if figures is not None:
            rest = {"iterations": 1000, "protocol": {key: "somehow" for key in figures}, "versions": {"ebmbounds": "1"}}
            (run.path / "metrics.json").write_text(json.dumps(figures | rest))
            sets = {"test": random.normal(0, 1, 500), "samples": random.normal(0, 1, 500)}
            write_energies(run, sets | {"other": random.normal(1, 1, 500)})
            points = random.normal(0, 1, (50, 2)).astype(np.float32)
            axis = np.linspace(-2, 2, 20, dtype=np.float32)
            write_density(run, DensityMap(axis, -(axis[:, None] ** 2 + axis**2) / 2, points, points))
        return run.path

    return write

"""Explorers of untrained networks: one of points in the plane, one of small images."""

import json

import numpy as np
import pytest
import torch

from ebmbounds.data import TOYS, ResidentImages
from ebmbounds.evaluated import write_energies
from ebmbounds.experiments import experiment
from ebmbounds.explore import Explorer
from ebmbounds.model import Model
from ebmbounds.run import Run
from ebmbounds.session import Session, build_step

KINDS = {
    "plane": ("checkerboard/wgan-0gp@quick", {"width": 8}),
    "images": ("cifar10/ebm-bb@quick", {"channels": 16, "latent_dim": 8}),
}


@pytest.fixture(scope="session")
def explorers(tmp_path_factory):
    """By kind."""
    made = {}
    for kind, (name, overrides) in KINDS.items():
        spec = experiment(name, overrides)
        pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
        step = build_step(spec, TOYS[spec.dataset] if kind == "plane" else ResidentImages(pixels, False), 0, "cpu")
        run = Run(tmp_path_factory.mktemp(kind))
        if kind == "images":  # as evaluated, since no test set is at hand
            write_energies(run, {"test": np.linspace(-1, 1, 101)})
            (run.path / "metrics.json").write_text(json.dumps({"iterations": 0}))
        made[kind] = Explorer(
            f"untrained {kind}", Session(spec, step), Model.of(step, step.initial_state(0, "cpu")), run
        )
    return made

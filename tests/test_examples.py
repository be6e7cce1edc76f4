"""The examples and benchmarks that stand alone still run."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from ebmbounds import bounds

ROOT = Path(__file__).parents[1]


def test_two_moons_prints_its_bounds(capsys):
    lower, nll = runpy.run_path(str(ROOT / "examples/two_moons.py"))["main"](steps=100)
    assert math.isfinite(lower) and math.isfinite(nll)
    assert lower <= nll + 0.1  # Monte Carlo error of the generated energies
    assert "lower bound" in capsys.readouterr().out


def test_an_ordinary_backward_reaches_every_parameter_that_shapes_the_jacobian():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 5))
    bounds.entropy_lower_bound(generator, torch.randn(16, 3), steps=2).backward()
    for name, parameter in generator.named_parameters():
        if name != "2.bias":  # a shift: J does not depend on it
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("kind", ["mlp", "convolutional"])
def test_the_table_of_lobpcg_shows_ratios_above_one(kind):
    module = runpy.run_path(str(ROOT / "benchmarks/lobpcg_accuracy.py"))
    torch.manual_seed(0)
    cells = module["row"](kind, 8, module[kind](8), 10).strip("| ").split(" | ")
    ratios = [float(cell) for cell in cells[4:]]
    assert all(ratio > 0.999 for ratio in ratios)
    assert ratios == sorted(ratios, reverse=True)

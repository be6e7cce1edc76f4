"""Timings: the arithmetic that they are divided by, and that every way is timed."""

from dataclasses import dataclass

import pytest
from torch import nn

from ebmbounds.bench import arithmetic, bench
from ebmbounds.data.toy import TOYS
from ebmbounds.objectives import Objective
from ebmbounds.step import Optimizer, Step


@dataclass(frozen=True)
class Mean(Objective):
    """The mean of a network over the data, taken more than once."""

    times: int = 1

    def losses(self):
        return {"energy": lambda game, x, noise, shared: (sum(game.energy(x).mean() for _ in range(self.times)), {})}


@pytest.mark.parametrize("times", [1, 3])
def test_arithmetic_counts_each_product_once(times):
    """n = 8 rows through maps of (2, 16) and (16, 1): each product is 2 * 8 * inputs * outputs operations. Both are
    taken forwards and for their weights' gradients, the second for its input's; repeated ones are the same."""
    network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    step = Step(Mean(times=times), {"energy": network}, TOYS["moons"], Optimizer(batch_size=8))
    first, second = 2 * 8 * 2 * 16, 2 * 8 * 16 * 1
    assert arithmetic(step, "cpu") == 2 * first + 3 * second


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("25gaussians/wgan-0gp@quick", ["plain", "compiled"]),
        ("25gaussians/ebm-bb@paper", ["research", "plain", "compiled"]),
    ],
)
def test_every_way_is_timed(name, ways):
    timings = bench(name, {"width": 4, "depth": 1}, "cpu", blocks=1, seconds=0.01)
    assert [timing.way for timing in timings] == ways
    assert all(timing.milliseconds > 0 and timing.tflops is None for timing in timings)

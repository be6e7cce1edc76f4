"""The games of DCGAN and SNGAN against what their papers print for a discriminator with the logit -E(x)."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ebmbounds.noise import noise
from ebmbounds.objectives import DCGAN, SNGAN


@pytest.fixture
def game(play, double):
    return play(64, 2, energy=nn.Linear(2, 1), generator=nn.Linear(2, 2))


def test_the_logistic_game_is_cross_entropy(game):
    losses, x, source = DCGAN().losses(), torch.randn(64, 2), noise(5)
    real, fake = -game.energy(x), -game.energy(game.generator(source("z").normal(64, 2)))
    one, zero = torch.ones_like(real), torch.zeros_like(real)
    expected = binary_cross_entropy_with_logits(real, one) + binary_cross_entropy_with_logits(fake, zero)
    torch.testing.assert_close(losses["energy"](game, x, source, None)[0], expected)
    expected = binary_cross_entropy_with_logits(fake, one)
    torch.testing.assert_close(losses["generator"](game, x, source, None)[0], expected)


def test_the_hinge_game_asks_for_a_margin_of_one_on_each_side(game):
    losses, x, source = SNGAN().losses(), torch.randn(64, 2), noise(5)
    real, fake = -game.energy(x), -game.energy(game.generator(source("z").normal(64, 2)))
    expected = torch.clamp(1 - real, min=0).mean() + torch.clamp(1 + fake, min=0).mean()
    torch.testing.assert_close(losses["energy"](game, x, source, None)[0], expected)
    torch.testing.assert_close(losses["generator"](game, x, source, None)[0], -fake.mean())


@pytest.mark.parametrize(("objective", "best"), [(DCGAN(), math.log(3.0)), (SNGAN(), 1.0)])
def test_the_best_energy_is_high_where_samples_are_denser(objective, best):
    """At a point with three times more samples than data: the log-ratio, or the hinge's end."""
    energies = torch.linspace(-2, 2, 40_001, dtype=torch.float64)
    cost = objective.cost_of_data(energies) + 3 * objective.cost_of_data(-energies)
    assert float(energies[cost.argmin()]) == pytest.approx(best, abs=2e-4)

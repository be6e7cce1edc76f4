"""VERA where the entropy is known: a linear generator, whose noisy samples are N(b, A A' + sigma^2 I)."""

import math

import pytest
import torch
from torch import Tensor, nn

from ebmbounds.noise import noise
from ebmbounds.objectives import VERA
from ebmbounds.objectives.vera import LogScale, sigma

A = torch.tensor([[1.0, 0.4], [-0.2, 0.6], [0.3, -0.5]], dtype=torch.float64)
SIGMA = 0.25
COVARIANCE = A @ A.T + SIGMA**2 * torch.eye(3, dtype=torch.float64)
N = 4000


class Flat(nn.Module):
    """E(x) = 0."""

    def forward(self, x: Tensor) -> Tensor:
        return 0 * x.flatten(1).sum(1, keepdim=True)


@pytest.fixture
def players(double) -> dict[str, nn.Module]:
    generator = nn.Linear(2, 3)
    generator.weight.data = A.clone()
    posterior = LogScale(2, 0.0)
    # Where the ELBO is greatest: 1 / eta^2 is the curvature of -log q(x, z) along each latent.
    posterior.values.data = -0.5 * torch.log(1 + A.square().sum(0) / SIGMA**2)
    return {
        "energy": Flat(),
        "generator": generator,
        "sigma": LogScale(1, math.log(SIGMA)),
        "posterior": posterior,
    }


@pytest.fixture
def wide(players) -> dict[str, nn.Module]:
    """With a posterior wider than the true one, from which importance sampling converges fast."""
    players["posterior"].values.data += math.log(2)
    return players


def test_the_score_is_that_of_the_noisy_density(play, wide):
    objective = VERA(importance_samples=4000)
    game = play(50, 2, **wide)
    samples = objective.prepare(game, noise(1))
    x = game.generator(samples.z) + SIGMA * samples.epsilon
    expected = -torch.linalg.solve(COVARIANCE, (x - wide["generator"].bias).T).T
    error = (samples.score - expected).norm() / expected.norm()
    assert error < 0.05


def test_the_gradient_of_the_entropy(play, wide):
    """H = half log det (A A' + sigma^2 I): its gradients are (A A' + sigma^2 I)^-1 A and sigma^2 tr (...)^-1."""
    objective = VERA(entropy_weight=0.5, importance_samples=200)
    game = play(N, 2, **wide)
    samples = objective.prepare(game, noise(1))
    inverse = torch.linalg.inv(COVARIANCE)
    loss, _ = objective.losses()["generator"](game, torch.zeros(N, 3), noise(2), samples)
    (by_weight,) = torch.autograd.grad(loss, wide["generator"].weight)
    torch.testing.assert_close(-by_weight / 0.5, inverse @ A, rtol=0.05, atol=0.05)
    loss, info = objective.losses()["sigma"](game, torch.zeros(N, 3), noise(2), samples)
    (by_log_sigma,) = torch.autograd.grad(loss, wide["sigma"].values)
    assert float(-by_log_sigma / 0.5) == pytest.approx(float(SIGMA**2 * inverse.trace()), rel=0.05)
    assert float(info["sigma"]) == pytest.approx(SIGMA)


@pytest.mark.parametrize(("factor", "sign"), [(1.0, 0), (2.0, 1), (0.5, -1)])
def test_the_posterior_fits_the_elbo(play, players, factor, sign):
    """In closed form for a linear generator: the gradient vanishes at the best eta and points to it from elsewhere."""
    players["posterior"].values.data += math.log(factor)
    game = play(N, 2, **players)
    samples = VERA(importance_samples=1).prepare(game, noise(1))
    loss, _ = VERA().losses()["posterior"](game, torch.zeros(N, 3), noise(2), samples)
    (gradient,) = torch.autograd.grad(loss, players["posterior"].values)
    # Half the second derivative of (eta / best)^2 / 2 - log eta gives factor^2 - 1.
    torch.testing.assert_close(gradient, torch.full((2,), factor**2 - 1.0), rtol=0.1, atol=0.1)
    assert sign == 0 or bool((gradient.sign() == sign).all())


@pytest.mark.parametrize(("start", "limit", "sign"), [(0.001, 0.01, -1), (2.0, 0.3, 1)])
def test_sigma_is_kept_within_its_limits(play, players, start, limit, sign):
    """Samples see the limit, and the only pull on a sigma outside is back."""
    players["sigma"].values.data.fill_(math.log(start))
    game = play(16, 2, **players)
    assert float(sigma(game).detach()) == pytest.approx(limit)
    samples = VERA().prepare(game, noise(1))
    loss, _ = VERA().losses()["sigma"](game, torch.zeros(16, 3), noise(2), samples)
    (gradient,) = torch.autograd.grad(loss, players["sigma"].values)
    assert float(gradient) == sign


def test_the_energy_sees_noisy_samples_and_half_the_penalty(play, players):
    players["energy"] = nn.Linear(3, 1)
    game, x, source = play(16, 2, **players), torch.randn(16, 3), noise(5)
    loss, info = VERA(penalty_weight=0.4).losses()["energy"](game, x, source, None)
    generated = game.generator(source("z").normal(16, 2)) + SIGMA * source("epsilon").normal(16, 3)
    penalty = 0.2 * players["energy"].weight.square().sum()
    torch.testing.assert_close(info["penalty"], penalty.detach())
    torch.testing.assert_close(loss, game.energy(x).mean() - game.energy(generated).mean() + penalty)

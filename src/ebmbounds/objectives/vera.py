"""VERA: the generator's density made everywhere positive by noise, x = g(z) + sigma * epsilon, and the gradient of its
entropy taken through a variational posterior q(z|x) = N(z_0, diag eta^2) around the latent z_0 that x came from
(Grathwohl et al. 2021)."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss, Objective
from ebmbounds.objectives.ebm_0gp import contrast_with_penalty
from ebmbounds.settings import Count, NonNegative, Positive

LOG_SIGMA = (math.log(0.01), math.log(0.3))
"""Where log sigma is kept; it starts at the lower end."""
LOG_ETA = math.log(0.1)
"""Where log eta starts."""


class LogScale(nn.Module):
    """Learned log-scales, a network without input."""

    def __init__(self, size: int, start: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((size,), start))

    def forward(self) -> Tensor:
        return self.values


class Samples(NamedTuple):
    """Latents z, noise epsilon in the shape of the data, and the score grad_x log q(x) at x = g(z) + sigma epsilon."""

    z: Tensor
    epsilon: Tensor
    score: Tensor


@dataclass(frozen=True)
class VERA(Objective):
    entropy_weight: NonNegative = 1.0
    """Weight of the entropy in the generator's loss; 1 is maximum likelihood."""
    penalty_weight: NonNegative = 0.1
    """Weight gamma of E_data|grad E(x)|^2 / 2."""
    importance_samples: Count = 20
    """Latents drawn from the posterior of each x for its score."""
    lr_posterior: Positive = 0.02
    """Learning rate of log eta."""

    def extra_players(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        return {"sigma": LogScale(1, LOG_SIGMA[0]), "posterior": LogScale(latent_dim, LOG_ETA)}

    def rates(self) -> dict[str, float]:
        return {"posterior": self.lr_posterior}

    def losses(self) -> dict[str, Loss]:
        return {
            "energy": self.energy_loss,
            "sigma": self.sigma_loss,
            "generator": self.generator_loss,
            "posterior": self.posterior_loss,
        }

    @torch.no_grad()
    def prepare(self, game: Game, noise: Noise) -> Samples:
        """Samples and their scores, for the turns of sigma and of the generator."""
        z = game.latents(noise("z"))
        mean = game.generator(z)
        epsilon = noise("epsilon").normal(*mean.shape)
        return Samples(z, epsilon, self.score(game, mean + sigma(game) * epsilon, z, noise("posterior")))

    def score(self, game: Game, x: Tensor, z0: Tensor, noise: Noise) -> Tensor:
        """grad_x log q(x) = -E[x - g(z)] / sigma^2 over the posterior of z, in the shape of x. The expectation is taken
        by importance sampling from N(z_0, diag eta^2), with self-normalised weights."""
        n, d = z0.shape
        v = noise.normal(n, self.importance_samples, d)
        z = z0[:, None] + game.posterior().exp() * v
        residual = x[:, None] - game.generator(z.flatten(0, 1)).unflatten(0, z.shape[:2])
        log_weights = log_joint(game, residual, z) + v.square().sum(2) / 2
        weights = log_weights.softmax(1).reshape(*log_weights.shape, *(1,) * (x.dim() - 1))
        return -(weights * residual).sum(1) / sigma(game).square()

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Samples) -> tuple[Tensor, Info]:
        mean = game.generator(game.latents(noise("z")))
        generated = mean + sigma(game) * noise("epsilon").normal(*mean.shape)
        return contrast_with_penalty(game, x, generated, at=x, weight=self.penalty_weight / 2)

    def generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: Samples) -> tuple[Tensor, Info]:
        """E(x) - H[q] in its gradient: that of the entropy is -E[grad_x log q(x) dx], the score held fixed."""
        generated = game.generator(shared.z) + sigma(game) * shared.epsilon
        entropy = -(shared.score * generated).flatten(1).sum(1).mean()
        return game.energy(generated).mean() - self.entropy_weight * entropy, {}

    def sigma_loss(self, game: Game, x: Tensor, noise: Noise, shared: Samples) -> tuple[Tensor, Info]:
        """The generator's, as a function of sigma."""
        loss, _ = self.generator_loss(game, x, noise, shared)
        # Outside its limits log sigma has no say in the samples: it is drawn back to them.
        outside = (game.sigma() - game.sigma().clamp(*LOG_SIGMA)).abs().sum()
        return loss + outside, {"sigma": sigma(game).mean().detach()}

    def posterior_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        """-ELBO of log q(x) at the samples, as a function of eta."""
        mean, log_eta = game.generator(shared.z), game.posterior()
        z = shared.z + log_eta.exp() * noise("z").normal(*shared.z.shape)
        residual = mean + sigma(game) * shared.epsilon - game.generator(z)
        elbo = log_joint(game, residual[:, None], z[:, None]).mean() + log_eta.sum()
        return -elbo, {"eta": log_eta.exp().mean().detach()}


def sigma(game: Game) -> Tensor:
    """The scale of the noise on samples, (1,)."""
    return game.sigma().clamp(*LOG_SIGMA).exp()


def log_joint(game: Game, residual: Tensor, z: Tensor) -> Tensor:
    """log p_0(z) + log N(x; g(z), sigma^2), (n, k), up to terms that hang on sigma alone; residual = x - g(z) is
    (n, k, ...) and z is (n, k, d)."""
    return -z.square().sum(2) / 2 - residual.flatten(2).square().sum(2) / (2 * sigma(game).square())

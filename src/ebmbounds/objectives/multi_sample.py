"""The game on multi-sample bounds of log Z, for a generator whose density is known everywhere (d = D).

Eq. 3 is the first of a sequence of lower bounds, which rise to log Z with the number K of samples. With one of the
samples from the model itself they are upper bounds, which fall to log Z. As in the paper the energy minimises an upper
bound, with the data in the model's place, and the generator closes the gap between the two.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ebmbounds import bounds
from ebmbounds.errors import BadInput
from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Objective
from ebmbounds.settings import Count, Fraction, Positive


@dataclass(frozen=True)
class MultiSampleObjective(Objective):
    importance_samples: Count = 1000
    """K of the multi-sample bounds."""
    defensive_share: Fraction = 0.2
    """Of the K samples, drawn from a broad Gaussian, so that the energy is seen where the generator never is."""
    defensive_scale: Positive = 2.0
    """Standard deviation of that Gaussian."""
    data_share: Fraction = 0.0
    """Of the generator's loss, taken at rows of the data in place of weighted samples of the model."""

    def propose(self, game: Game, noise: Noise) -> Tensor:
        """K points (K, D) of q, the mixture of generator and Gaussian: a fixed number of each."""
        if not game.generator.invertible:
            raise BadInput(
                "entropy_estimator=multi-sample needs a generator with a known density: use network=spline-flow, or "
                "entropy_estimator=s1 for the paper's bound."
            )
        noise = noise.common()  # the logarithm of a sum is no mean of parts: every process takes all K
        broad = round(self.defensive_share * self.importance_samples)
        z = noise("z").normal(self.importance_samples - broad, game.latent_dim)
        wide = noise("broad").normal(broad, game.latent_dim)
        return torch.cat((game.generator.frozen(z), self.defensive_scale * wide))

    def log_proposal(self, x: Tensor, log_generator: Tensor) -> Tensor:
        """log q(x) from log p_g(x)."""
        share = self.defensive_share
        if not share:
            return log_generator
        log_broad = bounds.base_log_density(x / self.defensive_scale) - x.shape[1] * math.log(self.defensive_scale)
        return torch.logaddexp(math.log1p(-share) + log_generator, math.log(share) + log_broad)

    def model_energy(self, energy: Tensor, log_generator: Tensor) -> Tensor:
        """-log p(x) up to a constant, (n,), from E(x) and log p_g(x): E(x) itself, unless a model is made of both."""
        return energy

    def multi_sample_energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Tensor) -> tuple[Tensor, Info]:
        """E(x) + log Z, the latter by the upper bound, with x in place of a sample of the model.

        Where the model is the data's distribution, it is a bound in truth; and for every K the loss is least there."""
        n, points = len(x), torch.cat((x, shared))
        log_generator = game.generator.frozen(points, "log_density")
        energies = self.model_energy(game.energy(points).flatten(), log_generator)
        log_q = self.log_proposal(points, log_generator)
        own, log_weights = (-energies - log_q).split((n, len(shared)))
        energy_data = energies[:n].mean()
        upper = bounds.log_partition_upper(own, log_weights)
        lower = bounds.log_partition_lower(log_weights)
        loss = energy_data + upper
        info = {
            "energy_data": energy_data.detach(),
            "lower_bound": (energy_data + lower).detach(),
            "log_partition": lower.detach(),
            "effective_samples": bounds.effective_samples(log_weights).detach(),
        }
        return loss, info

    def multi_sample_generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: Tensor) -> tuple[Tensor, Info]:
        """- E_p[log p_g(x)], the model's samples p by importance weights: what is left of the upper bound
        log Z <= E_p[-E(x) - log p_g(x)], whose gap KL(p, p_g) punishes a generator that misses modes.

        In many dimensions the weights are uneven; rows of the data can stand in for some, as in the energy's loss."""
        log_p = game.generator.frozen(shared, "log_density")
        log_q = self.log_proposal(shared, log_p).detach()
        energies = self.model_energy(game.energy.frozen(shared).flatten(), log_p.detach())
        weights = torch.softmax(-energies - log_q, 0)
        cross_entropy = -(weights * log_p).sum()
        if self.data_share:
            on_data = -game.generator.frozen(x, "log_density").mean()
            cross_entropy = torch.lerp(cross_entropy, on_data, self.data_share)
        return cross_entropy, {"cross_entropy": cross_entropy.detach()}

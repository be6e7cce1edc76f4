"""EBM-BB: the energy minimises the upper bound, the generator maximises the lower one (Geng et al. 2021)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ebmbounds import bounds, spectra
from ebmbounds.errors import BadInput
from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss, Objective
from ebmbounds.objectives.multi_sample import MultiSampleObjective
from ebmbounds.settings import NonNegative, Share, Whole


class Entropy(NamedTuple):
    """Where an entropy is taken: z, the first of a batch's latents, a random probe v for Eq. 19, and the direction for
    `log_volume`."""

    latents: Tensor
    z: Tensor
    v: Tensor
    direction: Tensor


@dataclass(frozen=True)
class EntropyObjective(Objective):
    """A generator that minimises E(G(z)) and maximises its entropy: Eq. 5 seen from the generator."""

    entropy_weight: NonNegative = 1.0
    """Weight of the entropy in the generator's loss; 1 is maximum likelihood."""
    entropy_estimator: bounds.EntropyEstimator = "s1"
    """s1: d log s_1 by LOBPCG (the paper's bound); exact: half log det J'J; hutchinson: one random probe."""
    lobpcg_steps: Whole = 2
    """LOBPCG iterations for the smallest singular value."""
    entropy_share: Share = 1.0
    """Of a batch's samples, the share at which the entropy is taken, and EBM-BB's penalty: what costs most."""

    def sample_entropy(self, game: Game, noise: Noise) -> Entropy:
        latents, v = game.latents(noise("z")), game.latents(noise("v"))
        some = max(1, round(self.entropy_share * len(latents)))
        z, v = latents[:some], v[:some]
        # The probe also starts LOBPCG, so that J v is computed once for both.
        direction = (
            spectra.lobpcg(game.generator.frozen, z, self.lobpcg_steps, v) if self.entropy_estimator == "s1" else v
        )
        return Entropy(latents, z, v, direction)

    def log_volume(self, game: Game, entropy: Entropy) -> Tensor:
        """Half log det J'J at the latents, or its bound, (n,); differentiable in the generator's parameters."""
        return bounds.log_volume(game.generator.frozen, entropy.z, self.entropy_estimator, entropy.direction)

    def latent_score(self, game: Game, entropy: Entropy) -> Tensor:
        """grad_z log p_g(g(z)) at the latents, (n, d), by the same estimate."""
        z, direction = entropy.z, entropy.direction
        return bounds.latent_score(
            game.generator.frozen, z, self.entropy_estimator, direction, self.entropy_weight or 1.0
        )

    def generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: Entropy | None) -> tuple[Tensor, Info]:
        """- floor(L) as a function of the generator (Eq. 11): E(G(z)) - H[p_g], up to constants."""
        energy = game.energy(game.generator(game.latents(noise("generated")))).mean()
        entropy = shared or self.sample_entropy(game, noise)
        volume = self.log_volume(game, entropy).mean()
        info = {"entropy": (volume + bounds.base_entropy(game.latent_dim)).detach()}
        return energy + -self.entropy_weight * volume, info


@dataclass(frozen=True)
class EBMBB(EntropyObjective, MultiSampleObjective):
    entropy_estimator: Literal["s1", "exact", "hutchinson", "multi-sample"] = "s1"  # type: ignore[assignment]
    """As above; multi-sample: the game of `multi_sample`, for an invertible generator (network=spline-flow)."""
    penalty_weight: NonNegative = 0.001
    """M / s_1^2 of the upper bound; 0 leaves the minimax game of Eq. 5 alone."""
    penalty_scale: Literal["latent_dim", "probe", "one"] = "latent_dim"
    """What the penalty is divided by: z_dim or |v|^2 (both in the paper), or nothing."""
    tempered: bool = False
    """The entropy's weight T is a temperature, p(x) ~ exp(-E(x)/T): the penalty then takes T log p_g for log p_g, as
    the generator's loss does. Paper and code take log p_g whole, at any weight."""
    slope_weight: NonNegative = 0.0
    """Of |grad_x E|^2 at samples, added to the penalty: Eq. 15 is of slopes in all directions, Eq. 18 of those along
    the generator's manifold."""
    margin: NonNegative = 1.0
    """zeta of Eq. 20."""
    reuse_entropy: bool = False
    """Both players use one entropy estimate an iteration (as the research code does on images), or each its own."""

    def __post_init__(self) -> None:
        if self.tempered and not self.entropy_weight:
            raise BadInput("tempered=true needs a temperature, and entropy_weight=0.0: make it positive.")

    def losses(self) -> dict[str, Loss]:
        if self.entropy_estimator == "multi-sample":
            return {"energy": self.penalised_energy_loss, "generator": self.multi_sample_generator_loss}
        return {"energy": self.energy_loss, "generator": self.generator_loss}

    def prepare(self, game: Game, noise: Noise) -> Entropy | Tensor | None:
        if self.entropy_estimator == "multi-sample":
            return self.propose(game, noise)
        return self.sample_entropy(game, noise) if self.reuse_entropy else None

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Entropy | None) -> tuple[Tensor, Info]:
        """ceil(L) as a function of the energy (Eq. 20): E(x) - E(G(z)) + [penalty - zeta]_+."""
        entropy = shared or self.sample_entropy(game, noise)
        z, v = entropy.z, entropy.v
        g = game.generator.frozen
        temperature = self.entropy_weight if self.tempered else 1.0
        score = temperature * self.latent_score(game, entropy)
        generated = game.generator(entropy.latents)
        at_z = generated[: len(z)]
        squares = bounds.gradient_penalty(game.energy.frozen, at_z, spectra.jvp(g, z, v), (score * v).sum(1))
        scales: dict[str, Tensor | float] = {"latent_dim": z.shape[1], "probe": v.square().sum(1), "one": 1.0}
        scale = scales[self.penalty_scale]
        penalty = self.penalty_weight * game.mean(squares / scale)
        if self.slope_weight:
            penalty = penalty + self.slope_weight * game.mean(bounds.squared_gradient(game.energy.frozen, at_z))

        energy_data, energy_generated = game.energy(x).mean(), game.energy(generated).mean()
        with torch.no_grad():
            volume = self.log_volume(game, entropy)
            # Eq. 14's condition with m = 0, |grad log f|^2 by Eqs. 18 and 19.
            gap = game.mean(squares * torch.exp(-2 * volume / z.shape[1])) / temperature**2
            contrast = (energy_data - energy_generated) / temperature
            info = {
                "energy_data": energy_data.detach(),
                "energy_generated": energy_generated.detach(),
                "penalty": penalty.detach(),
                "s1": torch.exp(volume / z.shape[1]).mean().detach(),
                "lower_bound": (contrast + volume.mean() + bounds.base_entropy(z.shape[1])).detach(),
                "eq14_holds": (gap >= 1).to(gap.dtype).detach(),
            }
        return energy_data - energy_generated + bounds.hinge(penalty, self.margin), info

    def penalised_energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Tensor) -> tuple[Tensor, Info]:
        """The multi-sample loss, and beside it the hinge of Eq. 20, here with the exact |grad E + grad log p_g|^2."""
        loss, info = self.multi_sample_energy_loss(game, x, noise, shared)
        if not self.penalty_weight:
            return loss, info

        def log_f(x: Tensor) -> Tensor:
            return (game.energy.frozen(x).flatten() + game.generator.frozen(x, "log_density")).sum()

        generated = game.generator.frozen(game.latents(noise("generated")))
        penalty = self.penalty_weight * game.mean(torch.func.grad(log_f)(generated).square().sum(1))
        return loss + bounds.hinge(penalty, self.margin), info | {"penalty": penalty.detach()}

"""WGAN-0GP: the Wasserstein game with a zero-centred penalty between data and samples (Thanh-Tung et al. 2019)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss, Objective
from ebmbounds.objectives.ebm_0gp import contrast_with_penalty
from ebmbounds.settings import NonNegative


@dataclass(frozen=True)
class WGAN0GP(Objective):
    penalty_weight: NonNegative = 10.0
    """Weight of E|grad E|^2 at random points of the segments between data and samples."""

    def losses(self) -> dict[str, Loss]:
        return {"energy": self.energy_loss, "generator": self.generator_loss}

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        generated = game.generator(game.latents(noise("z")))
        t = noise("t").uniform(x.shape[0], *(1,) * (x.dim() - 1))
        return contrast_with_penalty(game, x, generated, at=x + t * (generated - x), weight=self.penalty_weight)

    def generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        return game.energy(game.generator(game.latents(noise("z")))).mean(), {}

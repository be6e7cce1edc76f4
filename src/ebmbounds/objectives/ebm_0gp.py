"""EBM-0GP: EBM-BB with a zero-centred gradient penalty on the data in place of the upper bound."""

from dataclasses import dataclass

from torch import Tensor

from ebmbounds import bounds
from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss
from ebmbounds.objectives.ebm_bb import Entropy, EntropyObjective
from ebmbounds.settings import NonNegative


@dataclass(frozen=True)
class EBM0GP(EntropyObjective):
    penalty_weight: NonNegative = 0.1
    """Weight of E_data|grad E(x)|^2."""

    def losses(self) -> dict[str, Loss]:
        return {"energy": self.energy_loss, "generator": self.generator_loss}

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Entropy | None) -> tuple[Tensor, Info]:
        generated = game.generator(game.latents(noise("z")))
        return contrast_with_penalty(game, x, generated, at=x, weight=self.penalty_weight)


def contrast_with_penalty(game: Game, x: Tensor, generated: Tensor, at: Tensor, weight: float) -> tuple[Tensor, Info]:
    """E(x) - E(G(z)) + weight * mean |grad E|^2 at given points: the zero-centred gradient penalty."""
    penalty = weight * bounds.squared_gradient(game.energy.frozen, at).mean()
    energy_data, energy_generated = game.energy(x).mean(), game.energy(generated).mean()
    info = {
        "energy_data": energy_data.detach(),
        "energy_generated": energy_generated.detach(),
        "penalty": penalty.detach(),
    }
    return energy_data - energy_generated + penalty, info

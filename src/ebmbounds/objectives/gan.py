"""DCGAN and SNGAN: the energy as a discriminator, whose logit is -E(x), in the logistic game (Goodfellow et al. 2014,
Radford et al. 2015) and in the hinge game (Miyato et al. 2018)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss, Objective


@dataclass(frozen=True)
class GAN(Objective):
    """A game given by the costs of energies: of data and of samples to the energy, of samples to the generator.

    Data and samples go through the energy together: batch norm in it, which ours do without, would see both at once."""

    def losses(self) -> dict[str, Loss]:
        return {"energy": self.energy_loss, "generator": self.generator_loss}

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        generated = game.generator(game.latents(noise("z")))
        energy_data, energy_generated = game.energy(torch.cat((x, generated))).chunk(2)  # each weight is read once
        loss = self.cost_of_data(energy_data).mean() + self.cost_of_data(-energy_generated).mean()
        info = {"energy_data": energy_data.mean().detach(), "energy_generated": energy_generated.mean().detach()}
        return loss, info

    def generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        return self.cost_of_samples(game.energy(game.generator(game.latents(noise("z"))))).mean(), {}

    def cost_of_data(self, energy: Tensor) -> Tensor:
        """What the energy pays for the energies of data; for those of samples it pays the same with the sign turned."""
        raise NotImplementedError

    def cost_of_samples(self, energy: Tensor) -> Tensor:
        """What the generator pays for the energies of its samples."""
        raise NotImplementedError


@dataclass(frozen=True)
class DCGAN(GAN):
    """-log D(x) - log(1 - D(G(z))) against -log D(G(z)), D = sigmoid(-E): the non-saturating logistic loss."""

    def cost_of_data(self, energy: Tensor) -> Tensor:
        return softplus(energy)

    def cost_of_samples(self, energy: Tensor) -> Tensor:
        return softplus(energy)


@dataclass(frozen=True)
class SNGAN(GAN):
    """[1 + E(x)]_+ + [1 - E(G(z))]_+ against E(G(z)); the energy is to be built with `spectral_norm = true`."""

    def cost_of_data(self, energy: Tensor) -> Tensor:
        return relu(1 + energy)

    def cost_of_samples(self, energy: Tensor) -> Tensor:
        return energy

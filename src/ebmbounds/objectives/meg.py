"""MEG: maximum entropy generators. The entropy of G(z) is raised through the mutual information of x and z, which a
critic of pairs estimates (Kumar et al. 2019)."""

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn
from torch.nn.functional import softplus

from ebmbounds.game import Game
from ebmbounds.networks.critic import Critic
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss, Objective
from ebmbounds.objectives.ebm_0gp import contrast_with_penalty
from ebmbounds.settings import NonNegative, Range


@dataclass(frozen=True)
class MEG(Objective):
    entropy_weight: NonNegative = 1.0
    """Weight of the mutual information in the generator's loss."""
    penalty_weight: NonNegative = 0.1
    """Weight of E_data|grad E(x)|^2."""
    critic_width: Annotated[int, Range(8, 2**16)] = 100
    """Of the critic's hidden layers; with images also the channels of its deepest convolution."""

    def extra_players(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        return {"critic": Critic(data_shape, latent_dim, self.critic_width)}

    def losses(self) -> dict[str, Loss]:
        return {"energy": self.energy_loss, "critic": self.critic_loss, "generator": self.generator_loss}

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        generated = game.generator(game.latents(noise("z")))
        return contrast_with_penalty(game, x, generated, at=x, weight=self.penalty_weight)

    def critic_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        z = game.latents(noise("z"))
        return self.cross_entropy(game, game.generator(z), z)

    def generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: Any) -> tuple[Tensor, Info]:
        """E(G(z)) minus a bound of the mutual information: the critic's cross-entropy with its sign turned."""
        z = game.latents(noise("z"))
        generated = game.generator(z)
        cross_entropy, info = self.cross_entropy(game, generated, z)
        return game.energy(generated).mean() + self.entropy_weight * cross_entropy, info

    def cross_entropy(self, game: Game, x: Tensor, z: Tensor) -> tuple[Tensor, Info]:
        """Of the critic T, which tells pairs (x, z) from strangers. The best T is log p(x, z) / p(x) p(z), whose mean
        over pairs is the mutual information."""
        # Rows are independent, so the neighbour's latent serves as a shuffled one, and never is a pair's own.
        pairs, strangers = game.critic(x, z), game.critic(x, game.neighbours(z))
        cross_entropy = (softplus(-pairs).mean() + softplus(strangers).mean()) / 2
        return cross_entropy, {"mutual_information": pairs.mean().detach()}

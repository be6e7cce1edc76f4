"""What a training method is: hyper-parameters, and one loss for each player."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.settings import Count

Info = dict[str, Tensor]
"""Detached scalars for the log."""

Loss = Callable[[Game, Tensor, Noise, Any], tuple[Tensor, Info]]
"""(game, x, noise, shared) -> (scalar loss, info): a pure function. x is a batch of data, `shared` what `prepare`
returned at the start of the iteration."""


@dataclass(frozen=True)
class Objective:
    """A training method. Subclass it as a frozen dataclass, one field per hyper-parameter, and implement `losses`."""

    energy_steps: Count = 1
    """Turns of the energy for each turn of the other players."""

    def losses(self) -> dict[str, Loss]:
        """One loss for each player, in the order of play."""
        raise NotImplementedError

    def prepare(self, game: Game, noise: Noise) -> Any:
        """What the turns of one iteration share, computed before the first of them; by default nothing."""
        return None

    def extra_players(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        """Networks that this method trains beside the energy and the generator; by default none."""
        return {}

    def rates(self) -> dict[str, float]:
        """Learning rates of extra players; one that is not named here learns at the generator's."""
        return {}

    def turns(self) -> list[str]:
        return [name for name in self.losses() for _ in range(self.energy_steps if name == "energy" else 1)]

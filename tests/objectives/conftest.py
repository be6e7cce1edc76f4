"""Games of given networks."""

import pytest
from torch import nn

from ebmbounds.game import Game, Network, Skeleton, buffers_of


@pytest.fixture
def play():
    """A game whose players have the parameters of the given modules, so that gradients reach those."""

    def make(batch_size: int, latent_dim: int, **modules: nn.Module) -> Game:
        networks = {
            name: Network(Skeleton.of(module), dict(module.named_parameters()), buffers_of(module))
            for name, module in modules.items()
        }
        return Game(networks, batch_size, latent_dim)

    return make

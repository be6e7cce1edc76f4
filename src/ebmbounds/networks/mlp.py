"""Multi-layer perceptrons: the appendix's networks for toy data and for MNIST."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated

from torch import nn

from ebmbounds.errors import BadInput
from ebmbounds.networks.pair import PairSettings
from ebmbounds.settings import Depth, Range, Width


@dataclass(frozen=True)
class ToyMLP(PairSettings):
    """The toy networks of the appendix: Linear, PReLU (and batch norm after it in the generator), twice, Linear."""

    width: Width = 100
    depth: Depth = 2
    """Hidden layers."""
    batch_norm: bool = True
    """In the generator, as in the appendix."""
    scaled_energy: bool = False
    """A bias-free Linear(1, 1) on top of the energy, as in the research code."""

    def build(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        check_width(self.width, latent_dim)
        hidden = [self.width] * self.depth
        energy = mlp([prod(data_shape), *hidden, 1], "linear prelu")
        if self.scaled_energy:
            energy.append(nn.Linear(1, 1, bias=False))
        order = "linear prelu norm" if self.batch_norm else "linear prelu"
        generator = mlp([latent_dim, *hidden, prod(data_shape)], order)
        return self.players(nn.Sequential(nn.Flatten(), *energy), shaped(generator, data_shape))


@dataclass(frozen=True)
class MNISTMLP(PairSettings):
    """The MNIST networks of the appendix; `shrink` divides every hidden width, for tests."""

    shrink: Annotated[int, Range(1, 16)] = 1

    def build(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        down = [width // self.shrink for width in (2000, 1000, 500, 250, 250)]
        up = [width // self.shrink for width in (500, 1000, 2000)]
        check_width(min(up), latent_dim)
        energy = mlp([prod(data_shape), *down, 1], "linear prelu")
        generator = mlp([latent_dim, *up, prod(data_shape)], "linear norm prelu").append(nn.Tanh())
        return self.players(nn.Sequential(nn.Flatten(), *energy), shaped(generator, data_shape))


def mlp(widths: list[int], order: str) -> nn.Sequential:
    """Linear layers between the given widths; all but the last followed by what `order` names."""
    layers: list[nn.Module] = []
    for i, o in pairwise(widths[:-1]):
        parts = {"linear": nn.Linear(i, o), "prelu": nn.PReLU(), "silu": nn.SiLU(), "norm": nn.BatchNorm1d(o)}
        layers += [parts[part] for part in order.split()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def shaped(generator: nn.Sequential, data_shape: tuple[int, ...]) -> nn.Sequential:
    return generator if len(data_shape) == 1 else generator.append(nn.Unflatten(1, data_shape))


def check_width(width: int, latent_dim: int) -> None:
    """Appendix B: a hidden layer narrower than the latent space makes the Jacobian rank-deficient."""
    if width < latent_dim:
        raise BadInput(
            f"a hidden layer of width {width} is below latent_dim={latent_dim}: the generator's Jacobian would lose "
            f"rank and its entropy be minus infinity; use a width of at least {latent_dim}."
        )

"""Network pairs: an energy and a generator that fit a data shape and a latent dimension."""

from typing import Protocol

from torch import nn

from ebmbounds.errors import unknown
from ebmbounds.networks.dcgan import DCGAN
from ebmbounds.networks.flow import SplineFlow
from ebmbounds.networks.mlp import MNISTMLP, ToyMLP
from ebmbounds.networks.resnet import ResNet


class Pair(Protocol):
    """Settings that build the two players."""

    def build(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]: ...


NETWORKS: dict[str, type[Pair]] = {
    "toy-mlp": ToyMLP,
    "spline-flow": SplineFlow,
    "mnist-mlp": MNISTMLP,
    "dcgan": DCGAN,
    "resnet": ResNet,
}


def network(name: str) -> type[Pair]:
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    return NETWORKS[name]


__all__ = ["DCGAN", "MNISTMLP", "NETWORKS", "Pair", "ResNet", "SplineFlow", "ToyMLP", "network"]

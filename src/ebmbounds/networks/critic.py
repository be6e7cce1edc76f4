"""A critic of pairs (x, z): MEG's statistics network."""

from math import prod

import torch
from torch import Tensor, nn

from ebmbounds.networks.dcgan import convolutions
from ebmbounds.networks.layout import FlattenPixels
from ebmbounds.networks.mlp import mlp


class Critic(nn.Module):
    """T(x, z), (n, 1): an MLP on features of x beside z. The features are x itself, or, for images whose sides are
    multiples of 8, latent_dim numbers found by the DCGAN energy's convolutions."""

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int, width: int) -> None:
        super().__init__()
        if len(data_shape) == 3 and data_shape[1] % 8 == 0 and data_shape[2] % 8 == 0:
            pixels = prod(data_shape[1:]) // 64
            self.features = nn.Sequential(
                *convolutions(data_shape[0], width), FlattenPixels(), nn.Linear(pixels * width, latent_dim)
            )
            self.head = mlp([2 * latent_dim, width, 1], "linear prelu")
        else:
            self.features = nn.Sequential(nn.Flatten())
            self.head = mlp([prod(data_shape) + latent_dim, width, width, 1], "linear prelu")

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.head(torch.cat((self.features(x), z), dim=1))

"""The DCGAN pair of the appendix for 32x32 images."""

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from ebmbounds.errors import BadInput
from ebmbounds.networks.activations import LeakyReLU, ReLU
from ebmbounds.networks.layout import FlattenPixels, PaddedConv2d, UnflattenPixels
from ebmbounds.networks.mlp import check_width
from ebmbounds.networks.pair import PairSettings
from ebmbounds.settings import Range


@dataclass(frozen=True)
class DCGAN(PairSettings):
    channels: Annotated[int, Range(8, 2**14)] = 512
    """Of the deepest layer, halved three times; the appendix has 512."""

    def build(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        if len(data_shape) != 3 or data_shape[1:] != (32, 32):
            raise BadInput(
                f"the DCGAN networks take 32x32 images, not data of shape {data_shape}: use another network."
            )
        check_width(16 * self.channels, latent_dim)
        return self.players(
            DCGANEnergy(data_shape[0], self.channels), DCGANGenerator(latent_dim, data_shape[0], self.channels)
        )


class DCGANEnergy(nn.Sequential):
    """Seven convolutions with LeakyReLU(0.1) from 32x32 down to 4x4, then a linear layer: (n, C, 32, 32) -> (n, 1)."""

    def __init__(self, image_channels: int, channels: int) -> None:
        super().__init__(*convolutions(image_channels, channels), FlattenPixels(), nn.Linear(16 * channels, 1))


def convolutions(image_channels: int, channels: int) -> list[nn.Module]:
    """Those of the energy: three of them halve the size, and the number of channels grows to the given one."""
    c1, c2, c3, c4 = channels // 8, channels // 4, channels // 2, channels
    layers: list[nn.Module] = []
    for i, o, kernel, stride in [
        (image_channels, c1, 3, 1),
        (c1, c1, 4, 2),
        (c1, c2, 3, 1),
        (c2, c2, 4, 2),
        (c2, c3, 3, 1),
        (c3, c3, 4, 2),
        (c3, c4, 3, 1),
    ]:
        layers += [PaddedConv2d(i, o, kernel, stride, 1), LeakyReLU(0.1)]
    return layers


class DCGANGenerator(nn.Sequential):
    """A linear layer to 4x4, three transposed convolutions with batch norm and ReLU to 32x32, a convolution, tanh."""

    def __init__(self, latent_dim: int, image_channels: int, channels: int) -> None:
        layers: list[nn.Module] = [nn.Linear(latent_dim, 16 * channels), UnflattenPixels(channels, 4)]
        for i in (channels, channels // 2, channels // 4):
            layers += [nn.ConvTranspose2d(i, i // 2, 4, 2, 1), nn.BatchNorm2d(i // 2), ReLU()]
        super().__init__(*layers, PaddedConv2d(channels // 8, image_channels, 3, 1, 1), nn.Tanh())

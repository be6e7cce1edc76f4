"""The ResNet pair of the appendix for 64x64 images (and, with one block less on each side, for 32x32)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from torch import Tensor, nn

from ebmbounds.errors import BadInput
from ebmbounds.networks.activations import LeakyReLU, ReLU
from ebmbounds.networks.layout import PaddedConv2d, UnflattenPixels
from ebmbounds.networks.mlp import check_width
from ebmbounds.networks.pair import PairSettings
from ebmbounds.settings import Range


@dataclass(frozen=True)
class ResNet(PairSettings):
    channels: Annotated[int, Range(16, 2**14)] = 1024
    """Of the deepest layer, halved four times; the appendix has 1024."""
    energy_batch_norm: bool = False
    """The appendix's table has batch norm in the energy; its text finds training more stable without."""

    def build(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        halvings = {32: 3, 64: 4}.get(data_shape[-1])
        if len(data_shape) != 3 or data_shape[1] != data_shape[2] or halvings is None:
            raise BadInput(f"the ResNet networks take 32x32 or 64x64 images, not data of shape {data_shape}.")
        check_width(16 * self.channels, latent_dim)
        widths = [self.channels >> k for k in range(halvings, -1, -1)]  # 64, 128, ..., 1024
        return self.players(
            ResNetEnergy(data_shape[0], widths, self.energy_batch_norm),
            ResNetGenerator(latent_dim, data_shape[0], widths[::-1]),
        )


class ResNetEnergy(nn.Module):
    """Residual blocks, each but the last halving the size, down to 4x4; LeakyReLU, sum over pixels, linear."""

    def __init__(self, image_channels: int, widths: list[int], batch_norm: bool) -> None:
        super().__init__()
        blocks: list[nn.Module] = [FirstDownBlock(image_channels, widths[0], batch_norm)]
        for k, (i, o) in enumerate(pairwise(widths)):
            blocks.append(DownBlock(i, o, batch_norm, halve=k < len(widths) - 2))
        self.blocks = nn.Sequential(*blocks)
        self.activation = LeakyReLU(0.1)
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.blocks(x)).sum((2, 3)))


def norm(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()


def conv3(i: int, o: int) -> nn.Conv2d:
    return PaddedConv2d(i, o, 3, padding=1)


class FirstDownBlock(nn.Module):
    def __init__(self, i: int, o: int, batch_norm: bool) -> None:
        super().__init__()
        self.left = nn.Sequential(conv3(i, o), norm(o, batch_norm), LeakyReLU(0.1), conv3(o, o), nn.AvgPool2d(2))
        self.right = nn.Sequential(nn.AvgPool2d(2), norm(i, batch_norm), PaddedConv2d(i, o, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class DownBlock(nn.Module):
    def __init__(self, i: int, o: int, batch_norm: bool, halve: bool) -> None:
        super().__init__()
        pool: nn.Module = nn.AvgPool2d(2) if halve else nn.Identity()
        half = [
            norm(i, batch_norm),
            LeakyReLU(0.1),
            conv3(i, o),
            norm(o, batch_norm),
            LeakyReLU(0.1),
            conv3(o, o),
        ]
        self.left = nn.Sequential(*half, pool)
        self.right = nn.Sequential(norm(i, batch_norm), nn.Conv2d(i, o, 1), pool)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class UpBlock(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.left = nn.Sequential(
            nn.BatchNorm2d(i),
            ReLU(),
            nn.Upsample(scale_factor=2),
            conv3(i, o),
            nn.BatchNorm2d(o),
            ReLU(),
            conv3(o, o),
        )
        self.right = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class ResNetGenerator(nn.Sequential):
    """A linear layer to 4x4, residual blocks that double the size, batch norm, ReLU, a convolution, tanh."""

    def __init__(self, latent_dim: int, image_channels: int, widths: list[int]) -> None:
        super().__init__(
            nn.Linear(latent_dim, 16 * widths[0]),
            UnflattenPixels(widths[0], 4),
            *(UpBlock(i, o) for i, o in pairwise(widths)),
            nn.BatchNorm2d(widths[-1]),
            ReLU(),
            conv3(widths[-1], image_channels),
            nn.Tanh(),
        )

"""Data sets that live whole on the device, from which batches are drawn there."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ebmbounds.noise import Noise


def to_unit_range(images: Tensor) -> Tensor:
    """uint8 images as floats in [-1, 1], without dequantisation, as in the paper."""
    return images.to(torch.get_default_dtype()) / 127.5 - 1


def to_pixels(x: Tensor) -> Tensor:
    """Images in [-1, 1] as uint8, rounded: the inverse of `to_unit_range`."""
    return ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def digest(samples: Tensor) -> str:
    """Tells one set of samples from another, whatever files it was read from."""
    sha = hashlib.sha256(f"{samples.dtype} {tuple(samples.shape)}".encode())
    sha.update(samples.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


@dataclass(frozen=True)
class ResidentImages:
    """uint8 images (N, C, H, W); batches are scaled to [-1, 1] and, where asked, mirrored at random."""

    images: Tensor
    flip: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def draw(self, noise: Noise, n: int) -> Tensor:
        index = noise("index").integers(self.images.shape[0], n, 1)[:, 0]
        x = to_unit_range(self.images[index])
        if not self.flip:
            return x
        mirrored = noise("flip").integers(2, n, 1, 1, 1) == 1
        return torch.where(mirrored, x.flip(-1), x)


@dataclass(frozen=True)
class ResidentRows:
    """Rows of numbers (N, ...), as they are."""

    rows: Tensor

    @classmethod
    def of(cls, array: np.ndarray) -> "ResidentRows":
        return cls(torch.as_tensor(array, dtype=torch.get_default_dtype()))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape[1:])

    def draw(self, noise: Noise, n: int) -> Tensor:
        return self.rows[noise("index").integers(self.rows.shape[0], n, 1)[:, 0]]

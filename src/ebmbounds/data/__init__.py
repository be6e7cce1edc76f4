"""Data sets by name: toy distributions with known densities, and real images and arrays on the device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch

from ebmbounds.data.registry import data_root, image_shape, load_images
from ebmbounds.data.resident import ResidentImages, ResidentRows, digest, to_unit_range
from ebmbounds.data.toy import TOYS, Toy
from ebmbounds.errors import BadInput
from ebmbounds.noise import Noise
from ebmbounds.settings import Range
from ebmbounds.step import Data


@dataclass(frozen=True)
class DataSettings:
    """How a data set is read."""

    flip: bool = False
    """Mirror images at random (the paper's only augmentation)."""
    image_size: Annotated[int, Range(0, 1024)] = 0
    """Side of the square that images of a folder are cropped and resized to; 0 keeps a set's own size."""


def training_data(name: str, settings: DataSettings, root: Path | str | None, device: torch.device | str) -> Data:
    """The training set of that name, on the device."""
    if name in TOYS:
        return TOYS[name]
    split = load_images(name, "train", data_root(root), size=settings.image_size or None)
    return ResidentImages(torch.from_numpy(split.images).to(device), settings.flip)


@dataclass(frozen=True)
class Unread:
    """A data set of files that were not read: a model needs no more of it than the shape."""

    shape: tuple[int, ...]

    def draw(self, noise: Noise, n: int) -> torch.Tensor:
        raise BadInput("the data set was not read along with the model: `training_data` reads it.")


def unread_data(name: str, settings: DataSettings) -> Data:
    """The data set of that name as far as it is known without its files."""
    return TOYS[name] if name in TOYS else Unread(image_shape(name, settings.image_size or None))


def data_digest(data: Data) -> str | None:
    """Of the samples that a data set holds; None where they come from a formula."""
    match data:
        case ResidentImages(images=samples) | ResidentRows(rows=samples):
            return digest(samples)
    return None


__all__ = [
    "TOYS",
    "Data",
    "DataSettings",
    "ResidentImages",
    "ResidentRows",
    "Toy",
    "Unread",
    "data_digest",
    "data_root",
    "load_images",
    "to_unit_range",
    "training_data",
    "unread_data",
]

"""Samples written to files: arrays, tables, grids and folders of pictures. Each takes (path, x), x (n, ...)."""

import io
from pathlib import Path

import numpy as np
import torch

from ebmbounds.errors import BadInput
from ebmbounds.plots import image_grid, save_image, scatter_picture
from ebmbounds.run import write_atomically


def write_npy(path: Path, x: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, x)
    write_atomically(path, buffer.getvalue())


def write_csv(path: Path, x: np.ndarray) -> None:
    """One sample a row, a column for each coordinate."""
    buffer = io.StringIO()
    rows = x.reshape(len(x), -1)
    header = ",".join(f"x{i}" for i in range(rows.shape[1]))
    np.savetxt(buffer, rows, delimiter=",", fmt="%.9g", header=header, comments="")
    write_atomically(path, buffer.getvalue().encode())


def write_png(path: Path, x: np.ndarray) -> None:
    """A square grid of images, or a scatter plot of points in the plane."""
    if x.ndim == 2 and x.shape[1] == 2:
        scatter_picture(path, torch.from_numpy(x))
    elif x.ndim == 4:
        save_image(path, image_grid(torch.from_numpy(x), columns=max(1, round(len(x) ** 0.5))))
    else:
        raise BadInput(f"samples of shape {x.shape[1:]} make no picture: use .npy or .csv.")


def write_folder(path: Path, x: np.ndarray) -> None:
    """A PNG for each image."""
    if x.ndim != 4:
        raise BadInput(f"samples of shape {x.shape[1:]} are no images: use .npy or .csv.")
    for i, image in enumerate(torch.from_numpy(x)):
        save_image(path / f"{i:06d}.png", image_grid(image[None], columns=1))

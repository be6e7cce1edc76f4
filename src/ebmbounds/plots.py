"""Pictures of models. matplotlib's object interface only, so that no window system or global state is touched."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ebmbounds.data.resident import to_pixels
from ebmbounds.data.toy import Toy
from ebmbounds.run import write_atomically


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    write_atomically(path, buffer.getvalue())


def density_picture(
    path: Path, toy: Toy, data: Tensor, samples: Tensor, energies: Tensor, log_partition: float, title: str
) -> None:
    """Data, samples, log-density and density of the normalised energy at temperature 1, side by side."""
    log_density = (-energies.double() - log_partition).T.numpy()  # rows are y, columns x
    figure = Figure(figsize=(16.4, 4.6), layout="constrained")
    axes = figure.subplots(1, 4)
    for axis, points, label in ((axes[0], data, "data"), (axes[1], samples, "samples of the generator")):
        axis.scatter(*points[:5000].T.numpy(), s=1.5, alpha=0.5, linewidths=0, color="#0b5394")
        axis.set_title(label)
    box = (-toy.extent, toy.extent, -toy.extent, toy.extent)
    style: dict[str, Any] = {"origin": "lower", "extent": box, "interpolation": "nearest"}
    high = float(log_density.max())
    image = axes[2].imshow(np.clip(log_density, high - 15, None), cmap="viridis", **style)
    axes[2].set_title("log-density (T = 1), top 15 nats")
    figure.colorbar(image, ax=axes[2], label="nats", shrink=0.8)
    density = np.exp(log_density)
    # A square-root colour scale up to the data's own peak: modes of a tenth of the height are still seen.
    colours = PowerNorm(0.5, vmin=0, vmax=float(toy.log_density(data).quantile(0.9).exp()))
    image = axes[3].imshow(density, cmap="magma", norm=colours, **style)
    axes[3].set_title("density (T = 1), root colour scale")
    figure.colorbar(image, ax=axes[3], label="per unit area", shrink=0.8)
    span = float(data.abs().max()) * 1.15
    for axis in axes:
        axis.set(xlim=(-span, span), ylim=(-span, span), aspect="equal")
    figure.suptitle(title)
    save_figure(figure, path)


def scatter_picture(path: Path, points: Tensor) -> None:
    """Points of the plane."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    axis = figure.subplots()
    axis.scatter(points[:, 0].numpy(), points[:, 1].numpy(), s=2, alpha=0.5, linewidths=0, color="#0b5394")
    axis.set_aspect("equal")
    save_figure(figure, path)


def image_grid(images: Tensor, columns: int) -> np.ndarray:
    """Images (n, C, H, W) in [-1, 1] as one uint8 array (rows * H, columns * W, 3)."""
    pixels = to_pixels(images.float().cpu())
    n, channels, height, width = pixels.shape
    pixels = pixels.expand(n, 3, height, width) if channels == 1 else pixels
    rows = -(-n // columns)
    blank = torch.zeros(rows * columns - n, 3, height, width, dtype=torch.uint8)
    grid = torch.cat((pixels, blank)).reshape(rows, columns, 3, height, width)
    return grid.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, 3).numpy()


def save_image(path: Path, pixels: np.ndarray, scale: int = 1) -> None:
    picture = Image.fromarray(pixels)
    if scale > 1:
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())

"""Pictures of a model of images: samples, ways between latents, samples in the order of their energy, histograms."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ebmbounds.data.resident import to_unit_range
from ebmbounds.model import Model
from ebmbounds.plots import image_grid, save_figure, save_image

SIDE = 8
"""Images a row of the sample grid, and rows."""
ROWS, STOPS = 8, 10
"""Ways between latents, and images on each."""
RANKS = 12
"""Images a row, and rows, of the samples in the order of their energy."""


def scale(model: Model) -> int:
    """Enlargement that makes images of 28 or 32 pixels visible."""
    return max(1, 64 // model.data_shape[-1])


@torch.no_grad()
def sample_picture(path: Path, model: Model, seed: int = 0) -> None:
    """64 samples; the same latents for every picture of a seed."""
    save_image(path, image_grid(model.sample(SIDE * SIDE, seed), SIDE), scale(model))


@torch.no_grad()
def interpolation_picture(path: Path, model: Model, seed: int = 0) -> None:
    """Each row goes from one latent to another by spherical interpolation: latents of a high-dimensional normal lie
    near a sphere, and the straight line would leave it."""
    ends = model.latents(2 * ROWS, seed)
    t = torch.linspace(0, 1, STOPS, device=model.device)
    z = torch.stack([spherical(a, b, t) for a, b in ends.split(2)])
    save_image(path, image_grid(model.generator(z.flatten(0, 1)), STOPS), scale(model))


def spherical(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """Points (k, d) at the shares t (k,) of the way from a to b (d,) along a great circle; lengths change evenly."""
    cosine = (a @ b / (a.norm() * b.norm())).clamp(-1, 1)
    angle = torch.arccos(cosine).clamp(min=1e-6)
    t = t[:, None]
    return (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / torch.sin(angle)


def energy_order_picture(path: Path, samples: NDArray[np.uint8], energies: NDArray[np.float64]) -> None:
    """Samples (n, C, H, W) at even steps of the order of their energies (n,), the lowest first."""
    order = np.argsort(energies, kind="stable")
    side = min(RANKS, int(len(order) ** 0.5))
    chosen = order[np.linspace(0, len(order) - 1, side * side).round().astype(int)]
    grid = image_grid(to_unit_range(torch.from_numpy(samples[chosen])), side)
    height = samples.shape[2]
    figure = Figure(figsize=(8, 8), layout="constrained")
    axis = figure.subplots()
    axis.imshow(grid, interpolation="nearest")
    first = energies[chosen[::side]]
    axis.set_yticks(height * (np.arange(side) + 0.5), [f"{value:.4g}" for value in first])
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.set_ylabel("energy of the row's first sample")
    axis.set_title(f"{side * side} of {len(order):,} samples in the order of their energy, lowest first")
    save_figure(figure, path)


def energy_histogram_picture(path: Path, energies: Mapping[str, NDArray[np.float64]]) -> None:
    """Histograms of the energies (n,) of several sets on one axis, from the 0.1% to the 99.9% quantile of each."""
    finite = {name: values[np.isfinite(values)] for name, values in energies.items()}
    shown = {name: values for name, values in finite.items() if len(values)}
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    if shown:
        ends = np.array([np.quantile(values, (0.001, 0.999)) for values in shown.values()])
        low, high = ends[:, 0].min(), ends[:, 1].max()
        bins = np.linspace(low, high, 81) if low < high else np.linspace(low - 1, low + 1, 81)
        for name, values in shown.items():
            label = f"{name}: mean {values.mean():.4g}, std {values.std():.3g}"
            axis.hist(values, bins.tolist(), density=True, histtype="step", linewidth=1.5, label=label)
        figure.legend(loc="outside upper center", ncols=2)
    axis.set_xlabel("energy (the lower, the more likely)")
    axis.set_ylabel("share per unit of energy")
    save_figure(figure, path)

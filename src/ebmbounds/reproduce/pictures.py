"""The pictures of reproductions: densities side by side, our figures beside the paper's, curves over training."""

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import imread

from ebmbounds.data.toy import TOYS, Toy
from ebmbounds.evaluated import DensityMap, read_density
from ebmbounds.noise import noise
from ebmbounds.plots import save_figure
from ebmbounds.run import Run, write_atomically

Draw = Callable[[Path, str, dict[str, Any], Path], None]
"""(file, title, summary, folder of the run folders)."""

Panel = tuple[str, DensityMap | None]
"""A label and a density, where there is one."""

OURS, PAPER = "#0b5394", "#b45f06"
ESTIMATORS = {
    "entropy_exact": ("exact", "black"),
    "entropy_bound_few_steps": ("bound, few LOBPCG steps", "tab:red"),
    "entropy_bound_exact_s1": ("bound, exact s1", "tab:green"),
    "entropy_hutchinson": ("Hutchinson", "tab:blue"),
}
"""Labels, and the colours of the paper's figure."""
ACROSS = 5
"""Grids of samples in a row."""
NO_DENSITY = {"wgan-0gp": "critic", "dcgan": "-logit", "sngan": "-logit"}
"""What stands for the energy in methods that train none."""


def densities(path: Path, title: str, summary: dict[str, Any], runs: Path) -> None:
    """For each data set a row of densities and one of log-densities: the data's own, then each method's, its energy
    normalised by quadrature at temperature 1. A row has one colour scale, fixed by the data."""
    by_dataset: dict[str, dict[str, dict[str, Any]]] = {}
    for run in summary["runs"]:
        dataset, _, method = run["experiment"].partition("/")
        by_dataset.setdefault(dataset, {}).setdefault(method, run)  # the first seed
    methods = list(dict.fromkeys(method for found in by_dataset.values() for method in found))
    height, width = 2 * len(by_dataset), 1 + len(methods)
    figure = Figure(figsize=(2.1 * width + 0.8, 2.3 * height + 0.6), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False)
    for row, (dataset, found) in enumerate(by_dataset.items()):
        panels: list[Panel] = [("data", true_density(TOYS[dataset]))]
        panels += [(label(method, found.get(method)), density_of(found.get(method), runs)) for method in methods]
        density_rows(figure, axes[2 * row : 2 * row + 2], dataset, panels)
    finish(figure, title, path)


def finish(figure: Figure, title: str, path: Path) -> None:
    figure.suptitle("\n".join(textwrap.wrap(title, width=int(11 * figure.get_figwidth()))), fontsize=10)
    save_figure(figure, path)


def label(method: str, run: dict[str, Any] | None) -> str:
    stand_in = NO_DENSITY.get(method.partition("@")[0])
    name = f"{method} ({stand_in})" if stand_in else method
    return f"{name}\nNLL {run['figures']['nll']:.2f}" if run else name


def true_density(toy: Toy) -> DensityMap:
    """Of the data themselves, in the cells that a model's has."""
    points, _ = toy.grid()
    energies = -torch.cat([toy.log_density(part) for part in points.split(65_536)])
    data = toy.draw(noise(1), 5000)
    return DensityMap.of(toy, energies.reshape(toy.resolution, toy.resolution), 0.0, data, data)


def density_of(run: dict[str, Any] | None, runs: Path) -> DensityMap | None:
    """As `evaluate` left it; None where there is no such run."""
    return None if run is None else read_density(Run(runs / run["run"]))


def density_rows(figure: Figure, axes: Any, dataset: str, panels: Sequence[Panel]) -> None:
    """Densities in the first row of axes, log-densities in the second; the first panel, the data's, sets the scale."""
    truth = panels[0][1]
    assert truth is not None
    high, span = float(truth.log_density.max()), float(truth.axis[-1])
    # A square-root scale, on which modes of a tenth of the height are still seen.
    scales = (("magma", PowerNorm(0.5, 0, np.exp(high))), ("viridis", Normalize(high - 12, high)))
    for (colours, norm), line, name in zip(scales, axes, ("density", "log-density"), strict=True):
        for axis, (text, found) in zip(line, panels, strict=True):
            axis.set(xlim=(-span, span), ylim=(-span, span), aspect="equal", xticks=[], yticks=[])
            if name == "density":
                axis.set_title(text, fontsize=9)
            if found is None:
                axis.text(0, 0, "not at hand", ha="center", va="center")
                continue
            shown = np.exp(found.log_density) if name == "density" else found.log_density
            edge = found.axis[-1] + (found.axis[1] - found.axis[0]) / 2
            # rows of an image are y, columns x
            image = axis.imshow(
                shown.T, colours, norm, origin="lower", extent=(-edge, edge, -edge, edge), interpolation="nearest"
            )
        line[0].set_ylabel(f"{dataset}\n{name}")
        unit = "per unit area" if name == "density" else "nats"
        figure.colorbar(image, ax=line.tolist(), label=unit, fraction=0.02, pad=0.01)


def comparison(path: Path, title: str, summary: dict[str, Any], runs: Path) -> None:
    """A panel for each figure that the paper has: our mean and spread over seeds beside the paper's."""
    keys = compared(summary["rows"])
    figure = Figure(figsize=(3.6 * len(keys) + 1.2, 0.5 * len(summary["rows"]) + 1.6), layout="constrained")
    compare(figure, summary["rows"])
    finish(figure, title, path)


def comparison_with_samples(path: Path, title: str, summary: dict[str, Any], runs: Path) -> None:
    """The same, and below it the first samples of each experiment, not chosen. The grids are kept beside the picture,
    for when their run folders are elsewhere."""
    rows, width = summary["rows"], 3.6 * len(compared(summary["rows"])) + 1.2
    first = {run["label"]: run for run in reversed(summary["runs"])}  # of each experiment the first seed
    heights = [0.5 * len(rows) + 1.6, math.ceil(len(rows) / ACROSS) * (width / ACROSS + 0.3)]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=heights)  # type: ignore[misc]
    compare(above, rows)
    for axis in below.subplots(math.ceil(len(rows) / ACROSS), ACROSS, squeeze=False).flat:
        axis.axis("off")
    for axis, row in zip(below.axes, rows, strict=False):
        axis.set_title(row["label"], fontsize=9)
        run = first[row["label"]]["run"]
        kept = path.parent / "samples" / f"{Path(run).name}.png"
        if (samples := runs / run / "samples.png").exists():
            write_atomically(kept, samples.read_bytes())
        elif samples.parent.exists():  # what is kept is of a run before this one
            kept.unlink(missing_ok=True)
        if kept.exists():
            axis.imshow(imread(kept), interpolation="nearest")
        else:
            axis.text(0.5, 0.5, "not at hand", ha="center", va="center")
    finish(figure, title, path)


def compared(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The figures that get a panel."""
    return list(dict.fromkeys(key for row in rows for key in row["paper"])) or list(rows[0]["figures"])


def compare(figure: FigureBase, rows: Sequence[dict[str, Any]]) -> None:
    keys = compared(rows)
    panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    for axis, key in zip(panels, keys, strict=True):
        intervals(axis, [row["figures"].get(key) for row in rows], -0.12, OURS, "ours")
        intervals(axis, [row["paper"].get(key) for row in rows], 0.12, PAPER, "paper")
        floors = [row["figures"][f"{key}_floor"][0] for row in rows if f"{key}_floor" in row["figures"]]
        if floors:
            axis.axvline(float(np.mean(floors)), color="gray", linestyle="--", label="a perfect sampler")
        axis.margins(x=0.15)
        values = [row[part].get(key) for row in rows for part in ("figures", "paper")]
        means = [value[0] for value in values if isinstance(value, list)] or [0.0]
        if min(means) > 0 and max(means) / min(means) > 30:  # a spread may well reach below 0: it is cut at the edge
            axis.set_xscale("log", nonpositive="clip")
            axis.set_xlim(min(means) / 3, 3 * max(means))
        axis.set_xlabel(key)
        axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def intervals(axis: Axes, values: Sequence[Any], shift: float, colour: str, name: str) -> None:
    """Means with their spread, [mean] or [mean, spread] each; what was not measured (text) or not given is left out."""
    given = [(i + shift, value[0], [*value, 0.0][1]) for i, value in enumerate(values) if isinstance(value, list)]
    if given:
        y, mean, error = zip(*given, strict=True)
        axis.errorbar(mean, y, xerr=error, fmt="o", color=colour, capsize=3, markersize=5, label=name)


def curves(path: Path, title: str, summary: dict[str, Any], runs: Path) -> None:
    """Entropy by every estimator over training; a line for each seed."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for i, run in enumerate(summary["runs"]):
        for key, (name, colour) in ESTIMATORS.items():
            values = run["curves"]
            axis.plot(values["step"], values[key], "o-", color=colour, markersize=3, label=None if i else name)
    axis.set(xlabel="iteration", ylabel="entropy of the generator, nats")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(ESTIMATORS))
    finish(figure, title, path)

"""Both bounds around the negative log-likelihood over training, the paper's Figure 1 with numbers.

    python benchmarks/sandwich.py docs/images/sandwich.png

The lower bound (Eq. 4) with exact entropy, with the exact smallest singular value (Eq. 11), and with the s_1 of a few
LOBPCG steps; the upper bound (Eq. 13) with measured constants; and the likelihood itself, by quadrature in the plane,
by annealed importance sampling above. Where d < D the same figures are of a density on a curve, and bound nothing.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from density import chain
from matplotlib.figure import Figure
from torch import Tensor

from ebmbounds import spectra
from ebmbounds.annealing import Annealing
from ebmbounds.bounds import base_log_density
from ebmbounds.data import Data
from ebmbounds.data.resident import ResidentRows
from ebmbounds.data.toy import TOYS, Toy
from ebmbounds.evaluate import bound_figures
from ebmbounds.execution import plain
from ebmbounds.experiments import experiment
from ebmbounds.metrics.toy import grid_energies, normalise
from ebmbounds.model import Model
from ebmbounds.noise import noise
from ebmbounds.plots import save_figure
from ebmbounds.session import build_step

LOOKS = 5
"""Checkpoints, at steps that double."""
BROAD = 1.5
"""Standard deviation of the Gaussian from which annealing starts, for data of unit spread."""
CURVES = {
    "upper": ("upper, Eq. 13, measured constants", "tab:red", -10),
    "lower_exact": ("lower, exact entropy (Eq. 4)", "tab:blue", 7),
    "lower_s1": ("lower, exact s1 (Eq. 11)", "tab:green", -11),
    "lower_lobpcg": ("lower, s1 by few LOBPCG steps", "tab:orange", -2),
}
"""Labels, colours, and by how many points the last figure is moved, since curves may meet."""


def curved_rows() -> Data:
    """Eight dimensions of the benchmark's chain, each of unit spread."""
    X, _ = chain(10_000, 8, np.random.default_rng(0))
    return ResidentRows(torch.tensor(X / X.std(0), dtype=torch.float32))


@dataclass(frozen=True)
class Panel:
    title: str
    experiment: str
    overrides: dict[str, Any]
    steps: int
    data: Callable[[], Data] = lambda: TOYS["25gaussians"]


PANELS = (
    Panel("25 Gaussians, the paper's game (d = D = 2)", "25gaussians/ebm-bb@paper", {}, 1500),
    Panel("25 Gaussians, multi-sample game (d = D = 2)", "25gaussians/ebm-bb@quick", {}, 800),
    Panel(
        "chain of 8, the paper's game, invertible generator (d = D = 8)",
        "25gaussians/ebm-bb@paper",
        {"latent_dim": 8, "network": "spline-flow", "lobpcg_steps": 1, "lr_energy": 5e-4, "lr_generator": 5e-4},
        160,
        curved_rows,
    ),
    Panel(
        "25 Gaussians, d = 1 < D = 2: on the manifold, no bounds",
        "25gaussians/ebm-bb@paper",
        {"latent_dim": 1},
        600,
    ),
)


def figures(model: Model, data: Data, lobpcg_steps: int) -> dict[str, float]:
    found = bound_figures(model, data, lobpcg_steps)
    entropy, lower = found["entropy"], found["lower_bound"]
    energy = float(model.energies(data.draw(noise(1), 10_000)).double().mean())
    result = {
        "nll": energy + log_partition(model, data),
        "lower_exact": lower,
        "lower_s1": lower - entropy["exact"] + entropy["bound_exact_s1"],
        "lower_lobpcg": lower - entropy["exact"] + entropy["bound_few_steps"],
    }
    return result | ({"upper": found["upper_bound"]} if "upper_bound" in found else {})


def log_partition(model: Model, data: Data) -> float:
    if isinstance(data, Toy):
        return normalise(grid_energies(model.energy, data), data).log_partition
    D = data.shape[0]

    def log_q(x: Tensor) -> Tensor:
        return base_log_density(x / BROAD) - D * float(np.log(BROAD))

    return Annealing(model.energy, log_q, temperatures=100).forward(BROAD * noise(2).normal(300, D)).value


def train(panel: Panel, steps: int) -> list[dict[str, float]]:
    """The figures at every look."""
    spec = experiment(panel.experiment, panel.overrides)
    data = panel.data()
    step = build_step(spec, data, seed=0, device="cpu")
    state, advance = step.initial_state(0), plain(step)
    looks = sorted({max(steps >> i, 1) for i in range(LOOKS)})
    records = []
    for number in range(1, steps + 1):
        advance(state)
        if number in looks:
            record = figures(Model.of(step, state), data, spec.objective.lobpcg_steps)
            records.append({"step": number, **record})
    return records


def draw(path: Path, found: list[tuple[Panel, list[dict[str, float]]]]) -> None:
    figure = Figure(figsize=(13, 8.5), layout="constrained")
    for axis, (panel, records) in zip(figure.subplots(2, -(-len(found) // 2)).flat, found, strict=False):
        steps = [record["step"] for record in records]
        for key, (label, colour, shift) in CURVES.items():
            if key in records[0]:
                gaps = [record[key] - record["nll"] for record in records]
                axis.plot(steps, gaps, "o-", color=colour, markersize=3, label=label)
                place = {"xytext": (5, shift), "textcoords": "offset points"}
                axis.annotate(f"{gaps[-1]:+.2f}", (steps[-1], gaps[-1]), fontsize=8, color=colour, **place)
        axis.axhline(0, color="black", label="negative log-likelihood")
        for record in records:
            axis.annotate(f"{record['nll']:.1f}", (record["step"], 0), (0, 3), textcoords="offset points", fontsize=7)
        axis.set(title=panel.title, xlabel="iteration", ylabel="nats above the negative log-likelihood", xscale="log")
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_xticks(steps, [str(step) for step in steps])
        axis.minorticks_off()
        axis.margins(0.12)
        axis.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save_figure(figure, path, dpi=90)


def excess(d: int, condition: float, steps: int) -> float:
    """By how many nats d log s_1 of a few LOBPCG steps is above half log det J'J, for a linear generator whose singular
    values fall from 1 to 1/condition by equal factors. Where it is positive, the lower bound is broken."""
    values = torch.logspace(0, -float(np.log10(condition)), d, dtype=torch.float64)
    z, start = noise(0).normal(200, d).double(), noise(1).normal(200, d).double()
    estimate = spectra.smallest_singular_value(lambda z: z * values, z, steps, start, preconditioner_steps=0)[0]
    return float(d * estimate.log().mean() - values.log().sum())


def main(path: Path) -> None:
    """Print how far few LOBPCG steps break the bound; train every panel, print a table of each, and draw them."""
    torch.set_num_threads(1)
    print("| d | condition | 1 step | 2 steps | 4 steps | 8 steps |\n|---|---|---|---|---|---|")
    for d, condition in product((8, 32, 128), (10, 100, 1000)):
        print(f"| {d} | {condition} | {' | '.join(f'{excess(d, condition, steps):+.1f}' for steps in (1, 2, 4, 8))} |")
    found = []
    for panel in PANELS:
        records = train(panel, panel.steps)
        found.append((panel, records))
        print(f"\n{panel.title}: `{panel.experiment}` {panel.overrides}, seed 0\n")
        print(f"| {' | '.join(records[0])} |\n|{'---|' * len(records[0])}")
        for record in records:
            print(f"| {record['step']:.0f} | {' | '.join(f'{v:.2f}' for v in [*record.values()][1:])} |", flush=True)
    draw(path, found)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "sandwich.png"))

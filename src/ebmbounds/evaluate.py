"""From a run to metrics.json and pictures: what fits the data set, with the protocol of each figure."""

import dataclasses
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ebmbounds import __version__, bounds
from ebmbounds.data import Data
from ebmbounds.data.toy import Gaussians, Toy
from ebmbounds.evaluated import DensityMap, write_density, write_energies
from ebmbounds.metrics import toy as metrics
from ebmbounds.metrics.entropy import entropy_estimates
from ebmbounds.model import Model
from ebmbounds.noise import noise
from ebmbounds.partition import from_log_weights
from ebmbounds.plots import density_picture
from ebmbounds.refine import importance_resampled
from ebmbounds.run import Run, write_json
from ebmbounds.step import State, Step

if TYPE_CHECKING:
    from ebmbounds.session import Session

SAMPLES = 10_000
LATENTS = 2_000
"""Latents at which entropies and bounds are taken."""


def watch(step: Step, run: Run, state: State) -> dict[str, float]:
    """The figures and the picture that training takes along the way."""
    if isinstance(step.data, Toy):
        # Toy figures are taken on the CPU, wherever the run is: they are small, and its quadratures are in double.
        model = Model.of(step, pytree.tree_map(lambda t: t.cpu(), state))
        figures = toy_figures(model, step.data)
        name = f"pictures/step_{int(state['step']):07d}.png"
        picture(run.path / name, run, model, step.data, figures, f"step {int(state['step'])}")
        bound = bound_figures(model, step.data, getattr(step.objective, "lobpcg_steps", 2))
        figures |= {"upper_bound": bound["upper_bound"]} if "upper_bound" in bound else {}
        kept = ("nll", "nll_best_temperature", "upper_bound", "modes", "good_fraction")
        return {key: figures[key] for key in kept if key in figures}
    from ebmbounds.image_evaluation import watch_images

    return watch_images(Model.of(step, state), step, run, int(state["step"]))


def evaluate(run: Run, session: "Session", model: Model, **options: Any) -> dict[str, Any]:
    """Every figure that fits the run's data set, written to metrics.json beside the pictures."""
    start = time.perf_counter()
    if isinstance(session.step.data, Toy):
        result = evaluate_toy(run, model, session.step.data, session.experiment.objective)
    else:
        from ebmbounds.image_evaluation import evaluate_images

        result = evaluate_images(run, session, model, **options)
    result |= {
        "experiment": session.experiment.name,
        "iterations": model.iterations,
        "versions": {
            "ebmbounds": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(time.perf_counter() - start, 2),
    }
    write_json(run.path / "metrics.json", result)
    return result


def evaluate_toy(run: Run, model: Model, toy: Toy, objective: Any) -> dict[str, Any]:
    figures = toy_figures(model, toy) | refined_figures(model, toy)
    figures |= bound_figures(model, toy, getattr(objective, "lobpcg_steps", 2))
    picture(run.path / "density.png", run, model, toy, figures, run.path.name)
    write_arrays(run, model, toy, figures["log_partition"])
    figures["protocol"] = {
        "nll": "energy normalised by the midpoint rule on a "
        f"{toy.resolution}^2 grid over [-{toy.extent:g}, {toy.extent:g}]^2; "
        f"mean over {SAMPLES} fresh data points (seed 1); border_mass is the share in a ring, "
        "a fortieth of the box on each side",
        "data_entropy": "of the known density, by quadrature",
        "modes": f"modes with at least 0.5% of {SAMPLES} samples (seed 0) within 4 sigma",
        "good_fraction": f"of {SAMPLES} samples: within 4 sigma of a mode, or true log-density above "
        "the data's 1% quantile",
        "good_fraction_refined": "the same of samples of the energy: generated ones, resampled with weights "
        "exp(-E(x)) / p_g(x); so modes_refined",
        "log_partition_importance": f"by the same weights, {10 * SAMPLES} samples; standard error to first order",
        "entropy": f"at {LATENTS} latents (seed 3), the same for every estimator; few_steps: the run's lobpcg_steps",
        "lower_bound": "Eq. 4 with exact entropy, a bound where latent_dim = data dimension",
        "upper_bound": "Eq. 13, p = 2, exact entropy and score; M the diameter of the samples and m = sup - inf of "
        "|grad log f|^2 over them: measured constants, not guaranteed ones",
    }
    return figures


def toy_figures(model: Model, toy: Toy) -> dict[str, Any]:
    """Likelihood in nats and sample quality."""
    energies = metrics.grid_energies(model.energy, toy)
    data = toy.draw(noise(1), SAMPLES)
    samples = model.sample(SAMPLES)
    data_energy = float(model.energies(data).double().mean())
    plain = metrics.normalise(energies, toy)
    temperature = metrics.best_temperature(energies, data_energy, toy)
    best = metrics.normalise(energies, toy, temperature)
    figures: dict[str, Any] = {
        "nll": data_energy + plain.log_partition,
        "nll_best_temperature": data_energy / temperature + best.log_partition,
        "best_temperature": temperature,
        "data_entropy": toy.entropy(),
        "log_partition": plain.log_partition,
        "border_mass": plain.border_mass,
        "normalisable": plain.normalisable,
        "good_fraction": float(metrics.good_samples(samples, toy, data).double().mean()),
    }
    if isinstance(toy, Gaussians):
        figures["modes"] = metrics.modes_found(samples, toy)
        figures["modes_in_data"] = len(toy.centres)
    return figures


def refined_figures(model: Model, toy: Toy) -> dict[str, Any]:
    """log Z and sample quality by importance weights on an invertible generator's samples; else nothing."""
    if not model.generator_network.invertible:
        return {}
    x, log_p = model.sample_with_density(10 * SAMPLES)
    data, samples = toy.draw(noise(1), SAMPLES), importance_resampled(model, SAMPLES)
    figures: dict[str, Any] = {
        "log_partition_importance": dataclasses.asdict(from_log_weights(-model.energies(x) - log_p)),
        "good_fraction_refined": float(metrics.good_samples(samples, toy, data).double().mean()),
    }
    if isinstance(toy, Gaussians):
        figures["modes_refined"] = metrics.modes_found(samples, toy)
    return figures


def bound_figures(model: Model, data_set: Data, lobpcg_steps: int) -> dict[str, Any]:
    """Both bounds of the NLL and the entropy estimates, on the same latents, in double precision."""
    z = noise(3).normal(LATENTS, model.latent_dim).double()
    g, energy = model.generator_network.double().frozen, model.energy_network.double().frozen
    d = model.latent_dim
    start = noise(4).normal(LATENTS, d).double()
    probes = noise(5).normal(8 * LATENTS, d).double().reshape(8, LATENTS, d)
    entropy = entropy_estimates(g, z, start, probes, lobpcg_steps)
    with torch.no_grad():
        data = data_set.draw(noise(1), SAMPLES).double()
        x = g(z)
        lower = bounds.lower_bound(energy(data), energy(x), torch.tensor(entropy["exact"], dtype=torch.float64))
        figures: dict[str, Any] = {"entropy": entropy, "lower_bound": float(lower)}
        if x.flatten(1).shape[1] == d:
            gap = bounds.score_gap(lambda x: energy(x).flatten(), g, z)
            diameter = float(torch.cdist(x[:1000], x[:1000]).max())
            spread = float(gap.max() - gap.min())
            figures["upper_bound"] = float(bounds.upper_bound(lower, gap, diameter, spread, root=True))
            figures["upper_bound_constants"] = {
                "M": diameter,
                "m": spread,
                "mean_score_gap": float(gap.mean()),
            }
    return figures


def write_arrays(run: Run, model: Model, toy: Toy, log_partition: float) -> None:
    data, samples = toy.draw(noise(1), SAMPLES), model.sample(SAMPLES)
    write_energies(run, {"test": model.energies(data).cpu().numpy(), "samples": model.energies(samples).cpu().numpy()})
    grid = metrics.grid_energies(model.energy, toy)
    write_density(run, DensityMap.of(toy, grid, log_partition, data, samples))


def picture(path: Path, run: Run, model: Model, toy: Toy, figures: dict[str, Any], label: str) -> None:
    title = f"{label}: NLL {figures['nll']:.2f} nats at T = 1 (data {figures['data_entropy']:.2f})"
    if "modes" in figures:
        title += f", {figures['modes']} of {figures['modes_in_data']} modes"
    title += f", {figures['good_fraction']:.0%} good samples"
    energies = metrics.grid_energies(model.energy, toy)
    density_picture(path, toy, toy.draw(noise(1), 5000), model.sample(5000), energies, figures["log_partition"], title)

"""The examples and benchmarks that stand alone still run."""

import math
import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from ebmbounds import bounds
from ebmbounds.errors import BadInput
from ebmbounds.execution import plain
from ebmbounds.experiments import experiment
from ebmbounds.model import Model
from ebmbounds.session import Session

ROOT = Path(__file__).parents[1]


def test_two_moons_prints_its_bounds(capsys):
    lower, nll = runpy.run_path(str(ROOT / "examples/two_moons.py"))["main"](steps=100)
    assert math.isfinite(lower) and math.isfinite(nll)
    assert lower <= nll + 0.1  # Monte Carlo error of the generated energies
    assert "lower bound" in capsys.readouterr().out


def test_an_ordinary_backward_reaches_every_parameter_that_shapes_the_jacobian():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 5))
    bounds.entropy_lower_bound(generator, torch.randn(16, 3), steps=2).backward()
    for name, parameter in generator.named_parameters():
        if name != "2.bias":  # a shift: J does not depend on it
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("kind", ["mlp", "convolutional"])
def test_the_table_of_lobpcg_shows_ratios_above_one(kind):
    module = runpy.run_path(str(ROOT / "benchmarks/lobpcg_accuracy.py"))
    torch.manual_seed(0)
    cells = module["row"](kind, 8, module[kind](8), 10).strip("| ").split(" | ")
    ratios = [float(cell) for cell in cells[4:]]
    assert all(ratio > 0.999 for ratio in ratios)
    assert ratios == sorted(ratios, reverse=True)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """In a folder of its own, beside the scripts, which may stop before they converge."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def script(path: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / path))


def test_a_csv_becomes_a_density(quick, capsys):
    rows = np.random.default_rng(0).normal(size=(400, 2)) * [1.0, 100.0]
    np.savetxt("rows.csv", rows, delimiter=",", header="a,b", comments="")
    model = script("examples/density_from_csv.py")["main"]("rows.csv", "picture.png", max_steps=20)
    assert Path("picture.png").stat().st_size > 10_000
    truth = math.log(100) + math.log(2 * math.pi) + 1
    assert -model.score(rows) == pytest.approx(truth, abs=0.3)
    assert "strangest row" in capsys.readouterr().out


def test_strange_digits_are_found_better_than_by_chance(quick, capsys):
    auroc = script("examples/anomalies_in_digits.py")["main"]("picture.png", max_steps=5)
    assert 0.55 < auroc <= 1
    assert Path("picture.png").stat().st_size > 10_000
    assert f"{auroc:.3f}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["mixture", "chain"])
def test_the_benchmark_knows_the_density_of_what_it_draws(quick, kind):
    """The mean of q / p over samples of p is 1, for a q inside p's support."""
    X, log_p = script("benchmarks/density.py")["GENERATED"][kind](200_000, 2, np.random.default_rng(0))
    log_q = -0.5 * ((X - X[0]) ** 2).sum(1) / 0.01 - np.log(2 * np.pi * 0.01)
    assert np.exp(log_q - log_p).mean() == pytest.approx(1, abs=0.15)


def test_dequantised_pixels_round_down_to_themselves(quick):
    X = np.random.default_rng(0).integers(17, size=(50, 4)).astype(float)
    X[:, 3] = 0  # a column without steps gets one of length 1
    noisy = script("benchmarks/density.py")["dequantised"](X, np.random.default_rng(1))
    assert np.array_equal(np.floor(noisy), X)
    assert len(np.unique(noisy)) == noisy.size


@pytest.mark.parametrize("panel, bounded", [(0, True), (3, False)])
def test_the_sandwich_has_its_parts_in_order(quick, panel, bounded):
    module = script("benchmarks/sandwich.py")
    chosen = module["PANELS"][panel]
    records = module["train"](chosen, 2)
    for record in records:
        assert record["lower_s1"] <= record["lower_exact"] + 1e-9
        assert record["lower_s1"] <= record["lower_lobpcg"] + 1e-9
        assert ("upper" in record) == bounded
        assert not bounded or record["lower_exact"] <= record["nll"] <= record["upper"]
    module["draw"](Path("picture.png"), [(chosen, records)])
    assert Path("picture.png").stat().st_size > 10_000


def test_few_steps_of_lobpcg_can_break_the_bound_and_many_cannot(quick):
    excess = script("benchmarks/sandwich.py")["excess"]
    assert excess(32, 1000, 1) > 1 > excess(32, 1000, 8)
    assert excess(8, 10, 8) < 0


@pytest.mark.parametrize("name", ["25gaussians/wgan-0gp@quick", "25gaussians/ebm-bb@quick", "25gaussians/meg@quick"])
def test_a_search_trains_each_configuration_as_if_alone(double, name):
    """In double precision: an energy's own constant has no gradient but rounding, which Adam blows up."""
    module = script("benchmarks/search.py")
    shared = {"steps": "3", "compile": "off", "ema": "0.9", "lr_decay_steps": "4"}
    chosen: list[dict[str, str]] = [{}, {"lr_energy": "1e-3", "beta1": "0.5"}, {"beta2": "0.95", "penalty_weight": "2"}]
    specs = [experiment(name, shared | each) for each in chosen]
    rows = module["search"](specs, lambda model: {"model": model}, "cpu")
    for spec, row in zip(specs, rows, strict=True):
        step = Session.build(spec, 0, "cpu", None).step
        state = step.initial_state(0)
        for _ in range(3):
            plain(step)(state)
        alone = Model.of(step, state)
        for network in ("energy_network", "generator_network"):
            for key, p in getattr(alone, network).parameters.items():
                torch.testing.assert_close(getattr(row["model"], network).parameters[key], p)
        assert row["log"]["loss_energy"] == pytest.approx(float(state["log"]["loss_energy"]) / 3, rel=1e-6)


def test_a_search_measures_at_every_checkpoint():
    """The state of that moment, and the log since the one before."""
    module = script("benchmarks/search.py")
    spec = experiment("25gaussians/wgan-0gp@quick", {"steps": "5", "checkpoint_every": "2", "compile": "off"})
    rows = list(module["search"]([spec], lambda model: {"iterations": model.iterations}, "cpu"))
    assert [(row["step"], row["iterations"]) for row in rows] == [(2, 2), (4, 4), (5, 5)]
    step = Session.build(spec, 0, "cpu", None).step
    state = step.initial_state(0)
    losses = []
    for _ in range(5):
        state, info = step({key: value for key, value in state.items() if key != "log"})
        losses.append(float(info["loss_energy"]))
    expected = [sum(losses[:2]) / 2, sum(losses[2:4]) / 2, losses[4]]
    assert [row["log"]["loss_energy"] for row in rows] == pytest.approx(expected, rel=1e-4)


def test_a_search_goes_on_after_a_configuration_that_diverged():
    chosen = ({"lr_energy": "1e30"}, {"lr_energy": "1e-3"})
    shared = {"steps": "6", "checkpoint_every": "3", "compile": "off"}
    specs = [experiment("25gaussians/wgan-0gp@quick", shared | each) for each in chosen]
    rows = list(script("benchmarks/search.py")["search"](specs, lambda model: {"measured": True}, "cpu"))
    assert "loss_energy" in rows[0]["diverged"]
    assert [(row["settings"]["lr_energy"], row["step"], row.get("measured")) for row in rows] == [
        (1e30, 3, None),
        (1e-3, 3, True),
        (1e-3, 6, True),
    ]


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [("25gaussians/wgan-0gp@quick", "energy_steps", "12"), ("cifar10/ebm-bb@quick", "entropy_share", ("0.5", "1"))],
)
def test_a_search_refuses_what_one_compiled_iteration_cannot_serve(name, key, values):
    specs = [experiment(name, {key: value}) for value in values]
    with pytest.raises(BadInput, match=f"{key} cannot differ"):
        next(script("benchmarks/search.py")["search"](specs, lambda model: {}, "cpu"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["steps=4"], "no configuration"),
        (["steps=4", "--"], "no configuration"),
        (["steps4", "--", "beta2=0.9"], "'steps4' is no setting"),
        (["--", "beta=0.9"], "beta"),
    ],
)
def test_a_search_says_what_is_wrong_with_its_arguments(arguments, told):
    with pytest.raises(BadInput, match=told):
        script("benchmarks/search.py")["experiments"]("25gaussians/wgan-0gp@quick", arguments)

"""Runs that share their iterations: each ends as it would alone, and none is lost with another."""

import signal
import warnings

import pytest
import torch

from ebmbounds import evaluate, launch
from ebmbounds.bench import stand_in
from ebmbounds.errors import BadInput
from ebmbounds.execution import compiled, plain
from ebmbounds.experiments import experiment
from ebmbounds.objectives import METHODS
from ebmbounds.run import Run, flatten
from ebmbounds.side_by_side import play, stacked
from ebmbounds.signals import Stopped

SEEDS = range(3)
TINY = {"steps": 12, "log_every": 3, "checkpoint_every": 6, "compile": "off", "batch_size": 16}


@pytest.fixture(autouse=True)
def cheap_watch(monkeypatch):
    monkeypatch.setattr(evaluate, "watch", lambda step, run, state: {})


def assert_close(state, other) -> None:
    """Rounding, which Adam may make larger where a gradient is all but zero."""
    theirs = flatten(other)
    for key, value in flatten(state).items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-6, atol=1e-6, msg=lambda m, key=key: key + m)


def states_of(name: str, overrides: dict):
    """The step of a run alone, that of runs side by side, and first states for some seeds."""
    spec = experiment(name, overrides)
    data = stand_in(spec, "cpu")
    steps = [launch.build_step(spec, data, seed, "cpu") for seed in SEEDS]
    together = launch.build_step(spec, data, 0, "cpu", side_by_side=True)
    return steps[0], together, [step.initial_state(seed) for seed, step in enumerate(steps)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", ["moons", "stackedmnist"])
def test_a_stacked_step_is_the_step_of_each(double, dataset, method):
    size = {"shrink": 16, "latent_dim": 8} if dataset == "stackedmnist" else {"width": 4}
    if (dataset, method) == ("moons", "ebm-bb"):
        size |= {"importance_samples": 8, "latent_dim": 2}
    step, together, states = states_of(f"{dataset}/{method}@quick", {"batch_size": 8} | size)
    whole, views = stacked(states)
    for _ in range(3):
        plain(torch.func.vmap(together))(whole)
        for state in states:
            plain(step)(state)
    for view, state in zip(views, states, strict=True):
        assert int(state["step"]) == 3
        assert_close(view, state)


def test_a_stacked_step_compiles(double):
    size = {"batch_size": 8, "depth": 1, "width": 4, "batch_norm": True}
    step, together, states = states_of("moons/wgan-0gp@quick", size)
    whole, views = stacked(states)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")  # one kernel for each run
        compiled(torch.func.vmap(together), fallback=False)(whole)
    for view, state in zip(views, states, strict=True):
        plain(step)(state)
        assert_close(view, state)


def train(root, seeds=SEEDS, **overrides) -> list[Run]:
    folders = {seed: root / str(seed) for seed in seeds}
    launch.train_side_by_side("moons/wgan-0gp@quick", TINY | overrides, folders, device="cpu", progress=False)
    return [Run(folder) for folder in folders.values()]


def train_alone(path, seed: int, **overrides) -> Run:
    options = {"run": path, "seed": seed, "device": "cpu", "progress": False}
    return launch.train("moons/wgan-0gp@quick", TINY | overrides, **options)


def test_runs_side_by_side_end_as_those_apart(double, tmp_path):
    for seed, run in enumerate(train(tmp_path)):
        alone = train_alone(tmp_path / f"alone {seed}", seed)
        assert run.config == alone.config
        assert_close(run.load()[0], alone.load()[0])
        for ours, theirs in zip(run.records(), alone.records(), strict=True):
            assert ours["step"] == theirs["step"]
            assert ours["loss_energy"] == pytest.approx(theirs["loss_energy"], rel=1e-6)


def test_a_signal_saves_all_and_they_go_on_bit_for_bit(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole")

    def interrupted_watch(step, run, state):
        if run.path.name == "1":
            signal.raise_signal(signal.SIGTERM)
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "watch", interrupted_watch)
        with pytest.raises(launch.Interrupted) as told:
            train(tmp_path / "parts")
    assert told.value.signal == signal.SIGTERM
    assert [int(Run(tmp_path / "parts" / str(seed)).load()[0]["step"]) for seed in SEEDS] == [6, 6, 6]
    for run, other in zip(train(tmp_path / "parts"), whole, strict=True):
        ours, theirs = (flatten(each.load()[0]) for each in (run, other))
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_those_that_are_behind_catch_up(double, tmp_path):
    """As when a run was killed between two checkpoints of one step."""
    train_alone(tmp_path / "0", 0, steps=6)
    for seed, run in enumerate(train(tmp_path)):
        assert [record["step"] for record in run.records()] == [3, 6, 9, 12]
        assert_close(run.load()[0], train_alone(tmp_path / f"alone {seed}", seed).load()[0])


def test_no_run_at_all_is_refused():
    with pytest.raises(BadInput, match="at least one seed"):
        launch.train_side_by_side("moons/wgan-0gp@quick", TINY, {})


def test_what_is_finished_is_left_alone(tmp_path):
    runs = train(tmp_path)
    before = [run.checkpoint().stat().st_mtime_ns for run in runs]
    assert [run.checkpoint().stat().st_mtime_ns for run in train(tmp_path)] == before


class Loop:
    """A training loop that notes what happens to it."""

    def __init__(self, steps: int, fails_at: int | None = None) -> None:
        self.steps, self.fails_at, self.step, self.saved = steps, fails_at, 0, False

    def turns(self):
        try:
            while self.step < self.steps:
                yield
                self.step += 1
                if self.step == self.fails_at:
                    raise ValueError("it failed")
        except Stopped:
            pass
        self.saved = True
        return None


def test_an_error_in_one_saves_the_others_where_they_are():
    loops = [Loop(9), Loop(9, fails_at=4), Loop(9)]
    iterations = iter(range(9))
    with pytest.raises(ValueError, match="it failed"):
        play([loop.turns() for loop in loops], lambda: next(iterations))
    assert [loop.saved for loop in loops] == [True, False, True]
    assert [loop.step for loop in loops] == [4, 4, 3] and next(iterations) == 4  # the third had not looked yet


def test_one_that_ends_early_ends_all():
    loops = [Loop(9), Loop(2)]
    assert play([loop.turns() for loop in loops], lambda: None) is None
    assert [(loop.step, loop.saved) for loop in loops] == [(2, True), (2, True)]


def test_an_iteration_that_fails_is_told_to_all():
    loops = [Loop(3), Loop(3)]

    def stopped() -> None:
        raise Stopped

    assert play([loop.turns() for loop in loops], stopped) is None
    assert all(loop.saved and loop.step == 0 for loop in loops)

    def broken() -> None:
        raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        play([Loop(3).turns(), Loop(3).turns()], broken)

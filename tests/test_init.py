"""Runs that start from the networks of another one."""

import pytest
import torch

from ebmbounds import launch
from ebmbounds.errors import BadInput
from ebmbounds.experiments import experiment
from ebmbounds.report.record import Record
from ebmbounds.run import Run, flatten
from ebmbounds.step import averaged_tables

NAME = "moons/ebm-bb@paper"
TINY = {"steps": 6, "checkpoint_every": 3, "log_every": 3, "compile": "off", "width": 8, "batch_size": 16}


def train(path, overrides=None, **options) -> Run:
    return launch.train(NAME, TINY | (overrides or {}), run=path, device="cpu", progress=False, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    return train(tmp_path_factory.mktemp("trained") / "run", {"ema": 0.5})


def first_state(path, overrides) -> dict:
    return launch.prepare(NAME, TINY | overrides, path, False, 1, "cpu", None).start()[0]


def test_a_run_starts_from_the_model_of_another(trained, tmp_path):
    """From its moving average, as `load` gives it; the optimiser, the noise and the count of steps begin anew."""
    state = first_state(tmp_path / "run", {"init": str(trained.path), "ema": 0.9})
    theirs = flatten(launch.load(trained)[1].tables())
    for name, tensor in theirs.items():
        assert torch.equal(flatten(state)[name], tensor), name
    for name, tensor in flatten(averaged_tables(state)).items():
        assert torch.equal(flatten(state["average"])[name], tensor), name
    assert int(state["step"]) == 0 and int(state["seed"]) == 1
    assert not any(tensor.any() for tensor in flatten(state["second_moment"]).values())


def test_without_it_networks_are_those_that_the_seed_draws(trained, tmp_path):
    drawn = flatten(first_state(tmp_path / "run", {})["parameters"])
    theirs = flatten(launch.load(trained)[1].tables()["parameters"])
    assert any(not torch.equal(drawn[name], tensor) for name, tensor in theirs.items())


def test_a_run_that_ended_before_its_first_checkpoint_starts_there_again(trained, tmp_path):
    init = {"init": str(trained.path)}
    whole = train(tmp_path / "whole", init)
    first_state(tmp_path / "cut", init)  # the folder is made, and then the machine goes down
    cut = launch.train("", run=tmp_path / "cut", resume=True, device="cpu", progress=False)
    seeded = train(tmp_path / "seeded", init, seed=1)
    assert same(cut, seeded) and not same(cut, whole)


def test_resumed_from_the_checkpoint_before_the_last_it_does_not_start_there_again(trained, tmp_path):
    whole, cut = (train(tmp_path / name, {"init": str(trained.path)}) for name in ("whole", "cut"))
    cut.checkpoint("last").unlink()  # and the one before is whole
    with pytest.warns(UserWarning, match="checkpoint before it"):
        cut = train(cut.path, resume=True)
    assert same(cut, whole)


def same(one: Run, other: Run) -> bool:
    first, second = flatten(one.load()[0]), flatten(other.load()[0])
    return all(torch.equal(first[name], second[name]) for name in first)


def test_resumed_it_needs_the_other_no_more(tmp_path):
    origin = train(tmp_path / "origin")
    init = {"init": str(origin.path)}
    whole = train(tmp_path / "whole", init | {"steps": 12})
    half = train(tmp_path / "half", init)
    for path in sorted(origin.path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    train(half.path, {"steps": 12}, resume=True)
    assert same(half, whole) and half.config["init"] == str(origin.path)


def test_the_command_that_trains_it_again_names_it(trained, tmp_path):
    run = train(tmp_path / "run", {"init": str(trained.path)})
    assert f" init={trained.path} " in Record(run).command
    assert "init" not in Record(trained).command


def test_networks_that_do_not_fit_are_refused_before_a_folder_is_made(trained, tmp_path):
    with pytest.raises(BadInput, match="not those of moons/ebm-bb@paper"):
        train(tmp_path / "run", {"init": str(trained.path), "width": 9})
    for nowhere in (str(tmp_path / "nowhere"), ""):  # an empty variable of the shell, say
        with pytest.raises(BadInput, match="no run folder"):
            train(tmp_path / "run", {"init": nowhere})
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInput, match="other settings \\(init\\)"):
        train(trained.path, {"init": str(trained.path), "ema": 0.5}, resume=True)


def test_a_run_with_other_networks_to_begin_with_is_another_one(trained, tmp_path):
    run = train(tmp_path / "run", {"init": str(trained.path)})
    assert launch.changed_settings(run.config, experiment(NAME, TINY)) == ["init"]

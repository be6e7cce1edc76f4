"""Stopped, prolonged, repeated: a run's end depends on its settings and its seed, not on how it got there."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from whole_runs import SETTINGS, TOY, content, saved_step, train

from ebmbounds import launch, machine
from ebmbounds.data import TOYS
from ebmbounds.errors import BadInput
from ebmbounds.experiments import experiment
from ebmbounds.run import Run
from ebmbounds.trainer import Diverged


def test_a_run_repeats_bit_for_bit(uninterrupted, tmp_path):
    other = train(tmp_path / "run")
    assert content(other) == content(uninterrupted)
    assert set(uninterrupted.load()[0]) >= {"first_moment", "second_moment", "average", "buffers", "seed", "step"}
    different = train(tmp_path / "other", seed=1)
    assert content(different)["last"] != content(uninterrupted)["last"]


@pytest.mark.parametrize("step", [2, 7, 20])
def test_stopped_and_resumed_is_uninterrupted(uninterrupted, tmp_path, monkeypatch, step):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        plain = machine.plain

        def stopping(iteration):
            go = plain(iteration)

            def advance(state):
                go(state)
                if int(state["step"]) == step:
                    os.kill(os.getpid(), signal.SIGTERM)

            return advance

        patch.setattr(machine, "plain", stopping)
        with pytest.raises(launch.Interrupted, match=f"step {step}.*--resume") as caught:
            train(path)
        assert caught.value.signal == signal.SIGTERM
    assert saved_step(Run(path)) == step
    train(path, resume=True)
    assert content(Run(path)) == content(uninterrupted)


def test_a_shorter_run_prolonged_has_the_same_state(uninterrupted, tmp_path):
    """Steps, and when to save, may change on the way."""
    train(tmp_path / "run", overrides={"steps": 16, "checkpoint_every": 5})
    train(tmp_path / "run", resume=True)
    assert content(Run(tmp_path / "run"))["last"][0] == content(uninterrupted)["last"][0]


def test_resuming_needs_the_same_settings(tmp_path):
    train(tmp_path / "run", overrides={"steps": 2})
    before = content_of_files(tmp_path / "run")
    with pytest.raises(BadInput, match="lr_energy"):
        train(tmp_path / "run", resume=True, overrides={"lr_energy": 0.1})
    with pytest.raises(BadInput, match="exists"):
        train(tmp_path / "run")
    assert content_of_files(tmp_path / "run") == before


def content_of_files(path: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_checkpoint_of_other_networks_is_refused_by_name(tmp_path):
    run = train(tmp_path / "run", overrides={"steps": 2})
    config = run.config | {"width": 9}
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"last\.safetensors does not fit"):
        train(run.path, resume=True, overrides={"width": 9})
    with pytest.raises(BadInput, match=r"last\.safetensors does not fit"):
        launch.load(run.path)


def test_a_run_that_diverged_goes_back_with_new_noise_and_half_the_rate(uninterrupted, tmp_path, monkeypatch):
    """Parameters spoiled once, at step 10: back to the checkpoint at 7, and twice alike."""
    plain = machine.plain

    def spoiling(iteration):
        go = plain(iteration)

        def advance(state):
            go(state)
            if int(state["step"]) == 10 and int(state["tries"]) == 0:
                state["parameters"]["energy"]["1.weight"].fill_(float("nan"))

        return advance

    monkeypatch.setattr(machine, "plain", spoiling)
    with pytest.raises(Diverged, match=r"last\.safetensors"):
        train(tmp_path / "stops")
    assert saved_step(Run(tmp_path / "stops")) == 7
    ends = []
    for path in (tmp_path / "stops", tmp_path / "other"):  # a run that stopped may be resumed so, too
        with pytest.warns(UserWarning, match="Try 2 begins at step 7"):
            run = train(path, overrides={"on_divergence": "rollback"}, resume=path.exists())
        ends.append(content(run)["last"])
    assert ends[0] == ends[1] != content(uninterrupted)["last"]
    assert int(run.load()[0]["tries"]) == 1 and saved_step(run) == 30


def test_another_try_draws_other_noise_and_takes_half_the_step():
    spec = experiment(TOY, SETTINGS[TOY] | {"beta1": 0.0, "ema": 0.0})
    step = launch.build_step(spec, TOYS["moons"], 0, "cpu")
    start = step.initial_state(0)
    start.pop("log")
    again = {**start, "tries": torch.tensor(1)}
    (first, info), (second, other) = step(start), step(again)
    assert not torch.equal(info["loss_energy"], other["loss_energy"])
    # Adam's first step moves every parameter by about its rate, whatever the gradient.
    moved = [
        (new["parameters"]["energy"]["1.weight"] - start["parameters"]["energy"]["1.weight"]).abs().median()
        for new in (first, second)
    ]
    torch.testing.assert_close(moved[1], moved[0] / 2, rtol=1e-2, atol=0)

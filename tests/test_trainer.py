"""The loop on a state of one number: logs, checkpoints, signals, divergence."""

import math
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from ebmbounds import trainer as trainer_module
from ebmbounds.run import Run, flatten
from ebmbounds.step import COUNT
from ebmbounds.trainer import Diverged, Trainer, interruptions

# -- the loop on a state of one number -------------------------------------------------------------------------------


def counter() -> dict:
    return {
        "step": torch.tensor(0),
        "tries": torch.tensor(0),
        "parameters": {"energy": {"w": torch.tensor([1.0])}},
        "log": {"loss_energy": torch.zeros(1), COUNT: torch.zeros(1)},
    }


def advance(state: dict) -> None:
    """The parameter doubles, and the loss is the number of the step."""
    state["step"] += 1
    state["parameters"]["energy"]["w"] *= 1.01
    state["log"]["loss_energy"] += state["step"]
    state["log"][COUNT] += 1


def after(step: int, act):
    """An `advance` that acts on the state once it has reached a step."""

    def advance_and_act(state: dict) -> None:
        advance(state)
        if int(state["step"]) == step:
            act(state)

    return advance_and_act


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "run", {})


def make(run: Run, advance=advance, steps: int = 20, **options) -> Trainer:
    return Trainer(run, advance, steps, **{"log_every": 4, "checkpoint_every": 6, "progress": False} | options)


def saved_step(run: Run, name: str = "last") -> int:
    return int(run.load(name)[0]["step"])


def test_records_are_means_since_the_one_before(run):
    assert make(run).train(counter()) is None
    records = {record["step"]: record["loss_energy"] for record in run.records()}
    assert records == {4: 2.5, 6: 5.5, 8: 7.5, 12: 10.5, 16: 14.5, 18: 17.5, 20: 19.5}
    assert all(record["ms"] > 0 for record in run.records())
    assert saved_step(run) == 20


def test_the_lowest_figure_is_kept_as_best(run):
    values = {6: 3.0, 12: 1.0, 18: math.nan, 20: 2.0}
    trainer = make(run, best_by="nll", watch=lambda state: {"nll": values[int(state["step"])], "other": 0.0})
    trainer.train(counter())
    assert saved_step(run, "best") == 12 and run.load()[1] == {"best": 1.0}
    figures = {record["step"]: record["nll"] for record in run.records() if "nll" in record}
    assert [figures[step] for step in (6, 12, 20)] == [3.0, 1.0, 2.0]


def test_a_best_of_an_earlier_session_stands(run):
    make(run, best_by="nll", watch=lambda state: {"nll": 1.0}).train(counter(), best=0.5)
    assert not run.checkpoint("best").exists() and run.load()[1] == {"best": 0.5}


def test_without_a_figure_there_is_no_best(run):
    make(run, best_by="nll").train(counter())
    assert not run.checkpoint("best").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [2, 5, 6, 19])
def test_a_signal_saves_and_ends(run, number, step):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    state = counter()
    stopped = make(run, after(step, lambda state: os.kill(os.getpid(), number))).train(state)
    assert stopped == number
    assert saved_step(run) == step == int(state["step"])
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    # The sums of an interval that was cut are in the state, so the next record is what it would have been.
    loaded, notes = run.load()
    assert make(run).train(loaded, notes["best"]) is None
    records = {record["step"]: record["loss_energy"] for record in run.records()}
    assert records == {4: 2.5, 6: 5.5, 8: 7.5, 12: 10.5, 16: 14.5, 18: 17.5, 20: 19.5}


def test_a_signal_before_the_first_step_saves_too(run, monkeypatch):
    shown = Trainer.shown
    monkeypatch.setattr(Trainer, "shown", lambda *args: os.kill(os.getpid(), signal.SIGTERM) or shown(*args))
    assert make(run).train(counter()) == signal.SIGTERM
    assert saved_step(run) == 0


@pytest.fixture
def listening():
    """SIGINT as in a shell's foreground: a process in the background is started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_is_not_caught(listening):
    with interruptions() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e12])
def test_a_runaway_loss_stops_with_the_last_good_checkpoint(run, value):
    def spoil(state):
        state["log"]["loss_energy"] += value

    with pytest.raises(Diverged, match=r"loss_energy = .*last\.safetensors.*lr_energy"):
        make(run, after(15, spoil)).train(counter())
    assert saved_step(run) == 12
    assert [record["step"] for record in run.records()] == [4, 6, 8, 12]


@pytest.mark.parametrize("step", [12, 13])
def test_parameters_that_are_no_numbers_are_never_saved(run, step):
    """Diagnostics are taken before an update: the loss of the step that spoils the parameters may look well. Also
    where a signal asks for the state between two checkpoints."""

    def spoil(state):
        state["parameters"]["energy"]["w"].fill_(math.nan)
        if step == 13:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Diverged, match=r"parameters/energy/w.*last\.safetensors"):
        make(run, after(step, spoil)).train(counter())
    assert saved_step(run) == (6 if step == 12 else 12)
    assert all(t.isfinite().all() for t in flatten(run.load()[0]).values())


def poison(step: int, times: int, value: float = math.nan):
    """An `advance` whose loss at a step is a runaway value, the first so many times that it comes there."""
    left = [value] * times

    def spoil(state: dict) -> None:
        state["log"]["loss_energy"] += left.pop() if left else 0.0

    return after(step, spoil)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e12])
@pytest.mark.parametrize("step", [2, 15])
def test_a_run_that_diverges_goes_back_and_tries_otherwise(run, step, value):
    """Also before its first checkpoint. It is noticed at the next record: the records before it stand."""
    state = counter()
    with pytest.warns(UserWarning, match=r"diverged: loss_energy = .* Try [23] begins at step \d+, at half"):
        make(run, poison(step, 2, value), rollbacks=3).train(state)
    assert int(state["tries"]) == 2 and saved_step(run) == 20
    assert torch.equal(run.load()[0]["parameters"]["energy"]["w"], state["parameters"]["energy"]["w"])
    records = {record["step"]: record for record in run.records()}
    assert list(records) == [4, 6, 8, 12, 16, 18, 20]
    assert [s for s, record in records.items() if record.get("tries") == 2] == [s for s in records if s >= step]
    assert all("tries" not in record for s, record in records.items() if s < step)
    assert records[20]["loss_energy"] == 19.5


def test_a_run_that_goes_on_diverging_is_given_up_with_a_report(run):
    with (
        pytest.warns(UserWarning, match="diverged"),
        pytest.raises(
            Diverged, match=r"given up after 3 tries from step 12.*loss_energy = nan before step 16.*lr_energy"
        ),
    ):
        make(run, poison(15, 99), rollbacks=2).train(counter())
    assert saved_step(run) == 12 and int(run.load()[0]["tries"]) == 2


def test_a_run_killed_after_its_rollback_goes_on_with_it(run):
    """The new try is part of the saved state before anything else happens."""

    class Killed(BaseException):
        pass

    def die(state: dict) -> None:
        if int(state["tries"]):
            raise Killed

    poisoned, dying = poison(15, 1), after(13, die)

    def advance_or_die(state: dict) -> None:
        (dying if int(state["step"]) == 12 else poisoned)(state)

    with pytest.warns(UserWarning, match="diverged"), pytest.raises(Killed):
        make(run, advance_or_die, rollbacks=1).train(counter())
    state, notes = run.load()
    assert int(state["step"]) == 12 and int(state["tries"]) == 1
    make(run, rollbacks=1).train(state, notes["best"])
    assert saved_step(run) == 20


def test_a_finished_run_has_nothing_to_do(run):
    state = counter()
    make(run).train(state)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and "events" not in str(p)}
    assert make(run, advance=None).train(state) is None
    assert {p: p.read_bytes() for p in before} == before


def test_progress_is_a_few_lines_or_none(run, tmp_path, capsys):
    make(run, steps=200, log_every=1).train(counter())
    assert capsys.readouterr() == ("", "")
    make(Run.create(tmp_path / "loud", {}), steps=200, log_every=1, progress=True).train(counter())
    out, lines = capsys.readouterr()
    assert out == "" and 10 <= len(lines.splitlines()) <= 12
    assert "step 200/200" in lines and "loss_energy" in lines


def test_events_are_written_where_tensorboard_is(run):
    pytest.importorskip("tensorboard", reason="TensorBoard, an extra, is not installed")
    make(run).train(counter())
    assert list((run.path / "events").glob("events*"))


def test_the_loop_runs_without_tensorboard(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    make(run).train(counter())
    assert saved_step(run) == 20 and not (run.path / "events").exists()


def test_the_trainer_is_short():
    """Its own promise (design.md): a loop that can be read at one go."""
    assert len(Path(trainer_module.__file__).read_text(encoding="utf-8").splitlines()) < 200

"""The loop: logs, checkpoints and signals on a state of one number; then whole runs, stopped, killed and resumed."""

import json
import math
import multiprocessing
import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

from ebmbounds import evaluate, launch
from ebmbounds import trainer as trainer_module
from ebmbounds.errors import BadInput
from ebmbounds.run import Run, flatten
from ebmbounds.step import COUNT
from ebmbounds.trainer import Diverged, Trainer, interruptions

# -- the loop on a state of one number -------------------------------------------------------------------------------


def counter() -> dict:
    return {
        "step": torch.tensor(0),
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
@pytest.mark.parametrize("step", [1, 5, 6, 19])
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


def test_a_signal_before_the_first_step_saves_too(run):
    class Early(Trainer):
        def bar(self, step):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().bar(step)

    assert Early(run, advance, 20, progress=False).train(counter()) == signal.SIGTERM
    assert saved_step(run) == 0


def test_a_second_signal_is_not_caught():
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


# -- whole runs ------------------------------------------------------------------------------------------------------

NAME = "moons/ebm-bb@quick"
SETTINGS = {
    "steps": 30,
    "log_every": 3,
    "checkpoint_every": 7,
    "compile": "off",
    "width": 8,
    "batch_size": 16,
    "batch_norm": True,  # so that there are buffers
    "beta1": 0.5,  # and first moments
    "ema": 0.9,  # and averages
}


def quick_watch(step, run, state) -> dict[str, float]:
    """A figure that goes up and down, in place of quadratures and pictures."""
    return {"nll": math.sin(int(state["step"]))}


def train(path: Path, **options) -> Run:
    overrides = SETTINGS | options.pop("overrides", {})
    return launch.train(NAME, overrides, run=path, device="cpu", progress=False, **options)


@pytest.fixture(autouse=True)
def cheap_watch(monkeypatch):
    monkeypatch.setattr(evaluate, "watch", quick_watch)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "watch", quick_watch)
        return train(tmp_path_factory.mktemp("uninterrupted") / "run")


def content(run: Run) -> dict:
    """Everything that must agree: states bit for bit, notes, records but for their timing."""
    records = [{k: v for k, v in record.items() if k != "ms"} for record in run.records()]
    states = {}
    for name in ("last", "best"):
        state, notes = run.load(name)
        states[name] = {key: (t.dtype, t.shape, t.numpy().tobytes()) for key, t in flatten(state).items()}, notes
    return {"records": records, "config": run.config, **states}


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
        plain = launch.plain

        def stopping(iteration):
            go = plain(iteration)

            def advance(state):
                go(state)
                if int(state["step"]) == step:
                    os.kill(os.getpid(), signal.SIGTERM)

            return advance

        patch.setattr(launch, "plain", stopping)
        with pytest.raises(launch.Interrupted, match=f"step {step}.*--resume") as caught:
            train(path)
        assert caught.value.signal == signal.SIGTERM
    assert saved_step(Run(path)) == step
    train(path, resume=True)
    assert content(Run(path)) == content(uninterrupted)


def test_a_shorter_run_prolonged_has_the_same_state(uninterrupted, tmp_path):
    """Only steps may change on the way."""
    train(tmp_path / "run", overrides={"steps": 16})
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


# -- kill -9 ---------------------------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_step(step: int, way: str = "plain") -> None:
    """In the middle of an iteration's update of the state."""
    execution = getattr(launch, way)

    def dying(iteration):
        go = execution(iteration)

        def advance(state):
            if int(state["step"]) == step:
                state["parameters"]["energy"]["1.weight"].fill_(7.0)
                die()
            go(state)

        return advance

    setattr(launch, way, dying)


def die_at_checkpoint(count: int, moment: str) -> None:
    """While the count-th `last` is written: with half of its content, before it takes its name, or right after."""
    replace, seen = os.replace, []

    def dying(source, target):
        if Path(target).name == "last.safetensors":
            seen.append(target)
        here = len(seen) == count and Path(target).name == "last.safetensors"
        if here and moment == "half":
            Path(source).write_bytes(Path(source).read_bytes()[:100])
            die()
        if here and moment == "before":
            die()
        replace(source, target)
        if here:
            die()

    os.replace = dying


def die_in_the_log(count: int) -> None:
    """With half a line written."""
    log, seen = Run.log, []

    def dying(self, record):
        seen.append(record)
        if len(seen) == count:
            with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record)[:20])
            die()
        log(self, record)

    Run.log = dying


def child(path: Path, deadly=None, *arguments, **options) -> None:
    torch.set_num_threads(1)
    evaluate.watch = quick_watch
    if deadly is not None:
        deadly(*arguments)
    train(path, resume=(path / "config.json").exists(), **options)


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ebmbounds.launch"])
    return context


@pytest.mark.parametrize(
    "deadly",
    [
        (die_at_step, 0),
        (die_at_step, 3),
        (die_at_step, 18),
        (die_at_checkpoint, 1, "half"),
        (die_at_checkpoint, 2, "before"),
        (die_at_checkpoint, 2, "after"),
        (die_at_checkpoint, 5, "after"),
        (die_in_the_log, 1),
        (die_in_the_log, 8),
    ],
    ids=lambda deadly: " ".join([deadly[0].__name__, *map(str, deadly[1:])]),
)
def test_killed_anywhere_and_resumed_is_uninterrupted(uninterrupted, tmp_path, processes, deadly):
    path = tmp_path / "run"
    process = processes.Process(target=child, args=(path, *deadly))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    train(path, resume=True)
    assert content(Run(path)) == content(uninterrupted)


def test_killed_and_resumed_is_uninterrupted_when_compiled(tmp_path, processes):
    """Each process compiles for itself. Shallow networks, since a compiler's time goes by the length of the code."""
    path, options = tmp_path / "run", {"overrides": {"compile": "on", "depth": 1, "width": 4}}
    whole = train(tmp_path / "whole", **options)
    process = processes.Process(target=child, args=(path, die_at_step, 18, "compiled"), kwargs=options)
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL and saved_step(Run(path)) == 14
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the step could not be")
        train(path, resume=True, **options)
    assert content(Run(path)) == content(whole)


def test_killed_again_and_again_at_random_moments(uninterrupted, tmp_path, processes):
    """By the clock, from outside: whatever the process is doing then."""
    path, delays = tmp_path / "run", random.Random(0)
    for _ in range(4):
        process = processes.Process(target=child, args=(path,))
        process.start()
        deadline = time.monotonic() + 60
        while not (path / "config.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(delays.uniform(0.02, 0.6))
        process.kill()
        process.join(60)
    train(path, resume=True)
    assert content(Run(path)) == content(uninterrupted)


def test_the_trainer_is_short():
    """Its own promise (design.md): a loop that can be read at one go."""
    assert len(Path(trainer_module.__file__).read_text(encoding="utf-8").splitlines()) < 200

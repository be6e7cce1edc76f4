"""Runs in processes of their own: finished, stopped and resumed, moved, failed; then a whole quick reproduction."""

import dataclasses
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from PIL import Image

from ebmbounds.errors import BadInput
from ebmbounds.reproduce import reproduce, runs, seconds
from ebmbounds.reproduce.catalog import find
from ebmbounds.reproduce.page import page
from ebmbounds.reproduce.runs import Task, complete_all
from ebmbounds.run import Run

TINY = {"steps": 4, "checkpoint_every": 4, "log_every": 2, "compile": "off", "batch_size": 16}
ENDLESS = {"steps": 10**9, "checkpoint_every": 10**9}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The server from which processes are forked, with all its imports done: they count in no test's time limit."""
    process = runs.Children().context.Process(target=int)
    process.start()
    process.join()


def task(folder: Path, **overrides) -> Task:
    return Task("moons/wgan-0gp@quick", TINY | overrides, 0, folder)


def saved_step(folder: Path) -> int:
    return int(Run(folder).load()[0]["step"])


@pytest.mark.parametrize(
    ("text", "value"), [("9m", 540), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("1h0m5s", 3605), ("0s", 0)]
)
def test_time_limits(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "9", "m", "9 m", "-9m", "9min", "30m1h"])
def test_what_is_no_time_limit(text):
    with pytest.raises(BadInput, match="no time limit"):
        seconds(text)


def test_out_of_time_saves_and_the_same_folder_elsewhere_goes_on(tmp_path):
    before, after = tmp_path / "here" / "run", tmp_path / "there" / "run"
    outcome = complete_all([(task(before, **ENDLESS),)], device="cpu", budget=4)
    assert outcome.failures == {} and outcome.signal is None
    step = saved_step(before)
    assert step > 0 and not (before / "metrics.json").exists()
    assert task(before, **ENDLESS).state().startswith("under way")

    shutil.move(before.parent, after.parent)  # from a machine with a GPU and other folders, say
    config = Run(after).config | {"device": "cuda", "data_root": "elsewhere"}
    (after / "config.json").write_text(json.dumps(config))
    rest = task(after, **ENDLESS | {"steps": step + 3})
    assert complete_all([(rest,)], device="cpu").failures == {} and rest.finished()
    assert saved_step(after) == step + 3
    assert Run(after).config["device"] == "cpu" and Run(after).config["data_root"] != "elsewhere"
    assert [record["step"] for record in Run(after).records()][:2] == [2, 4]  # those of the first part are kept


def test_a_signal_saves_every_run_and_is_told(tmp_path):
    tasks = [task(tmp_path / str(i), **ENDLESS) for i in range(3)]
    timer = threading.Timer(4, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        outcome = complete_all([(each,) for each in tasks], device="cpu", parallel=2)
    finally:
        timer.cancel()
    assert outcome.signal == signal.SIGINT
    assert all(saved_step(each.folder) > 0 for each in tasks[:2])
    assert not tasks[2].started and tasks[2].state() == "not started"


def test_a_run_that_diverges_is_told_and_the_others_go_on(tmp_path):
    bad, good = task(tmp_path / "bad", lr_energy=1e30), task(tmp_path / "good")
    outcome = complete_all([(bad,), (good,)], device="cpu")
    assert list(outcome.failures) == [bad.folder] and "diverged" in outcome.failures[bad.folder]
    assert good.finished() and not bad.finished()


def test_seeds_side_by_side_are_runs_like_others(tmp_path):
    seeds = tuple(dataclasses.replace(task(tmp_path / str(seed)), seed=seed) for seed in range(3))
    assert complete_all([seeds], device="cpu").failures == {} and all(each.finished() for each in seeds)
    last = [Run(each.folder).load()[0]["parameters"]["energy"]["1.weight"] for each in seeds]
    assert len({float(weights.sum()) for weights in last}) == 3  # each from its own seed

    longer = tuple(dataclasses.replace(each, overrides=each.overrides | {"steps": 6}) for each in seeds[1:])
    assert complete_all([(seeds[0],), longer], device="cpu").failures == {}
    assert [saved_step(each.folder) for each in seeds] == [4, 6, 6]


def test_which_runs_share_a_process(tmp_path):
    apart, together = (find(name) for name in ("toy-density", "modes"))
    assert all(len(unit) == 1 for unit in apart.units(apart.tasks(tmp_path)))
    units = together.units(together.tasks(tmp_path))
    assert [len(unit) for unit in units] == [3] * 7
    assert all(len({task.name for task in unit}) == 1 and {task.seed for task in unit} == {0, 1, 2} for unit in units)


def test_what_the_user_can_mend_ends_it_all(tmp_path):
    tasks = [Task("mnist/ebm-bb@quick", {}, 0, tmp_path / "mnist"), task(tmp_path / "toy")]
    with pytest.raises(BadInput, match="mnist"):
        complete_all([(each,) for each in tasks], device="cpu", data=tmp_path / "empty")
    assert not tasks[1].started


def test_finished_means_trained_to_the_end_with_these_settings_and_evaluated(tmp_path, write_run):
    each = task(tmp_path / "run")
    assert not each.finished() and each.state() == "not started"
    write_run(each, {"nll": 1.0})
    assert each.finished()
    assert not task(each.folder, steps=5).finished()
    with pytest.raises(BadInput, match=r"other settings \(batch_size\).*--runs"):
        task(each.folder, batch_size=17).finished()
    (each.folder / "metrics.json").unlink()
    assert not each.finished() and each.state() == "trained, not evaluated"


def test_a_whole_quick_reproduction(tmp_path, change, monkeypatch):
    """Every method; then again, with nothing left to do."""
    places = {"runs": tmp_path / "runs", "results": tmp_path / "results", "device": "cpu", "quick": True}
    change("toy-density", quick=TINY)
    rest = [task.name.partition("@")[0] for task in runs_of("toy-density", places) if "25gaussians" not in task.name]
    change("toy-density", experiments=("25gaussians/wgan-0gp", *rest))
    found = reproduce("toy-density", **places)
    tasks = runs_of("toy-density", places)
    assert found.outcome.failures == {} and found.summary["unfinished"] == []
    assert [run["experiment"] for run in found.summary["runs"]] == [task.name for task in tasks]
    for run, each in zip(found.summary["runs"], tasks, strict=True):
        metrics = json.loads((each.folder / "metrics.json").read_text())
        assert run["figures"]["nll"] == metrics["nll"] and run["iterations"] == 4 and run["figures"]["hours"] > 0
        assert str(tmp_path) not in json.dumps(run)

    assert found.summary["quick"]
    texts = {path.suffix: path for path in found.written}
    for ending in (".md", ".tex"):
        assert "quick" in texts[ending].read_text() and "nats" in texts[ending].read_text()
    width, height = Image.open(texts[".png"]).size
    assert width > 200 * (1 + len(rest)) and height > 4 * 200
    assert "quick" in page(places["results"], tmp_path / "docs")

    monkeypatch.setattr(runs.Children, "start", None)
    shutil.rmtree(tasks[0].folder / "checkpoints")  # not needed for anything but its density
    assert reproduce("toy-density", **places).summary == found.summary


def runs_of(name: str, places: dict) -> list[Task]:
    from ebmbounds.reproduce import REPRODUCTIONS

    return REPRODUCTIONS[name].tasks(places["runs"], quick=True)

"""A reproduction of toy runs that take seconds, and run folders written by hand where no training is needed."""

import dataclasses
import json
from pathlib import Path

import pytest

from ebmbounds.launch import run_config
from ebmbounds.reproduce.catalog import REPRODUCTIONS
from ebmbounds.reproduce.runs import Task
from ebmbounds.run import Run


@pytest.fixture
def change(monkeypatch):
    """Replace some fields of a reproduction in the catalog for one test."""

    def replace(name: str, **fields) -> None:
        monkeypatch.setitem(REPRODUCTIONS, name, dataclasses.replace(REPRODUCTIONS[name], **fields))

    return replace


@pytest.fixture
def write_run():
    """Write the folder of a finished run, without training it: its log and its figures are given."""

    def write(task: Task, figures: dict, log: list[dict] | None = None) -> Path:
        run = Run.create(task.folder, run_config(task.experiment, task.seed, "cpu", None))
        steps = task.experiment.schedule.steps
        for record in log or [{"step": steps, "ms": 2.0}]:
            run.log(record)
        rest = {"protocol": {name: f"how {name} was taken" for name in figures}, "versions": {"ebmbounds": "1"}}
        metrics = {"experiment": task.name, "iterations": steps, "seconds": 1.0} | figures | rest
        (task.folder / "metrics.json").write_text(json.dumps(metrics))
        return task.folder

    return write

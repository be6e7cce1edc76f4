"""A long run in small: memory, open files, step time and the size of the folder stay level."""

import os
import resource
import statistics
import time

import pytest
import torch
from whole_runs import SETTINGS, TOY, quick_watch

from ebmbounds import evaluate, launch
from ebmbounds import run as run_module
from ebmbounds.run import Run

EARNEST = 20
"""Of so many checkpoints one is evaluated in full, with its picture: that takes seconds, and steps should be most."""
MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))


def resident() -> int:
    """Bytes of this process in memory, now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="it reads memory and files from /proc")
def test_a_long_run_stays_level(tmp_path, monkeypatch):
    """Logs, checkpoints, pictures and events as in earnest, only far more often. The first fifth is for warming up."""
    monkeypatch.undo()  # evaluations in earnest
    monkeypatch.setattr(run_module, "LOG_PART", 2**12)
    monkeypatch.setattr(run_module, "MOST_PICTURES", 20)
    end, watch, samples = time.monotonic() + 60 * MINUTES, evaluate.watch, []

    def watched(step, run, state):
        files = len(os.listdir("/proc/self/fd"))
        newest = [record["ms"] for part in run.log_parts()[-2:] for record in run_module.records_of(part)]
        milliseconds = statistics.median(newest[-20:] or [0.0])
        samples.append((resident(), files, milliseconds))
        if time.monotonic() > end:
            os.kill(os.getpid(), 15)
        in_earnest = len(samples) % EARNEST == 1
        return watch(step, run, state) if in_earnest else quick_watch(step, run, state)

    monkeypatch.setattr(evaluate, "watch", watched)
    settings = SETTINGS[TOY] | {"steps": 10**9, "log_every": 2, "checkpoint_every": 20}
    with pytest.raises(launch.Interrupted):
        launch.train(TOY, settings, run=tmp_path / "run", device="cpu", progress=False)

    levels = samples[len(samples) // 5 :]
    assert len(levels) > 10
    third = len(levels) // 3
    (memory, files, pace), (memory_after, files_after, pace_after) = (
        (min(taken), max(files), statistics.median(paces))  # memory: what pictures and checkpoints come and go above
        for taken, files, paces in (zip(*part, strict=True) for part in (levels[:third], levels[-third:]))
    )
    assert memory_after - memory < 20e6, f"memory grew by {(memory_after - memory) / 1e6:.0f} MB"
    assert files_after <= files, f"{files} open files became {files_after}"
    assert pace_after < 1.5 * pace, f"a step took {pace:.1f} ms and then {pace_after:.1f} ms"
    run = Run(tmp_path / "run")
    assert len(run.log_parts()) > 1 and all(part.stat().st_size < 2**13 for part in run.log_parts() if part.exists())
    assert len(list((run.path / "pictures").iterdir())) <= 21
    assert {path.stem for path in (run.path / "checkpoints").iterdir()} == {"last", "previous", "best"}
    assert torch.isfinite(torch.tensor(samples)).all()

"""kill -9, anywhere: the run that is resumed ends as the one that was left alone, bit for bit."""

import random
import signal
import time
import warnings

import pytest
from whole_runs import (
    IMAGES,
    TOY,
    child,
    content,
    die_at_checkpoint,
    die_at_step,
    die_in_the_log,
    saved_step,
    train,
    write_images,
)

from ebmbounds.run import Run


@pytest.mark.parametrize(
    "deadly",
    [
        (die_at_step, 3),
        (die_at_checkpoint, 1, "half"),
        (die_at_checkpoint, 2, "before"),
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
    assert not list(path.rglob(".*.tmp"))


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


@pytest.mark.parametrize(
    ("name", "kills", "device"),
    [
        (TOY, 3, "cpu"),
        pytest.param(TOY, 50, "cpu", marks=pytest.mark.long),
        pytest.param(IMAGES, 50, "cpu", marks=pytest.mark.long),
        pytest.param(TOY, 50, "cuda", marks=[pytest.mark.long, pytest.mark.gpu]),
        pytest.param(IMAGES, 50, "cuda", marks=[pytest.mark.long, pytest.mark.gpu]),
    ],
)
def test_killed_again_and_again_at_random_moments(tmp_path, processes, name, kills, device):
    """By the clock, from outside: whatever the process is doing then. With a checkpoint at every other step that is
    often a write."""
    options = {"name": name, "device": device, "data": write_images(tmp_path / "images") if name == IMAGES else None}
    options["overrides"] = {"steps": 4 * kills, "checkpoint_every": 2, "deterministic": True}
    whole = train(tmp_path / "whole", **options)
    path, moments = tmp_path / "run", random.Random(0)
    reached = []
    for kill in range(kills):
        process = processes.Process(target=child, args=(path,), kwargs=options)
        process.start()
        wait_for_work(path, process, further=kill % 2 == 1)
        time.sleep(moments.uniform(0, 0.5))
        process.kill()
        process.join(60)
        reached.append(last_record(path))
    assert len(set(reached)) > 1, "all were killed before they did anything"
    train(path, resume=True, **options)
    assert content(Run(path)) == content(whole)


def last_record(path) -> int:
    return max((record["step"] for record in Run(path).records()), default=0)


def wait_for_work(path, process, further: bool) -> None:
    """Until the process has begun to write in the folder, first the log, cut back to the checkpoint; or has logged."""
    since, before, deadline = time.time_ns(), last_record(path), time.monotonic() + 120
    log = path / "log.jsonl"
    while process.is_alive() and time.monotonic() < deadline:
        if log.exists() and log.stat().st_mtime_ns >= since and (not further or last_record(path) > before):
            return
        time.sleep(0.005)

"""kill -9, anywhere: the run that is resumed ends as the one that was left alone, bit for bit."""

import contextlib
import itertools
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

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


SIGNS = {
    "begun": "log.jsonl",  # cut back to the checkpoint, a process's first write
    "saved": "checkpoints/last.safetensors",
    "saving": "checkpoints/.*.tmp",
}
"""A killed process has written these before."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [TOY, IMAGES])
def test_killed_again_and_again_at_random_moments(tmp_path, processes, name, kills, device):
    """By the clock, from outside, whatever the process is doing then: up to half a second after its first write, or
    after a checkpoint of its own, so that every third one gets further however slow the machine; or while a checkpoint
    is being written. The run has no end until all are killed, so that none escapes however fast the machine."""
    options = {"name": name, "device": device, "data": write_images(tmp_path / "images") if name == IMAGES else None}
    endless, moments = {"steps": 10**9, "checkpoint_every": 2, "deterministic": True}, random.Random(0)
    run = Run(tmp_path / "run")
    unfinished = 0
    for _, sign in zip(range(kills), itertools.cycle(SIGNS)):
        before = modified(run.path, SIGNS[sign])
        process = processes.Process(target=child, args=(run.path,), kwargs=options | {"overrides": endless})
        process.start()
        wait_until(process, lambda sign=sign, before=before: modified(run.path, SIGNS[sign]) > before)
        time.sleep(0 if sign == "saving" else moments.uniform(0, 0.5))
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        unfinished += any((run.path / "checkpoints").glob(".*.tmp"))
    reached = saved_step(run)
    assert reached >= 2 * (kills // 3) and unfinished >= kills // 10
    options["overrides"] = endless | {"steps": reached + 4}
    train(run.path, resume=True, **options)
    assert content(run) == content(train(tmp_path / "whole", **options))


def modified(path: Path, pattern: str) -> int:
    """When a file of such a name was written last, in nanoseconds."""
    with contextlib.suppress(FileNotFoundError):  # renamed in between
        return max((file.stat().st_mtime_ns for file in path.glob(pattern)), default=0)
    return 0


def wait_until(process, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.001)

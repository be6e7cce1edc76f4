"""SIGTERM, as a machine that is taken away sends it: within ten seconds, with a state to go on from."""

import contextlib
import os
import signal
import threading
import time

import pytest
from whole_runs import content, quick_watch, train

from ebmbounds import evaluate, launch, machine, run
from ebmbounds.run import Run


def soon(number: int = signal.SIGTERM) -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


def long_iteration(patch: pytest.MonkeyPatch) -> None:
    """The first of the session, which may be compiling for minutes."""
    plain = machine.plain

    def slow(step):
        go = plain(step)

        def advance(state):
            go(state)
            soon()
            time.sleep(60)

        return advance

    patch.setattr(machine, "plain", slow)


def long_evaluation(patch: pytest.MonkeyPatch) -> None:
    """Which swallows every exception, too."""

    def slow(step, run, state):
        if int(state["step"]) == 14:
            soon()
            with contextlib.suppress(Exception):
                time.sleep(60)
        return quick_watch(step, run, state)

    patch.setattr(evaluate, "watch", slow)


def slow_write(patch: pytest.MonkeyPatch) -> None:
    write = run.write_through

    def slow(path, content):
        if "last" in path.name:
            soon()
            time.sleep(0.3)
        write(path, content)

    patch.setattr(run, "write_through", slow)


@pytest.mark.parametrize("during", [long_iteration, long_evaluation, slow_write])
def test_a_signal_ends_in_time_and_loses_nothing(uninterrupted, tmp_path, monkeypatch, during):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        during(patch)
        start = time.monotonic()
        with pytest.raises(launch.Interrupted, match="--resume"):
            train(path)
        assert time.monotonic() - start < 10
    train(path, resume=True)
    assert content(Run(path)) == content(uninterrupted)

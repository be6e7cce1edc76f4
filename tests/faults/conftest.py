"""The run that nothing happened to, and processes to which something will."""

import multiprocessing

import pytest
from whole_runs import quick_watch, train

from ebmbounds import evaluate
from ebmbounds.run import Run


@pytest.fixture(autouse=True)
def cheap_watch(monkeypatch):
    monkeypatch.setattr(evaluate, "watch", quick_watch)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "watch", quick_watch)
        return train(tmp_path_factory.mktemp("uninterrupted") / "run")


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ebmbounds.launch", "torch._dynamo"])  # loaded by the first gradient
    return context

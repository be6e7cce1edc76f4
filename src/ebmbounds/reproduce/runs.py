"""The runs of a reproduction: each, or the seeds of each experiment, in a process of its own, as far as time allows."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ebmbounds.data.registry import data_root
from ebmbounds.errors import BadInput
from ebmbounds.experiments import Experiment, experiment
from ebmbounds.launch import Interrupted, changed_settings, evaluate_run, train, train_side_by_side
from ebmbounds.run import Run, read_json
from ebmbounds.trainer import Diverged, interruptions

GRACE = 30.0
"""Seconds that a process gets to save its state. One that is still compiling then has nothing to save."""


@dataclass(frozen=True)
class Task:
    """One run: an ordinary run folder, trained to its last step and evaluated there."""

    name: str
    """The experiment."""
    overrides: dict[str, Any]
    seed: int
    folder: Path

    @property
    def experiment(self) -> Experiment:
        return experiment(self.name, self.overrides)

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @property
    def started(self) -> bool:
        return (self.folder / "config.json").is_file()

    def finished(self) -> bool:
        """Trained to the end and evaluated there: checkpoints are not needed any more."""
        if not self.started:
            return False
        if changed := changed_settings(self.run.config, self.experiment):
            raise BadInput(
                f"{self.folder} was run with other settings ({', '.join(changed)}): "
                "remove it, or name another folder with --runs."
            )
        metrics = self.folder / "metrics.json"
        return metrics.is_file() and read_json(metrics).get("iterations", 0) >= self.experiment.schedule.steps

    def state(self) -> str:
        """How far a run has come that is not finished."""
        if not self.started:
            return "not started"
        step = max((record["step"] for record in self.run.records()), default=0)
        steps = self.experiment.schedule.steps
        return "trained, not evaluated" if step >= steps else f"under way, logged up to step {step} of {steps}"


Unit = tuple[Task, ...]
"""What one process works on: a run, or runs of one experiment side by side."""


def complete(unit: Unit, device: str, data: Path, progress: bool) -> None:
    """Train from where it stands, then evaluate."""
    task = unit[0]
    options: dict[str, Any] = {"device": device, "data": data, "progress": progress}
    if len(unit) == 1:
        train(task.name, task.overrides, run=task.folder, resume=task.started, seed=task.seed, **options)
    else:
        train_side_by_side(task.name, task.overrides, {task.seed: task.folder for task in unit}, **options)
    for task in unit:
        evaluate_run(task.folder, device=device, root=data)


@dataclass
class Outcome:
    """What happened to the tasks that are not finished."""

    failures: dict[Path, str] = field(default_factory=dict)
    """Run folder -> what went wrong."""
    signal: int | None = None
    """SIGINT or SIGTERM, where one ended the work."""


def complete_all(
    units: Sequence[Unit],
    *,
    device: str,
    data: Path | str | None = None,
    parallel: int = 1,
    budget: float = float("inf"),
    progress: bool = False,
) -> Outcome:
    """Complete what is not finished, `parallel` processes at a time, for at most `budget` seconds or until a signal;
    what is under way then is saved. A run that fails does not keep the others from running."""
    deadline = time.monotonic() + budget
    waiting = [left for unit in units if (left := tuple(task for task in unit if not task.finished()))]
    total = len(waiting)
    console = Console(stderr=True, quiet=not progress, highlight=False)
    outcome = Outcome()
    with interruptions() as interrupted, Children() as children:
        while (waiting or children.running) and time.monotonic() < deadline and not interrupted():
            while waiting and len(children.running) < parallel:
                unit = waiting.pop(0)
                names = ", ".join(str(task.folder) for task in unit)
                console.print(f"run {total - len(waiting)} of {total}: {names}", style="dim")
                children.start(unit, device, data_root(data), progress and parallel == 1)
            for unit, failure in children.ended(timeout=min(0.5, max(0.0, deadline - time.monotonic()))):
                if failure:
                    console.print(f"{unit[0].folder}: {failure}", style="red")
                    outcome.failures |= {task.folder: failure for task in unit}
        outcome.signal = interrupted()
    return outcome


class Children:
    """Processes at work on a unit each. None of them outlives the `with` statement."""

    def __init__(self) -> None:
        # A server that has imported everything forks a process in no time, and has no CUDA context to be torn by it.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["ebmbounds.launch", "torch._dynamo"])  # loaded by the first gradient
        self.running: dict[Any, tuple[Unit, Any]] = {}

    def start(self, unit: Unit, *options: Any) -> None:
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(unit, *options, sender), name=unit[0].folder.name)
        process.start()
        sender.close()
        self.running[process] = unit, receiver

    def ended(self, timeout: float) -> Iterator[tuple[Unit, str]]:
        """Units whose process has come to its end, and what went wrong, if anything."""
        ready = multiprocessing.connection.wait([process.sentinel for process in self.running], timeout)
        for process in [process for process in self.running if process.sentinel in ready]:
            process.join()
            unit, receiver = self.running.pop(process)
            failure = f"its process ended with code {process.exitcode}" if process.exitcode else ""
            with contextlib.suppress(EOFError):  # where it had nothing to say
                if receiver.poll():
                    error = receiver.recv()
                    if isinstance(error, BadInput):
                        raise error
                    failure = str(error)
            yield unit, failure

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: Any) -> None:
        """Training saves its state on SIGTERM; an evaluation that is cut is done anew another time."""
        for process in self.running:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in self.running:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()


def work(unit: Unit, device: str, data: Path, progress: bool, errors: Any) -> None:
    """What a child process does; an error that has a sentence for the user goes to the parent."""
    os.setsid()  # Ctrl-C then reaches the parent alone, which tells each child once: a second signal would kill it
    try:
        complete(unit, device, data, progress)
    except Interrupted:
        pass  # saved; the folder tells how far it came
    except (BadInput, Diverged) as error:
        errors.send(error)

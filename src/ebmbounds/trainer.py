"""The training loop: steps, logs, checkpoints, signals. It knows nothing of methods, networks or data."""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ebmbounds.run import Run, flatten
from ebmbounds.step import COUNT, State

Figures = dict[str, float]
DIVERGED = 1e8
"""An energy or loss beyond this has left every useful range."""


class Diverged(RuntimeError):
    """Training produced NaN, infinity or a runaway value; the last checkpoint is from before."""


@dataclass
class Trainer:
    """Advances a state to `steps`, logging and saving into a run folder."""

    run: Run
    advance: Callable[[State], None]
    """One iteration, in place (see `step`)."""
    steps: int
    log_every: int = 100
    checkpoint_every: int = 2000
    best_by: str = ""
    watch: Callable[[State], Figures] = field(default=lambda state: {})
    """Called at every checkpoint; its figures go to the log, and `best_by` names the one that decides on best."""
    progress: bool = True

    def train(self, state: State, best: float = math.inf) -> int | None:
        """Run to the end, or until SIGINT or SIGTERM, whose number is then returned. The state is saved in any case."""
        step = int(state["step"])
        saved = step if self.run.checkpoint().exists() else None
        events = event_writer(self.run)
        with interruptions() as interrupted, self.bar(step) as bar:
            mark, since = time.perf_counter(), step
            while step < self.steps and not interrupted():
                self.advance(state)
                step += 1
                logs = step % self.log_every == 0 or step == self.steps
                saves = step % self.checkpoint_every == 0 or step == self.steps
                if logs or saves:
                    record = self.read_log(state)  # the only place where the host waits for the device
                    self.check(record, step)
                    now = time.perf_counter()
                    record = {"step": step, "ms": 1e3 * (now - mark) / (step - since), **record}
                    mark, since = now, step
                    figures: Figures = {}
                    if saves:
                        self.check_state(state)
                        figures = self.watch(state)
                    record |= figures
                    self.run.log(record)  # before the checkpoint: a run killed between the two logs this step anew
                    if saves:
                        best = self.save(state, figures, best)
                        mark, saved = time.perf_counter(), step
                    events(record)
                    bar(record)
            if saved != step:
                self.check_state(state)
                self.run.save(state, best=best)
            return interrupted()

    def read_log(self, state: State) -> Figures:
        """Means of the diagnostics since the last reading, which starts them anew."""
        log = state["log"]
        count = float(log[COUNT])
        means = {name: float(total) / count for name, total in log.items() if name != COUNT}
        for total in log.values():
            total.zero_()
        return means

    def check(self, record: Figures, step: int) -> None:
        for name, value in record.items():
            if not math.isfinite(value) or abs(value) > DIVERGED:
                raise self.diverged(f"{name} = {value:g} before step {step}")

    def check_state(self, state: State) -> None:
        """What is saved must be finite too: the figures are from before the last update."""
        for name, tensor in flatten(state).items():
            if not tensor.isfinite().all():
                raise self.diverged(f"{name} is not finite at step {int(state['step'])}")

    def diverged(self, what: str) -> Diverged:
        return Diverged(
            f"training diverged: {what}. The last good checkpoint is kept in {self.run.checkpoint()}; "
            "lower lr_energy and lr_generator, or raise penalty_weight."
        )

    def save(self, state: State, figures: Figures, best: float) -> float:
        """Write `last`, and `best` where the named figure is lower than ever."""
        value = figures.get(self.best_by, math.inf)
        if value < best:
            best = value
            self.run.save(state, "best", best=best)
        self.run.save(state, best=best)
        return best

    @contextmanager
    def bar(self, step: int) -> Iterator[Callable[[dict[str, Any]], None]]:
        """A live progress bar on a terminal; one line per tenth of the run elsewhere."""
        console = Console(stderr=True)
        if not self.progress:
            yield lambda record: None
            return
        if not console.is_terminal:
            tenth = max(self.steps // 10, 1)
            done = step // tenth

            def line(record: dict[str, Any]) -> None:
                nonlocal done
                if record["step"] // tenth > done or record["step"] == self.steps:
                    done = record["step"] // tenth
                    sys.stderr.write(f"step {record['step']}/{self.steps}  {summary(record)}\n")

            yield line
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(self.run.path.name, total=self.steps, completed=step, figures="")
            yield lambda record: progress.update(task, completed=record["step"], figures=summary(record))


SHOWN = ("loss_energy", "loss_generator", "lower_bound", "entropy", "nll", "fid", "modes")


def summary(record: dict[str, Any]) -> str:
    figures = [f"{name} {record[name]:.4g}" for name in SHOWN if name in record]
    return "  ".join([f"{1e3 / record['ms']:.0f} it/s", *figures])


@contextmanager
def interruptions() -> Iterator[Callable[[], int | None]]:
    """Catches SIGINT and SIGTERM; the function it yields tells which came first, if any. A second one is not caught."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, _: Any) -> None:
        received.append(number)
        for each, handler in previous.items():
            signal.signal(each, handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, note)
    except ValueError:  # not in the main thread: whoever runs the loop there handles signals
        pass
    try:
        yield lambda: received[0] if received else None
    finally:
        for caught, handler in previous.items():
            signal.signal(caught, handler)


def event_writer(run: Run) -> Callable[[dict[str, Any]], None]:
    """Writes records as TensorBoard events where TensorBoard is installed (the extra `tensorboard`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return lambda record: None
    writer = SummaryWriter(str(run.path / "events"))

    def write(record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                writer.add_scalar(name, value, record["step"])
        writer.flush()

    return write

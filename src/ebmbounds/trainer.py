"""The training loop: steps, logs, checkpoints, signals, divergence. It knows nothing of methods, networks or data."""

import math
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ebmbounds.distributed import ALONE, Group
from ebmbounds.progress import Show, bar, event_writer
from ebmbounds.run import Run, flatten
from ebmbounds.side_by_side import Turns, play
from ebmbounds.signals import Interruptions, Stopped, interruptions
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
    patience: int = 0
    """Checkpoints without a new best after which training ends; 0: it never ends early."""
    rollbacks: int = 0
    """How often a run that diverged goes back to its last checkpoint, for new noise and half the step size."""

    group: Group = ALONE
    """The processes that train together. All hold the same state and log, so all decide alike; the first one writes."""

    def train(self, state: State, best: float = math.inf) -> int | None:
        """Run to the end, or until SIGINT or SIGTERM, whose number is then returned. The state is saved in any case,
        but for a signal in a session's first iteration: what is on disk then is the state before it."""
        with interruptions() as interrupted:
            return play([self.turns(state, best, interrupted)], lambda: self.advance(state))

    def turns(self, state: State, best: float, interrupted: Interruptions) -> Turns:
        """The loop of `train`, for `play`."""
        step = first = int(state["step"])
        saved = self.run.checkpoint().exists()
        if self.rollbacks and not saved:  # there must be something to go back to
            self.run.save(state, best=best)
            saved = True
        events = event_writer(self.run.path / "events") if self.group.leads else lambda record: None
        with self.shown(step) as show:
            stopped, told = self.group.agreed(interrupted), None
            mark, since, in_vain = time.perf_counter(), step, 0
            while True:
                try:
                    if self.due(step) and float(state["log"][COUNT]):  # sums that nobody has read
                        record: dict[str, Any] = {"step": step}
                        if step > since:
                            record["ms"] = 1e3 * max(time.perf_counter() - mark, 1e-9) / (step - since)
                        known, best = best, self.record(state, record, best, interrupted)
                        if self.saves(step):
                            saved, in_vain = True, 0 if best < known else in_vain + 1
                        mark, since = time.perf_counter(), step
                        events(record)
                        show(record)
                    if step >= self.steps or (told := stopped()) or (self.patience and in_vain >= self.patience):
                        break
                    with interrupted.at_once() if step == first else nullcontext():  # while it may be compiling
                        yield
                    step, saved = step + 1, False
                except Diverged as error:
                    if self.group.leads:
                        best = self.roll_back(state, error)
                    elif not self.rollbacks:
                        raise
                    self.group.align(state)
                    step = since = int(state["step"])
                    mark, saved = time.perf_counter(), True
                except Stopped:
                    saved = saved or step == first  # the first iteration may have been left half-way
                    break
            if not saved:
                self.check_state(state)
                self.run.save(state, best=best)
            return told or interrupted()

    def shown(self, step: int) -> AbstractContextManager[Show]:
        return bar(self.run.path.name, step, self.steps) if self.progress else nullcontext(lambda record: None)

    def saves(self, step: int) -> bool:
        return step % self.checkpoint_every == 0 or step == self.steps

    def due(self, step: int) -> bool:
        return step % self.log_every == 0 or self.saves(step)

    def record(self, state: State, record: dict[str, Any], best: float, interrupted: Interruptions) -> float:
        """Read the log, the only place where the host waits for the device; complete and write the record, and the
        checkpoint where one is due. Gives the best figure so far. Until the end the log's sums stay in the state, so
        that one saved before then has its record still to come."""
        step, log = record["step"], state["log"]
        count = float(log[COUNT])
        record |= {name: float(total) / count for name, total in log.items() if name != COUNT}
        self.check({name: value for name, value in record.items() if name not in ("step", "ms")}, step)
        if tries := int(state.get("tries", 0)):
            record["tries"] = tries
        figures: Figures = {}
        if self.saves(step):
            self.check_state(state)
            with interrupted.at_once():  # an evaluation can take long, and takes nothing from the state
                figures = self.watch(state)
            self.run.thin_pictures()
        record |= figures
        self.run.log(record)  # before the checkpoint: a run killed between the two logs this step anew
        for total in log.values():
            total.zero_()
        return self.save(state, figures, best) if self.saves(step) else best

    def check(self, figures: Figures, step: int) -> None:
        for name, value in figures.items():
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

    def roll_back(self, state: State, error: Diverged) -> float:
        """Take up the last checkpoint, in place, for another try (see `step`); or give up. Gives the best figure."""
        found = self.run.latest() if self.rollbacks else None
        if found is None:
            raise error
        good, notes = found
        for name, tensor in flatten(good).items():
            flatten(state)[name].copy_(tensor)
        step, tries = int(state["step"]), int(state["tries"]) + 1
        if tries > self.rollbacks:
            raise Diverged(f"given up after {tries} tries from step {step}, each at half the step size before: {error}")
        warnings.warn(f"{error} Try {tries + 1} begins at step {step}, at half the step size.", stacklevel=3)
        state["tries"].fill_(tries)
        self.run.rewind_log(step)
        self.run.save(state, **notes)
        return float(notes["best"])

    def save(self, state: State, figures: Figures, best: float) -> float:
        """Write `last`, and `best` where the named figure is lower than ever."""
        value = figures.get(self.best_by, math.inf)
        if value < best:
            best = value
            self.run.save(state, "best", best=best)
        self.run.save(state, best=best)
        return best

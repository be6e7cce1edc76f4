"""Several runs of one experiment in one process: their states stacked, so that one iteration advances them all.

Small networks leave a GPU idle: an iteration takes as long as its kernels take to start. Stacked, every kernel works
for all runs at once: `torch.func.vmap` of the step. What a run computes is what it computes alone, up to rounding.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

import torch
from torch.utils import _pytree as pytree

from ebmbounds.signals import Stopped
from ebmbounds.step import State

Turns = Generator[None, None, int | None]
"""A training loop: at each `yield` it waits for an iteration; in the end it gives the signal that ended it, if any."""


def stacked(states: Sequence[State]) -> tuple[State, list[State]]:
    """The states as one, with a first dimension for the run; and each of them as a view of it, in which everything that
    happens to the one is seen, and the reverse."""
    whole = pytree.tree_map(lambda *leaves: torch.stack(leaves), *states)
    return whole, [pytree.tree_map(lambda leaf, i=i: leaf[i], whole) for i in range(len(states))]


def play(runs: Sequence[Turns], advance: Callable[[], None]) -> int | None:
    """Run loops side by side; `advance` makes an iteration for all of them. Where one ends before the others, by its
    last step, a signal or an error, the others save where they are and end too."""
    told: int | None = None
    error: BaseException | None = None
    while runs:
        going: list[Turns] = []
        try:
            for run in runs:
                try:
                    next(run) if error is None else run.throw(error)
                    going.append(run)
                except StopIteration as end:
                    told = told or end.value
        except BaseException:
            for run in runs:
                with suppress(StopIteration, Stopped):
                    run.throw(Stopped())
            raise
        error = Stopped() if len(going) < len(runs) else None
        runs = going
        if runs and error is None:
            try:
                advance()
            except BaseException as raised:
                error = raised
    return told

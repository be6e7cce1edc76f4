"""What a run shows of itself while it trains: a bar or a few lines, and TensorBoard events."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Show = Callable[[dict[str, Any]], None]
SHOWN = ("loss_energy", "loss_generator", "lower_bound", "entropy", "nll", "fid", "modes")


@contextmanager
def bar(name: str, step: int, steps: int) -> Iterator[Show]:
    """A live progress bar on a terminal; one line per tenth of the run elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        tenth = max(steps // 10, 1)
        done = step // tenth

        def line(record: dict[str, Any]) -> None:
            nonlocal done
            if record["step"] // tenth > done or record["step"] == steps:
                done = record["step"] // tenth
                sys.stderr.write(f"step {record['step']}/{steps}  {summary(record)}\n")

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
        task = progress.add_task(name, total=steps, completed=step, figures="")
        yield lambda record: progress.update(task, completed=record["step"], figures=summary(record))


def summary(record: dict[str, Any]) -> str:
    figures = [f"{name} {record[name]:.4g}" for name in SHOWN if name in record]
    return "  ".join([f"{1e3 / record['ms']:.0f} it/s"] * ("ms" in record) + figures)


def event_writer(folder: Path) -> Show:
    """Writes records as TensorBoard events where TensorBoard is installed (the extra `tensorboard`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return lambda record: None
    writer = SummaryWriter(str(folder))
    works = True

    def write(record: dict[str, Any]) -> None:
        nonlocal works
        try:
            for name, value in record.items() if works else ():
                if name != "step" and isinstance(value, int | float):
                    writer.add_scalar(name, value, record["step"])
            writer.flush()
        except OSError as error:  # a full disk, say: the run itself, and what is said of it, is another matter
            works = False
            warnings.warn(f"no more events for TensorBoard: {folder} cannot be written ({error}).", stacklevel=2)

    return write

"""The paper's tables and figures, each from one command: runs, their evaluation, a summary, a picture and tables.

from ebmbounds.reproduce import reproduce
reproduce("toy-density", quick=True)
"""

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebmbounds.errors import BadInput
from ebmbounds.machine import resolve_device
from ebmbounds.reproduce.catalog import REPRODUCTIONS, find, of_methods
from ebmbounds.reproduce.page import page
from ebmbounds.reproduce.runs import Outcome, complete_all
from ebmbounds.reproduce.summary import Summary, caption, read_summary, summarise, table
from ebmbounds.run import write_atomically, write_json

RUNS, RESULTS, PAGE = Path("runs/reproduce"), Path("results"), Path("docs/reproduction.md")


@dataclass(frozen=True)
class Reproduced:
    summary: Summary
    outcome: Outcome
    written: tuple[Path, ...]
    """None where no run is finished here."""
    kept: int
    """Runs of the summary that have no folder here: what an earlier one held of them."""


def reproduce(
    name: str,
    *,
    quick: bool = False,
    methods: Sequence[str] = (),
    seeds: int | None = None,
    parallel: int = 1,
    budget: float = math.inf,
    runs: Path = RUNS,
    results: Path = RESULTS,
    device: str = "auto",
    data: Path | str | None = None,
    progress: bool = False,
) -> Reproduced:
    """Train and evaluate what is not finished of a reproduction, as far as the budget in seconds allows, then write
    NAME.json, NAME.png, NAME.md, NAME.tex and NAME.html into the folder of results, from all runs that are finished.
    What NAME.json held of runs that have no folder here is kept; where their settings are others now, the rows say so.

    quick: far fewer steps, into files of their own. methods: only runs of these are worked on. seeds: 0 to seeds - 1,
    by default as many as the reproduction has. parallel: so many processes at a time.
    """
    reproduction = find(name)
    device = resolve_device(device)
    tasks = reproduction.tasks(runs, seeds, quick)
    chosen = of_methods(tasks, list(methods))
    units = reproduction.units(chosen)
    stem = results / reproduction.stem(quick)
    earlier = read_summary(stem.with_name(f"{stem.name}.json"))  # now: what is wrong with it should not wait for hours
    outcome = complete_all(units, device=device, data=data, parallel=parallel, budget=budget, progress=progress)
    summary = summarise(reproduction, tasks, runs, outcome.failures, quick, earlier)
    folders = [task.folder for task in tasks if task.finished()]
    written: tuple[Path, ...] = ()
    if folders and outcome.signal is None:
        written = tuple(stem.with_name(stem.name + ending) for ending in (".json", ".png", ".md", ".tex"))
        shown = table(summary)
        write_json(written[0], summary)
        reproduction.draw(written[1], caption(summary), summary, runs)
        write_atomically(written[2], shown.markdown().encode())
        write_atomically(written[3], shown.latex().encode())
        written += page_of(folders, stem, caption(summary))
    return Reproduced(summary, outcome, written, kept=len(summary["runs"]) - len(folders))


def page_of(folders: Sequence[Path], stem: Path, title: str) -> tuple[Path, ...]:
    """NAME.html; where it cannot be made, nothing but a warning: the runs took hours, and the tables are there."""
    from ebmbounds.report import write_report  # which builds on this package

    path = stem.with_name(f"{stem.name}.html")
    try:
        write_report(folders, path, title)
    except BadInput as error:
        warnings.warn(f"{path} was not written: {error}", stacklevel=2)
        return ()
    return (path,)


def write_page(results: Path = RESULTS, path: Path = PAGE) -> None:
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} does not exist: write the page from the root of a checkout.")
    write_atomically(path, page(results, path.parent).encode())


def seconds(text: str) -> float:
    """A time limit such as 90s, 9m, 2h or 1h30m; 0s starts no run."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if not text or found is None:
        raise BadInput(f"{text!r} is no time limit: write hours, minutes and seconds, for example 9m or 1h30m.")
    return float(sum(int(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)))


__all__ = ["REPRODUCTIONS", "Reproduced", "page", "reproduce", "seconds", "table", "write_page"]

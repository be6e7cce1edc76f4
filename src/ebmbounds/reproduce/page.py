"""docs/reproduction.md, written from the summaries in the folder of results and nothing else."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ebmbounds.experiments import experiment
from ebmbounds.reproduce.catalog import REPRODUCTIONS, Reproduction
from ebmbounds.reproduce.summary import Summary, caption, changed_since, table
from ebmbounds.reproduce.tables import Table
from ebmbounds.run import read_json

HEAD = """\
# The paper's tables and figures, reproduced

Written by `ebmbounds reproduce page` from the files in [results]({results}); change those by running, not this page by
hand. Figures are means over seeds, with the standard deviation where there are several; below them stands what the
paper prints. `ebmbounds reproduce NAME` trains what is missing, goes on with what was interrupted, and skips what is
finished, also on another machine to which the run folders were moved (runs/reproduce by default). A finished run
counts without its checkpoints."""


def page(results: Path, place: Path) -> str:
    """The text of the page, for a file in the folder `place`."""
    to_results = Path(os.path.relpath(results, place)).as_posix()
    parts = [HEAD.format(results=to_results)]
    for reproduction in REPRODUCTIONS.values():
        parts.append(f"## {reproduction.shows}")
        parts.append(f"The paper's {reproduction.reference}; `ebmbounds reproduce {reproduction.name}`.")
        for quick in (False, True):
            path = results / f"{reproduction.stem(quick)}.json"
            if path.exists():
                parts += section(read_json(path), f"{to_results}/{reproduction.stem(quick)}.png")
            elif not quick:
                parts.append("**Not run yet.**")
        parts += differences(reproduction)
    return "\n\n".join(parts) + "\n"


def section(summary: Summary, picture: str) -> Iterator[str]:
    yield table(summary).markdown().strip()
    yield f"![{caption(summary)}]({picture})"
    if summary["unfinished"]:
        yield "Not finished:\n\n" + "\n".join(f"- {each['run']}: {each['state']}" for each in summary["unfinished"])
    yield run_table(summary).markdown().strip()
    if dated := list(dated_runs(summary)):
        yield "Settings that have changed since a run, which is to be made again:\n\n" + "\n".join(dated)
    if protocol := list(protocol_lines(summary)):
        yield "How the figures were taken:\n\n" + "\n".join(protocol)


def run_table(summary: Summary) -> Table:
    rows = [
        (
            run["run"].rpartition("/")[2],
            ", ".join([run["settings_from"], *(f"{key}={value}" for key, value in run["overrides"].items())]),
            run["network"],
            f"{run['iterations']:,}",
            f"{run['seconds']:,.0f}",
            f"{run['machine']}, torch {run['versions']['torch']}",
        )
        for run in summary["runs"]
    ]
    head = ("run", "settings", "networks", "iterations", "seconds of training", "machine")
    return Table("The runs; time includes compiling, and leaves out evaluation along the way.", head, tuple(rows))


def dated_runs(summary: Summary) -> Iterator[str]:
    for run in summary["runs"]:
        if changed := changed_since(run, experiment(run["experiment"], run["overrides"])):
            yield f"- {run['run']}: {', '.join(changed)}"


def protocol_lines(summary: Summary) -> Iterator[str]:
    """Those lines of the protocols that concern a column of the table."""
    heads = {column.key.partition(".")[0] for column in REPRODUCTIONS[summary["reproduction"]].columns}
    for dataset, protocol in summary["protocol"].items():
        for key, how in protocol.items():
            if key in heads:
                yield f"- {dataset}, {key}: {in_words(how)}"


def in_words(how: Any) -> str:
    if isinstance(how, Mapping):
        return "; ".join(f"{key}: {in_words(value)}" for key, value in how.items())
    return how if isinstance(how, str) else json.dumps(how)


def differences(reproduction: Reproduction) -> Iterator[str]:
    if reproduction.notes:
        yield "\n".join(f"- {note}" for note in reproduction.notes)

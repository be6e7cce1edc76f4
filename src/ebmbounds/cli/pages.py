"""Commands that set many runs side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ebmbounds.cli.base import AsJson, DataFolder, Device, app, show
from ebmbounds.errors import BadInput
from ebmbounds.report import write_report


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, set side by side.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
) -> None:
    """One page to look at, offline: figures, curves, densities, samples, energies, and how to repeat each run."""
    if output.suffix not in (".html", ".htm"):
        raise BadInput(f"the page cannot be written to {output}: name a file that ends in .html.")
    write_report(runs, output, title)
    typer.echo(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB): open it in a browser")


@app.command("reproduce")
def reproduce_command(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="What to reproduce; without it, what there is.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Far fewer steps, minutes on a CPU.")] = False,
    budget: Annotated[str, typer.Option(help="Stop and save after this time, say 1h30m; 0s writes tables only.")] = "",
    method: Annotated[list[str] | None, typer.Option(help="Work on runs of this method only (repeatable).")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each experiment.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Processes side by side, on one device.")] = 1,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder for JSON, picture and tables.")] = Path("results"),
    device: Device = "auto",
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Train, evaluate and tabulate what a table or figure of the paper shows. Finished runs are skipped, interrupted
    ones resumed. `reproduce page` writes docs/reproduction.md from the results."""
    from ebmbounds import reproduce as room

    if name == "page":
        room.write_page(results)
        return
    if not name:
        show(["name", "what", "in the paper"], [(r.name, r.shows, r.reference) for r in room.REPRODUCTIONS.values()])
        return
    found = room.reproduce(
        name,
        quick=quick,
        methods=method or [],
        seeds=seeds,
        parallel=parallel,
        budget=room.seconds(budget) if budget else float("inf"),
        runs=runs,
        results=results,
        device=device,
        data=data,
        progress=True,
    )
    if as_json:
        typer.echo(json.dumps(found.summary, indent=2))
    else:
        table = room.table(found.summary)
        typer.echo(table.caption)
        show(list(table.head), table.rows)
    if found.kept:
        typer.echo(f"without a folder in {runs}, and kept as the results held them: {found.kept} of the runs", err=True)
    if found.written:
        typer.echo(f"written to {', '.join(map(str, found.written))}", err=True)
    if missing := found.summary["unfinished"]:
        total = len(missing) + len(found.summary["runs"])
        typer.echo(f"{len(missing)} of {total} runs are not finished: go on with the same command", err=True)
    if found.outcome.signal:
        raise SystemExit(128 + found.outcome.signal)
    if found.outcome.failures:
        raise SystemExit(1)

"""What the commands share: the app they hang on, options of one meaning, and tables in the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import ebmbounds
from ebmbounds.errors import BadInput

app = typer.Typer(
    help="Train energy-based models between two bounds, without MCMC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data sets (else EBMBOUNDS_DATA, else ./data).")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or DATASET/METHOD@pretrained.")]
Checkpoint = Annotated[str, typer.Option(help="Which checkpoint: last or best.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ebmbounds {ebmbounds.__version__}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=version, is_eager=True)
    ] = False,
) -> None:
    pass


def parse(overrides: list[str]) -> dict[str, Any]:
    pairs = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"{text!r} is no setting: write KEY=VALUE, for example steps=1000.")
        if key in pairs:
            raise BadInput(f"{key} is set twice: give it once.")
        pairs[key] = value
    return pairs


def show(head: list[str], rows: Sequence[tuple[str, ...]]) -> None:
    """A table; tab-separated where the output is no terminal."""
    console = Console(markup=False, highlight=False)  # names of files are text, whatever brackets they have
    if not console.is_terminal:
        for row in [tuple(head), *rows]:
            typer.echo("\t".join(row))
        return
    table = Table(*head, box=None, pad_edge=False)
    table.columns[0].no_wrap = True  # where it is narrow, figures take a second line and names stay whole
    for column, cells in zip(table.columns[1:], list(zip(*rows, strict=True))[1:], strict=False):
        if all(cell[:1].isdigit() or cell[:1] in "-" for cell in cells):  # figures, or a dash for none
            column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)

"""Commands about data sets."""

import json
import sys

import typer

from ebmbounds import data as data_sets
from ebmbounds.cli.base import AsJson, DataFolder, app, show

data_app = typer.Typer(help="Look at and fetch data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list(data: DataFolder = None, as_json: AsJson = False) -> None:
    """The data sets there are, and which are at hand."""
    from ebmbounds.data.catalog import IMAGE_SETS
    from ebmbounds.data.registry import data_root, describe

    rows = [{"name": name, "kind": "toy", "at_hand": True} for name in data_sets.TOYS]
    for name in IMAGE_SETS:
        holdings = describe(name, data_root(data))
        rows.append({"name": name, "kind": "images", "at_hand": bool(holdings.present) and not holdings.missing})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        show(
            ["data set", "kind", "at hand"],
            [(str(r["name"]), str(r["kind"]), "yes" if r["at_hand"] else "no") for r in rows],
        )


@data_app.command("info")
def data_info(name: str, data: DataFolder = None) -> None:
    """What a data set is, which of its files are at hand and which are missing."""
    from ebmbounds.data.registry import data_root, describe, image_set

    if name in data_sets.TOYS:
        toy = data_sets.TOYS[name]
        show(
            ["", name],
            [("what", (type(toy).__doc__ or "").split("\n")[0]), ("entropy", f"{toy.entropy():.4f} nats")],
        )
        return
    info, holdings = image_set(name), describe(name, data_root(data))
    rows = [
        (key, str(value))
        for key, value in vars(info).items()
        if isinstance(value, str | int | tuple) and key != "remotes"
    ]
    rows += [("present", f"{path} ({size:,} bytes)") for path, size in holdings.present.items()]
    rows += [("missing", str(path)) for path in holdings.missing]
    show(["", name], rows)


@data_app.command("fetch")
def data_fetch(name: str, data: DataFolder = None) -> None:
    """Download a data set's files, checked by their sha256."""
    from ebmbounds.data.registry import data_root, fetch

    if name in data_sets.TOYS:
        typer.echo(f"{name} is generated: there is nothing to fetch")
        return
    holdings = fetch(name, data_root(data), progress=sys.stderr.isatty())
    typer.echo(f"{name}: {len(holdings.present)} files at hand")

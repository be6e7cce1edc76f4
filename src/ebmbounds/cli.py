"""The command line."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import ebmbounds
from ebmbounds import data as data_sets
from ebmbounds import experiments
from ebmbounds.errors import BadInput
from ebmbounds.launch import Interrupted, evaluate_run, load, resolve_device, train
from ebmbounds.refine import Refinement, refined_samples
from ebmbounds.run import write_atomically
from ebmbounds.trainer import Diverged

app = typer.Typer(
    help="Train energy-based models between two bounds, without MCMC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at and fetch data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data sets (else EBMBOUNDS_DATA, else ./data).")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
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


@app.command("train")
def train_command(
    name: Annotated[str, typer.Argument(metavar="DATASET/METHOD[@VARIANT]", help="See `ebmbounds list`.")] = "",
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder (default: runs/NAME-seedN).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --run from its last checkpoint.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    data: DataFolder = None,
) -> None:
    """Train an experiment into a run folder. Ctrl-C and SIGTERM save and end it; --resume goes on exactly there."""
    if not name and not resume:
        raise BadInput("name an experiment, for example 25gaussians/ebm-bb@quick; `ebmbounds list` shows them all.")
    if "=" in name:  # only overrides were given: with --resume the name may be left out
        name, overrides = "", [name, *(overrides or [])]
    folder = train(name, parse(overrides or []), run=run, resume=resume, seed=seed, device=device, data=data)
    typer.echo(f"trained; evaluate it with: ebmbounds evaluate {folder.path}")


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


@app.command("evaluate")
def evaluate_command(
    run: RunFolder,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    data: DataFolder = None,
    inception: Annotated[Path | None, typer.Option(help="File of the Inception network, for FID.")] = None,
    fid_samples: Annotated[int | None, typer.Option(help="Generated samples for FID (default 10,000).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write metrics.json and pictures into the run folder, and show the figures."""
    options: dict[str, Any] = {"root": data, "inception": inception, "fid_samples": fid_samples}
    options["progress"] = sys.stderr.isatty()
    given = {key: value for key, value in options.items() if value is not None}
    figures = evaluate_run(run, checkpoint, device, **given)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    rows = [(name, shown(value)) for name, value in flattened(figures) if not name.startswith(("protocol", "versions"))]
    show(["figure", "value"], rows)
    typer.echo(f"written to {run / 'metrics.json'}, with how each figure was taken")


def flattened(figures: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@app.command("sample")
def sample_command(
    run: RunFolder,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="FILE.npy, FILE.csv, FILE.png, or a new folder for PNGs.")
    ],
    number: Annotated[int, typer.Option("-n", min=1, max=10_000_000, help="How many samples.")] = 64,
    refine: Annotated[Refinement | None, typer.Option(help="Draw from the energy itself.")] = None,
    checkpoint: Checkpoint = "last",
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Draw samples of the generator, or of the energy with --refine."""
    if output.exists():
        raise BadInput(f"{output} exists: name another file.")
    write = writer_for(output)
    _, model = load(run, checkpoint, resolve_device(device))
    x = model.sample(number, seed) if refine is None else refined_samples(model, number, refine, seed)
    write(x.cpu().numpy())
    typer.echo(f"wrote {number} samples to {output}")


def writer_for(path: Path) -> Callable[[np.ndarray], None]:
    """How samples are written to a path of that ending."""
    from ebmbounds import sample_files

    writers = {".npy": sample_files.write_npy, ".csv": sample_files.write_csv, ".png": sample_files.write_png}
    if path.suffix not in ("", *writers):
        raise BadInput(
            f"samples cannot be written to {path}: use an ending of .npy, .csv or .png, or none for a folder."
        )
    write = writers.get(path.suffix, sample_files.write_folder)
    return lambda x: write(path, x)


@app.command("score")
def score_command(
    run: RunFolder,
    source: Annotated[
        Path, typer.Argument(metavar="DATA", help="An image, a folder of images, or .npy/.npz/.csv rows.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV file of names and energies.")],
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
) -> None:
    """Energies of your own data: the lower, the more likely."""
    import torch

    from ebmbounds.data.arrays import read_array
    from ebmbounds.image_evaluation import read_user_images

    if output.exists():
        raise BadInput(f"{output} exists: name another file.")
    _, model = load(run, checkpoint, resolve_device(device))
    if len(model.data_shape) == 3:
        names, images = read_user_images(source, model.data_shape)
        energies = torch.cat(
            [
                model.energies(data_sets.to_unit_range(torch.from_numpy(images[i : i + 1000])))
                for i in range(0, len(images), 1000)
            ]
        )
    else:
        rows = read_array(source)
        if rows.shape[1:] != model.data_shape:
            raise BadInput(f"{source} holds rows of shape {rows.shape[1:]}, and the model wants {model.data_shape}.")
        names, energies = (
            [str(i) for i in range(len(rows))],
            model.energies(torch.as_tensor(rows, dtype=torch.float32)),
        )
    text = io.StringIO()
    csv.writer(text).writerows([("name", "energy"), *zip(names, energies.tolist(), strict=True)])
    write_atomically(output, text.getvalue().encode())
    typer.echo(f"wrote {len(names)} energies to {output}")


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """The experiments there are, and where their settings come from."""
    rows = []
    for name in experiments.names():
        spec = experiments.experiment(name)
        rows.append({"name": name, "steps": spec.schedule.steps, "network": spec.network, "source": spec.source})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        show(["experiment", "steps", "network", "source"], [tuple(map(str, row.values())) for row in rows])


@app.command("bench")
def bench_command(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT")] = "25gaussians/ebm-bb",
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Time one iteration in every way there is, and the research formulation beside them."""
    from ebmbounds.bench import bench

    timings = bench(name, parse(overrides or []), resolve_device(device))
    if as_json:
        typer.echo(json.dumps([vars(timing) for timing in timings], indent=2))
        return
    slowest = max(timing.milliseconds for timing in timings)
    rows = [
        (
            timing.way,
            f"{timing.milliseconds:.2f}",
            f"{slowest / timing.milliseconds:.1f}",
            "" if timing.kernels is None else str(timing.kernels),
            "" if timing.memory is None else f"{timing.memory:.2f}",
            f"{timing.setup:.0f}",
        )
        for timing in timings
    ]
    show(["way", "ms", "ratio", "kernels", "GB", "set-up s"], rows)


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


def show(head: list[str], rows: Sequence[tuple[str, ...]]) -> None:
    """A table; tab-separated where the output is no terminal."""
    console = Console()
    if not console.is_terminal:
        for row in [tuple(head), *rows]:
            typer.echo("\t".join(row))
        return
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Errors that the user can mend, as one sentence and exit code 2; interruptions and divergence by their own."""
    try:
        yield
    except BadInput as error:
        fail(error, 2)
    except Diverged as error:
        fail(error, 1)
    except Interrupted as error:
        fail(error, 128 + error.signal)


def fail(error: Exception, code: int) -> None:
    typer.echo(f"ebmbounds: {error}", err=True)
    raise SystemExit(code)


def main() -> None:
    with one_sentence():
        app()

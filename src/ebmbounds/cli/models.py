"""Commands about a trained run: its figures, its samples, its energies of your own data."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ebmbounds import data as data_sets
from ebmbounds.card import as_text
from ebmbounds.cli.base import AsJson, Checkpoint, DataFolder, Device, RunFolder, Seed, app, show
from ebmbounds.errors import BadInput
from ebmbounds.launch import evaluate_run, load
from ebmbounds.machine import resolve_device
from ebmbounds.refine import Refinement, refined_samples
from ebmbounds.reproduce.summary import flattened
from ebmbounds.run import write_atomically


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
    rows = [
        (name, as_text(value)) for name, value in flattened(figures) if not name.startswith(("protocol", "versions"))
    ]
    show(["figure", "value"], rows)
    typer.echo(f"written to {run / 'metrics.json'}, with how each figure was taken")


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


@app.command("export")
def export_command(
    run: RunFolder,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to make.")],
    checkpoint: Checkpoint = "last",
) -> None:
    """Make a small folder of a run to give away: the model in half precision, its figures, and a card."""
    from ebmbounds.export import export

    exported = export(run, output, checkpoint)
    size = exported.checkpoint().stat().st_size
    typer.echo(f"wrote {output} (weights of {size / 1e6:.1f} MB); its card is {output / 'README.md'}")


@app.command("explore")
def explore_command(
    run: RunFolder,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    data: DataFolder = None,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is reached from this machine only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
) -> None:
    """Play with a model in the browser: samples of a seed, walks between latents, energies of your own data."""
    from ebmbounds.explore import explore

    def ready(address: str) -> None:
        typer.echo(f"open {address} in a browser; Ctrl-C ends it")

    explore(run, checkpoint=checkpoint, device=device, data=data, host=host, port=port, ready=ready)

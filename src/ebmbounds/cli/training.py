"""Commands about experiments: what there is, training one, timing one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ebmbounds import experiments
from ebmbounds.cli.base import AsJson, DataFolder, Device, Seed, app, parse, show
from ebmbounds.errors import BadInput
from ebmbounds.launch import train
from ebmbounds.machine import resolve_device


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
    settings = parse(overrides or [])
    folder = train(name, settings, run=run, resume=resume, seed=seed, device=device, data=data)
    typer.echo(f"trained; evaluate it with: ebmbounds evaluate {folder.path}")


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
    from ebmbounds.bench import bench, matrix_product

    device = resolve_device(device)
    timings = bench(name, parse(overrides or []), device)
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
            "" if timing.tflops is None else f"{timing.tflops:.0f}",
            f"{timing.setup:.0f}",
        )
        for timing in timings
    ]
    show(["way", "ms", "ratio", "kernels", "GB", "TFLOP/s", "set-up s"], rows)
    if device != "cpu":
        typer.echo(f"a bf16 matrix product reaches {matrix_product():.0f} TFLOP/s here")

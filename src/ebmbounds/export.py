"""A run folder made small enough to be given away: the model alone, in half precision, with its card.

config.json      what was run, without the folders of the machine that ran it
checkpoints/     last.safetensors: the networks that `load` gives (their moving average, where the run keeps one)
metrics.json     the figures of this checkpoint, where `evaluate` has taken them
energies.npz     those of the test set, so that a percentile needs no data
README.md        the card, written from the others
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ebmbounds.card import card
from ebmbounds.errors import BadInput
from ebmbounds.evaluated import read_energies, write_energies
from ebmbounds.launch import load
from ebmbounds.pretrained import opened
from ebmbounds.run import Run, read_json, write_atomically, write_json

HALF_ROUNDING = 2**-11
"""The largest relative error of a number rounded to half precision, where its range holds it."""
ABSOLUTE_PATH = re.compile(r"(?<![\w./\\:])(?:/|[A-Za-z]:\\)[^\s,;:'\"()]*[^\s,;:'\"().]")


def export(run: Path | str | Run, folder: Path | str, checkpoint: str = "last") -> Run:
    """Write the model of a run's checkpoint to a new folder, which can be used wherever a run is only read."""
    source, target = opened(run), Path(folder)
    if target.exists():
        raise BadInput(f"{target} exists: name another folder.")
    _, model = load(source, checkpoint)
    figures = source.path / "metrics.json"
    metrics = read_json(figures) if figures.is_file() else None
    if metrics and metrics.get("iterations") != model.iterations:
        raise BadInput(
            f"{figures} is about iteration {metrics.get('iterations')} and the checkpoint {checkpoint!r} is of "
            f"{model.iterations}: take its figures with `ebmbounds evaluate {source.path} --checkpoint {checkpoint}`."
        )
    config = {key: value for key, value in source.config.items() if key != "data_root"}
    tables = model.tables()
    weights = pytree.tree_map(halved, tables["parameters"])
    exported = Run.create(target, without_folders(config))
    exported.save(
        {"parameters": weights, "buffers": tables["buffers"]}
        | {"seed": torch.tensor(config["seed"]), "step": torch.tensor(model.iterations)}
    )
    if metrics:
        write_json(target / "metrics.json", without_folders(metrics))
        if (test := read_energies(source).get("test")) is not None:
            write_energies(exported, {"test": test})
    write_atomically(target / "README.md", card(exported).encode())
    return exported


def halved(weights: Tensor) -> Tensor:
    """Matrices and kernels in half precision, where that costs their norm no more than rounding does: not where they
    overflow or fade away. Vectors (biases, gains) take no room and stay as they are, and so do buffers: a variance is
    divided by."""
    if weights.dim() < 2:
        return weights
    half = weights.half()
    error = torch.linalg.vector_norm(half.double() - weights.double())
    return half if error <= HALF_ROUNDING * torch.linalg.vector_norm(weights.double()) else weights


def without_folders(value: Any) -> Any:
    """A tree of JSON in which absolute paths inside of texts are cut down to the names of their files."""
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if isinstance(value, str):
        return ABSOLUTE_PATH.sub(lambda path: re.split(r"[/\\]", path.group())[-1], value)
    return value

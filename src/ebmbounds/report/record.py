"""One run as a report shows it: what it is, how to repeat it, its log, figures, pictures and arrays."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ebmbounds.errors import BadInput
from ebmbounds.evaluated import DensityMap, read_density, read_energies
from ebmbounds.experiments import DEFAULT, experiment
from ebmbounds.launch import RUN_KEYS
from ebmbounds.reproduce.summary import REMARKS, flattened, training_seconds
from ebmbounds.run import Run, read_json

Curve = tuple[list[int], list[float]]
"""Iterations, and the values there."""


@dataclass(frozen=True)
class Record:
    """A run folder, read as far as it goes: a run may be under way, not evaluated, or without checkpoints."""

    run: Run

    @classmethod
    def open(cls, path: Path | str) -> "Record":
        record = cls(Run.open(path))
        kinds = dict.fromkeys(("dataset", "method", "variant", "source"), str) | {"seed": int, "steps": int}
        config = record.config if isinstance(record.config, dict) else {}
        if not all(isinstance(config.get(key), kind) for key, kind in kinds.items()):
            raise BadInput(
                f"{path} holds no run of an experiment (by its config.json): name a folder that `train` made."
            )
        return record

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.run.config

    @property
    def dataset(self) -> str:
        return self.config["dataset"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def experiment(self) -> str:
        """DATASET/METHOD[@VARIANT]."""
        variant = self.config["variant"]
        return f"{self.dataset}/{self.config['method']}" + ("" if variant == DEFAULT else f"@{variant}")

    @cached_property
    def changed(self) -> dict[str, str]:
        """The settings in which the run differs from its preset, as they are typed on the command line."""
        try:
            preset = experiment(self.experiment).config()
        except BadInput:  # a preset that this version does not have
            preset = {}
        remarks = ("dataset", "method", "variant", "source", *RUN_KEYS)
        return {
            key: as_typed(value)
            for key, value in self.config.items()
            if key not in remarks and (key not in preset or preset[key] != value)
        }

    @property
    def command(self) -> str:
        """What trains it again."""
        settings = (f"{key}={value}" for key, value in self.changed.items())
        return shlex.join(["ebmbounds", "train", self.experiment, *settings, "--seed", str(self.seed)])

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        return list(self.run.records())

    @property
    def iterations(self) -> int:
        return self.log[-1]["step"] if self.log else 0

    @cached_property
    def seconds(self) -> float:
        return training_seconds(self.run)

    def curve(self, key: str) -> Curve:
        """A figure of the log over iterations, where it was taken and finite."""
        points = [(line["step"], line[key]) for line in self.log if is_number(line.get(key))]
        return [step for step, _ in points], [value for _, value in points]

    @cached_property
    def metrics(self) -> dict[str, Any]:
        path = self.run.path / "metrics.json"
        return read_json(path) if path.is_file() else {}

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The numbers of metrics.json by their dotted names; what could not be measured is text that says why."""
        kept = {key: value for key, value in self.metrics.items() if key not in (*REMARKS, "iterations")}
        return dict(flattened(kept))

    @property
    def protocol(self) -> dict[str, str]:
        """How each figure was taken."""
        return {name: str(value) for name, value in flattened(self.metrics.get("protocol", {}))}

    @property
    def versions(self) -> dict[str, str]:
        return {"torch": self.config.get("torch", "unknown")} | self.metrics.get("versions", {})

    @property
    def frames(self) -> dict[int, Path]:
        """Pictures of samples along the way, by iteration."""
        paths = sorted((self.run.path / "pictures").glob("step_*.png"))
        return {int(path.stem[5:]): path for path in paths if path.stem[5:].isdecimal()}

    @cached_property
    def energies(self) -> Mapping[str, Any]:
        return read_energies(self.run)

    @cached_property
    def density(self) -> DensityMap | None:
        return read_density(self.run)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_typed(value: Any) -> str:
    """A setting as it is typed on the command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

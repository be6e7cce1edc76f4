"""Runs side by side: experiments with their seeds, and a table of figures with the best and the paper's values."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ebmbounds.report.record import Record, is_number
from ebmbounds.reproduce.catalog import REPRODUCTIONS
from ebmbounds.reproduce.summary import lookup, spread

IN_PASSING = {"log_every", "checkpoint_every", "watch_fid", "watch_entropy", "best_by", "compile", "threads"}
"""Settings that do not change what is trained."""

LOWER = {"nll", "nll_best_temperature", "border_mass", "fid", "kid", "kl", "kl_uniform", "fpr80", "fpr95", "anisotropy"}
HIGHER = {"modes", "modes_refined", "good_fraction", "good_fraction_refined", "inception_score", "f8", "f1_8"}
HIGHER |= {"auroc", "auprc"}
"""The figures of which one end is better, by the last part of their names."""
OF_FEATURES = {"fid", "kid", "inception_score", "f8", "f1_8"}
"""What is taken of the features of as many samples as the protocol says."""
MAIN = LOWER | HIGHER | {"data_entropy", "lower_bound", "upper_bound"}


@dataclass(frozen=True)
class Group:
    """The runs of one experiment, which differ in their seeds alone."""

    label: str
    records: tuple[Record, ...]

    @property
    def dataset(self) -> str:
        return self.records[0].dataset

    @cached_property
    def figures(self) -> dict[str, list[float] | str]:
        """[mean], or [mean, standard deviation] of several seeds, of each figure; or why it was not measured."""
        by_name: dict[str, list[Any]] = {}
        for record in self.records:
            for name, value in record.figures.items():
                if is_number(value) or str(value).startswith("not measured"):
                    by_name.setdefault(name, []).append(value)
        return {name: spread(values) for name, values in by_name.items()}

    @cached_property
    def paper(self) -> dict[str, Any]:
        """What the paper prints for this method on this data set, nested as in metrics.json."""
        name = self.records[0].experiment
        found: dict[str, Any] = {}
        for reproduction in REPRODUCTIONS.values():
            if any(each.startswith(f"{self.dataset}/") for each in reproduction.experiments):
                found |= reproduction.paper(name)
        if "reduced" in self.records[0].protocol.get("fid.protocol", ""):  # too few samples to compare
            found = {key: value for key, value in found.items() if key not in OF_FEATURES}
        return found


def groups(records: Sequence[Record]) -> list[Group]:
    """Experiments in the order in which they were named. A label tells no more than sets it apart from the others."""
    by_settings: dict[Any, list[Record]] = {}
    for record in records:
        by_settings.setdefault((record.experiment, *_settings(record).items()), []).append(record)
    found = []
    for (name, *settings), members in by_settings.items():
        namesakes = [set(others) for other, *others in by_settings if other == name]
        own = [f"{key}={value}" for key, value in settings if not all((key, value) in each for each in namesakes)]
        found.append(Group(" ".join([name, *own]), tuple(members)))
    return found


def _settings(record: Record) -> dict[str, str]:
    return {key: value for key, value in record.changed.items() if key not in IN_PASSING}


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False
    paper: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    better: str
    """`lower`, `higher` or nothing."""
    main: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class FigureTable:
    """The figures of the experiments on one data set."""

    dataset: str
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    protocol: dict[str, str]
    """How each figure was taken; one run stands for all."""


def figure_tables(found: Sequence[Group]) -> list[FigureTable]:
    """One for each data set with evaluated runs: figures of different data do not compare."""
    tables = []
    for dataset in dict.fromkeys(group.dataset for group in found):
        members = tuple(group for group in found if group.dataset == dataset)
        names = dict.fromkeys(name for group in members for name in group.figures)
        if names:
            protocol = {name: how for group in members for name, how in group.records[0].protocol.items()}
            tables.append(FigureTable(dataset, members, tuple(_row(name, members) for name in names), protocol))
    return tables


def _row(name: str, members: Sequence[Group]) -> Row:
    last = name.rpartition(".")[2]
    better = "lower" if last in LOWER else "higher" if last in HIGHER else ""
    values = [group.figures.get(name, "") for group in members]
    means = [value[0] for value in values if isinstance(value, list)]
    best = (min if better == "lower" else max)(means) if better and len(means) > 1 else None
    cells = (
        Cell(
            value.partition(":")[0] if isinstance(value, str) else shown(value),
            isinstance(value, list) and value[0] == best,
            shown(paper) if (paper := lookup(group.paper, name)) else "",
        )
        for value, group in zip(values, members, strict=True)
    )
    return Row(name, better, last in MAIN, tuple(cells))


def shown(value: Sequence[float]) -> str:
    """A mean, and the spread to fewer digits."""
    mean, *spreads = value
    first = f"{mean:,.0f}" if abs(mean) >= 10_000 else f"{mean:.4g}"
    return " ± ".join([first, *(f"{each:,.0f}" if abs(each) >= 100 else f"{each:.2g}" for each in spreads)])

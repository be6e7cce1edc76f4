"""From finished run folders to a summary, which is what results/NAME.json holds, and from the summary to a table."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebmbounds.errors import BadInput
from ebmbounds.experiments import Experiment
from ebmbounds.launch import changed_settings
from ebmbounds.reproduce.catalog import Column, Reproduction, find
from ebmbounds.reproduce.runs import Task
from ebmbounds.reproduce.tables import Table
from ebmbounds.run import Run, read_json

Summary = dict[str, Any]
REMARKS = ("protocol", "versions", "timings", "seconds", "experiment")
"""What metrics.json holds beside figures."""


def summarise(
    reproduction: Reproduction,
    tasks: Sequence[Task],
    runs: Path,
    failures: Mapping[Path, str],
    quick: bool,
    earlier: Summary | None = None,
) -> Summary:
    """Everything that is shown, from the folders below `runs`: for each row the mean and spread over seeds of each
    column and the paper's values; for each run its figures, iterations, time and machine; and what is not finished.

    `earlier`: a summary whose records stand for runs that have no folder here."""
    finished = [task for task in tasks if task.finished()]
    kept = {task.folder: found for task in tasks if (found := kept_record(task, runs, earlier))}
    records = [
        record(task, reproduction, runs) if task in finished else kept[task.folder]
        for task in tasks
        if task in finished or task.folder in kept
    ]
    return {
        "reproduction": reproduction.name,
        "reference": reproduction.reference,
        "quick": quick,
        "rows": rows(reproduction, records),
        "runs": records,
        "protocol": (earlier["protocol"] if kept and earlier else {}) | protocol(finished),
        "unfinished": [
            {"run": name_of(task, runs), "state": failures.get(task.folder, task.state())}
            for task in tasks
            if task not in finished and task.folder not in kept
        ],
    }


def read_summary(path: Path) -> Summary | None:
    """A summary that was written before, if any."""
    if not path.exists():
        return None
    found = read_json(path)
    runs = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(runs, list) or not all(isinstance(run, dict) and "run" in run for run in runs):
        raise BadInput(f"{path} is no summary of a reproduction: move it away, or name another folder with --results.")
    return found


def kept_record(task: Task, runs: Path, earlier: Summary | None) -> dict[str, Any] | None:
    """What an earlier summary holds of a run that has no folder here, labelled where its experiment has other settings
    now. Early summaries, which did not name settings, do not count."""
    if earlier is None or task.started:
        return None
    for each in earlier["runs"]:
        if each["run"] == name_of(task, runs) and "settings" in each:
            dated = changed_since(each, task.experiment)
            return each | {"label": f"{task.name} (earlier settings)" if dated else task.name}
    return None


def changed_since(record: Mapping[str, Any], spec: Experiment) -> list[str]:
    """The settings in which the run of a record differs from what its experiment is now."""
    changed = changed_settings(record["settings"] | {"seed": record["seed"]}, spec)
    return changed + ["steps"] * (record["iterations"] < spec.schedule.steps)


def record(task: Task, reproduction: Reproduction, runs: Path) -> dict[str, Any]:
    """What is kept of one run."""
    config, metrics = task.run.config, read_json(task.folder / "metrics.json")
    seconds = training_seconds(task.run)
    figures = {key: value for key, value in metrics.items() if key not in REMARKS}
    return {
        "run": name_of(task, runs),
        "experiment": task.name,
        "label": task.name,
        "overrides": {key: config[key] for key in task.overrides},  # the run's own: some may differ
        "network": config["network"],
        "settings_from": task.experiment.source,  # the run's own are the same, and what it said of them may be dated
        "settings": task.experiment.config(),
        "seed": task.seed,
        "iterations": metrics["iterations"],
        "seconds": round(seconds, 1),
        "machine": config.get("machine", config["device"]),
        "versions": metrics["versions"] | {"torch": config["torch"]},
        "figures": figures | {"hours": seconds / 3600},
        "curves": curves(task.run, [column.key for column in reproduction.columns]),
    }


def name_of(task: Task, runs: Path) -> str:
    return task.folder.relative_to(runs).as_posix()


def training_seconds(run: Run) -> float:
    """From the log: compiling included, figures and pictures along the way not, nor an interval whose record a signal
    put off to the next session."""
    seconds, before = 0.0, 0
    for line in run.records():
        seconds += line.get("ms", 0.0) / 1e3 * (line["step"] - before)
        before = line["step"]
    return seconds


def curves(run: Run, keys: Sequence[str]) -> dict[str, list[float]]:
    """`step`, and those of the figures that were taken along the way."""
    lines = [line for line in run.records() if any(key in line for key in keys)]
    taken = ("step", *(key for key in keys if any(key in line for line in lines)))
    return {key: [line[key] for line in lines] for key in taken} if lines else {}


def rows(reproduction: Reproduction, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    papers: dict[str, dict[str, Any]] = {}
    for each in records:
        if reproduction.over_training:
            steps = each["curves"]["step"]
            for i, step in enumerate(steps):
                at_step = {key: values[i] for key, values in each["curves"].items()}
                groups.setdefault(f"{step:,}", []).append(at_step)
        else:
            groups.setdefault(each["label"], []).append(each["figures"])
            papers[each["label"]] = reproduction.paper(each["experiment"])
    return [
        {
            "label": label,
            "seeds": len(group),
            "figures": {
                column.key: spread(values)
                for column in reproduction.columns
                if (values := [value for figures in group if (value := lookup(figures, column.key)) is not None])
            },
            "paper": {
                column.key: value
                for column in reproduction.columns
                if (value := lookup(papers.get(label, {}), column.key)) is not None
            },
        }
        for label, group in groups.items()
    ]


def lookup(figures: Mapping[str, Any], key: str) -> Any:
    """The figure of a dotted name, `ood.svhn.auroc`; None where there is none."""
    found: Any = figures
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def flattened(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Entries of nested tables by their dotted names."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def spread(values: Sequence[Any]) -> list[float] | str:
    """[mean] of one value, [mean, standard deviation] of several; what could not be measured says why."""
    for value in values:
        if isinstance(value, str):
            return value
    return [statistics.fmean(values), statistics.stdev(values)] if len(values) > 1 else [float(values[0])]


def protocol(finished: Sequence[Task]) -> dict[str, Any]:
    """How each figure was taken, by data set: one run stands for all."""
    by_dataset: dict[str, Any] = {}
    for task in finished:
        if task.experiment.dataset not in by_dataset:
            by_dataset[task.experiment.dataset] = read_json(task.folder / "metrics.json")["protocol"]
    return by_dataset


def table(summary: Summary) -> Table:
    """Our figures, and the paper's below them."""
    reproduction = find(summary["reproduction"])
    datasets = {run["experiment"].partition("/")[0] for run in summary["runs"]}
    first = "iteration" if reproduction.over_training else "experiment"
    head = (first, *(column.title for column in reproduction.columns), "seeds")
    body: list[tuple[str, ...]] = []
    for row in summary["rows"]:
        label = row["label"] if len(datasets) > 1 else row["label"].rpartition("/")[2]
        body.append((label, *shown(row["figures"], reproduction.columns), str(row["seeds"])))
        if row["paper"]:
            body.append(("- paper", *shown(row["paper"], reproduction.columns), ""))
    return Table(caption(summary), head, tuple(body))


def shown(figures: Mapping[str, list[float] | str], columns: Sequence[Column]) -> Iterator[str]:
    """The cells of a row."""
    for column in columns:
        value = figures.get(column.key, "-")
        if isinstance(value, str):
            yield value.partition(":")[0]
        else:
            yield " ± ".join(f"{part:{column.format}}" for part in value)


def caption(summary: Summary) -> str:
    """Also the title of the picture."""
    reproduction = find(summary["reproduction"])
    text = f"{reproduction.shows} (the paper's {reproduction.reference})"
    if summary["quick"]:
        text += ", quick: far fewer steps, to see it run, no result"
    if missing := len(summary["unfinished"]):
        text += f"; {missing} of {missing + len(summary['runs'])} runs are missing"
    return text

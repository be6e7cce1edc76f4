"""The card of an exported model: what it is, its data, settings, scores, limits and licence, from the folder alone."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from ebmbounds.data import to_unit_range
from ebmbounds.data.catalog import IMAGE_SETS
from ebmbounds.data.toy import TOYS
from ebmbounds.experiments import Experiment
from ebmbounds.launch import experiment_of, load
from ebmbounds.noise import noise
from ebmbounds.report.record import Record, as_typed
from ebmbounds.reproduce.page import in_words
from ebmbounds.reproduce.pictures import NO_DENSITY
from ebmbounds.reproduce.tables import Table
from ebmbounds.run import Run, flatten

USE = """\
```
ebmbounds sample FOLDER -n 64 -o {samples}
ebmbounds score FOLDER {own} -o energies.csv
ebmbounds explore FOLDER
```

FOLDER is the one that this file lies in; no data set is needed. In Python: `_, model = ebmbounds.load(FOLDER)`, then
`model.sample(64)` and `model.energies(x)`."""

LIMITS = {
    "all": (
        "The energy is not normalised: of two inputs the one with the lower energy is the more likely by the model, "
        "and the value alone says nothing.",
        "Samples come from the generator, in one pass: they are not draws of the energy.",
        "It knows its training set and nothing else. What is rare or skewed there is so here, and it was not made for "
        "decisions about people.",
        "Matrices and kernels are kept in half precision; the scores above were taken before that rounding.",
    ),
    "images": (
        "Images of other sizes are cropped to their middle square and resized, which changes their energies.",
        "A low energy does not make an image natural. How well energies tell other sets of images apart is among the "
        "scores, where it was measured.",
        "An FID compares only with FIDs of the same protocol.",
    ),
}

LICENCE = """\
The weights are under Apache-2.0, as the package is. They come from the data above, whose own terms are theirs: {terms}.
If you use them, cite the source of the data and the paper of the method: Geng, Wang, Gao, Frellsen and Hauberg, *Bounds
all around: training energy-based models with bidirectional bounds*, NeurIPS 2021."""


def card(run: Run) -> str:
    """The text, in Markdown, for the README.md of an exported folder."""
    record, spec = Record.open(run.path), experiment_of(run.config)
    images = spec.dataset not in TOYS
    use = USE.format(samples="grid.png" if images else "samples.csv", own="IMAGES" if images else "points.csv")
    limits = [*LIMITS["all"], *(LIMITS["images"] if images else ())]
    if images:
        limits.append(on_noise(run))
    if spec.method in NO_DENSITY:
        limits[0] = f"{spec.method} trains no energy: what stands for it is the method's {NO_DENSITY[spec.method]}."
    terms = IMAGE_SETS[spec.dataset].licence if images else "none, it is a formula"
    parts = [
        f"# A trained pair: {spec.name}",
        facts(run, record, spec),
        use,
        "## Data",
        data(spec),
        "## Settings",
        settings(spec),
        "## Scores",
        *scores(record),
        "## Limits",
        "\n".join(f"- {limit}" for limit in limits),
        "## Licence",
        LICENCE.format(terms=terms),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def facts(run: Run, record: Record, spec: Experiment) -> str:
    state, _ = run.load()
    counts = {player: sum(t.numel() for t in table.values()) for player, table in state["parameters"].items()}
    players = ", ".join(f"{count:,} parameters of the {player}" for player, count in counts.items())
    size = sum(t.numel() * t.element_size() for t in flatten(state).values())
    averaged = f", the moving average of decay {spec.optimizer.ema} over training" if spec.optimizer.ema else ""
    place = f"{record.config.get('machine', 'a machine unknown')}, torch {record.config.get('torch', 'unknown')}"
    return f"""\
An energy and a generator, trained against each other. `ebmbounds export` wrote this page from the files beside it.

- Networks: {spec.network}, {players}; {size / 1e6:.1f} MB{averaged}.
- Training: {int(state["step"]):,} iterations, seed {record.seed}, on {place}.
- Again: `{record.command}`"""


def data(spec: Experiment) -> str:
    if spec.dataset in TOYS:
        toy = TOYS[spec.dataset]
        return f"{spec.dataset}: points in the plane of known density, entropy {as_text(toy.entropy())} nats."
    known = IMAGE_SETS[spec.dataset]
    count = f"{known.counts['train']:,} training images" if known.counts else "training images"
    flips = ", mirrored at random" if spec.data.flip else ""
    return f"{spec.dataset}: {known.title}, {count}{flips}, without labels. Licence: {known.licence}. <{known.source}>"


def settings(spec: Experiment) -> str:
    parts: tuple[Any, ...] = (spec.pair, spec.objective, spec.optimizer)
    values = {key: value for part in parts for key, value in dataclasses.asdict(part).items()}
    chosen = values | {"steps": spec.schedule.steps, "precision": spec.schedule.precision}
    rows = tuple((key, as_typed(value)) for key, value in chosen.items())
    return Table("All of them are in config.json.", ("setting", "value"), rows).markdown()


def scores(record: Record) -> Iterator[str]:
    if not record.figures:
        yield "None: the run was not evaluated."
        return
    rows = tuple((name, as_text(value)) for name, value in record.figures.items())
    yield Table("From metrics.json, where they have all their digits.", ("figure", "value"), rows).markdown()
    how = record.metrics.get("protocol", {})
    yield "How they were taken:\n\n" + "\n".join(f"- {name}: {in_words(text)}" for name, text in how.items())


def on_noise(run: Run) -> str:
    """How the energy judges what no training showed it: pixels drawn at random."""
    _, model = load(run)
    pixels = noise(0)("pixels").integers(256, 200, *model.data_shape).to(torch.uint8)
    random, samples = (model.energies(x).median().item() for x in (to_unit_range(pixels), model.sample(len(pixels))))
    verdict = "above: it is told apart" if random > samples else "below: the energy is no detector of noise"
    return (
        f"Random pixels have an energy of {random:.3g} in the median and samples {samples:.3g}, so noise is {verdict}."
    )


def as_text(value: Any) -> str:
    """A figure to four digits; what was not measured says why."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

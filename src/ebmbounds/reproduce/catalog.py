"""What is reproduced of the paper: which runs make which table or figure."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from ebmbounds.errors import BadInput, unknown
from ebmbounds.experiments import tables
from ebmbounds.objectives import METHODS, method
from ebmbounds.reproduce import pictures
from ebmbounds.reproduce.pictures import Draw
from ebmbounds.reproduce.runs import Task, Unit


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    """The dotted name of a figure in metrics.json, or `hours`, of training; in a table over training the name of a
    figure in log.jsonl."""
    title: str
    format: str = ".2f"


@dataclass(frozen=True)
class Reproduction:
    """A list of runs, and how they are shown."""

    name: str
    shows: str
    """A heading."""
    reference: str
    """The table or figure of the paper."""
    experiments: tuple[str, ...]
    """One row each, in the order in which they are run."""
    columns: tuple[Column, ...]
    draw: Draw
    seeds: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    """Overrides of the variants @quick, for `--quick`."""
    family: str = ""
    """Reproductions of one family share their run folders; by default each has its own."""
    side_by_side: bool = False
    """The seeds of an experiment are trained in one process, with one iteration for all: for small networks."""
    over_training: bool = False
    """A row for each checkpoint, from the log, in place of one for each experiment."""
    notes: tuple[str, ...] = ()
    """How it differs from what the paper did."""

    def tasks(self, runs: Path, seeds: int | None = None, quick: bool = False) -> list[Task]:
        """Every run, the seeds of an experiment next to each other."""
        folder = runs / ((self.family or self.name) + "-quick" * quick)
        names = [f"{name.partition('@')[0]}@quick" if quick else name for name in self.experiments]
        return [
            Task(
                name=name,
                overrides=self.quick if quick else self.overrides,
                seed=seed,
                folder=folder / f"{name.replace('/', '-')}-seed{seed}",
            )
            for name in dict.fromkeys(names)  # variants of one experiment have the same quick one
            for seed in range(seeds or (1 if quick else self.seeds))
        ]

    def units(self, tasks: Sequence[Task]) -> list[Unit]:
        """What each process is to do of these."""
        if not self.side_by_side:
            return [(task,) for task in tasks]
        return [tuple(seeds) for _, seeds in groupby(tasks, key=lambda task: task.name)]

    def stem(self, quick: bool) -> str:
        """The name of what it leaves in the folder of results."""
        return self.name + "-quick" * quick

    def paper(self, experiment: str) -> dict[str, Any]:
        """The paper's figures for an experiment, nested like those in metrics.json: [mean] or [mean, spread]."""
        return paper_values().get(self.name, {}).get(method_of(experiment), {})


@cache
def paper_values() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def method_of(experiment: str) -> str:
    return experiment.partition("@")[0].partition("/")[2]


def every_method(dataset: str) -> tuple[str, ...]:
    """The default experiment of each method that has a preset."""
    return tuple(f"{dataset}/{name}" for name in METHODS if name in tables(dataset))


def of_methods(tasks: list[Task], methods: list[str]) -> list[Task]:
    """Those of the named methods; of all where none is named."""
    for name in methods:
        method(name)
        if all(method_of(task.name) != name for task in tasks):
            raise BadInput(f"no run of this reproduction is of the method {name!r}: leave it out.")
    return [task for task in tasks if not methods or method_of(task.name) in methods]


CIFAR10 = {"watch_fid": 10_000, "checkpoint_every": 40_000}
CIFAR10_QUICK = {"steps": 20, "checkpoint_every": 20}
# For energies to tell images apart by. Its penalty is 0.1/z_dim, as the paper's is in these two tables.
DENSITY = tuple("cifar10/ebm-bb@density" if name == "cifar10/ebm-bb" else name for name in every_method("cifar10"))

SHORT = tuple(f"{name}@short" for name in every_method("cifar10"))
SHORT_NOTE = (
    "`@short` are 40,000 iterations of 64 images, a fifth of the paper's, with each method's default rates and "
    "weights, which but for VERA's were searched ([cifar10](cifar10.md)). They shared a GPU: seconds are no run times."
)

DENSITY_NOTE = "`@density` trains the energy of the pretrained pair on, by itself; its generator is that pair's."

REPRODUCTIONS: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for reproduction in (
        Reproduction(
            name="toy-density",
            shows="Densities of 25 Gaussians and swiss roll, in nats",
            reference="Figure 2",
            experiments=(
                *every_method("25gaussians"),
                "25gaussians/ebm-bb@paper",
                *every_method("swissroll"),
                "swissroll/ebm-bb@paper",
            ),
            columns=(
                Column("nll", "NLL (T=1)"),
                Column("nll_best_temperature", "at best T"),
                Column("data_entropy", "of data"),
                Column("modes", "modes", ".0f"),
                Column("good_fraction", "good", ".0%"),
                Column("border_mass", "border", ".0%"),
            ),
            draw=pictures.densities,
            quick={"steps": 500, "checkpoint_every": 500, "compile": "off"},
            notes=(
                "Our presets, where no variant is named, and `@paper` with the paper's networks and settings; "
                "[deviations](deviations.md) has both side by side.",
                "The paper has pictures only, with energies multiplied by 0.1; here every energy is normalised by "
                "quadrature at temperature 1 and judged in nats: NLL as trained and at the temperature that suits it "
                "best, beside the data's own entropy. `border` is the mass at the edge of the box, which may cut more.",
                "The critic of WGAN-0GP and the negative logits of DCGAN and SNGAN are no densities; they are shown as "
                "if they were energies.",
            ),
        ),
        Reproduction(
            name="modes",
            shows="Mode counting on StackedMNIST",
            reference="Table 1",
            experiments=every_method("stackedmnist"),
            columns=(
                Column("modes", "modes", ".1f"),
                Column("kl", "KL", ".3f"),
                Column("kl_floor", "floor", ".3f"),
                Column("kl_uniform", "KL to uniform", ".3f"),
                Column("kl_uniform_floor", "floor", ".3f"),
            ),
            draw=pictures.comparison,
            seeds=3,
            side_by_side=True,
            overrides={"precision": "tf32"},
            notes=(
                "KL is to the data's own mode frequencies, in nats; a floor is what a perfect sampler gets with as "
                "many samples. The paper has a KL to the data's distribution and no floor.",
                "Our EBM-BB has the energy's slopes in all directions in its penalty, where the paper's has those "
                "along the generator's manifold, with which alone KL was 0.049 ([stackedmnist](stackedmnist.md)).",
                "The digit classifier is this package's own.",
                "The seeds of a method were trained side by side ([design](design.md)): seconds are those of all.",
            ),
        ),
        Reproduction(
            name="entropy",
            shows="Entropy estimators on MNIST over training",
            reference="Figure 3",
            experiments=("mnist/ebm-bb",),
            columns=(
                Column("entropy_exact", "exact", ".1f"),
                Column("entropy_bound_few_steps", "bound, few steps", ".1f"),
                Column("entropy_bound_exact_s1", "bound, exact s1", ".1f"),
                Column("entropy_hutchinson", "Hutchinson", ".1f"),
            ),
            draw=pictures.curves,
            overrides={"precision": "tf32", "watch_entropy": 64, "checkpoint_every": 2_500},
            quick={"watch_entropy": 16, "checkpoint_every": 100},
            over_training=True,
            notes=(
                "H[p_g] in nats on the generator's manifold, every estimator at the same 64 latents (16 where quick) "
                "and in double precision; the run itself trains with the bound by few LOBPCG steps.",
                "The paper has a picture only.",
            ),
        ),
        Reproduction(
            name="cifar10-images",
            shows="Samples of CIFAR-10",
            reference="Table 3",
            experiments=(*every_method("cifar10"), *SHORT, "cifar10/ebm-bb@paper", "cifar10/ebm-bb@code"),
            columns=(
                Column("inception_score", "Inception", ".3f"),
                Column("fid", "FID"),
                Column("fid_unaveraged", "without EMA"),
                Column("f8", "F8", ".3f"),
                Column("f1_8", "F1/8", ".3f"),
            ),
            draw=pictures.comparison_with_samples,
            overrides=CIFAR10,
            quick=CIFAR10_QUICK,
            family="cifar10",
            notes=(
                SHORT_NOTE,
                "The last checkpoint is taken; the paper's DCGAN is the best one of a run.",
                "Where a run keeps a moving average (EMA) of its networks, as our settings do, the figures are the "
                "average's, and `without EMA` has the FID of the last weights themselves, as the paper's are.",
            ),
        ),
        Reproduction(
            name="cifar10-anisotropy",
            shows="Anisotropy of generators of CIFAR-10",
            reference="Table 2",
            experiments=(*DENSITY, *SHORT),
            columns=(Column("anisotropy", "anisotropy", ".4f"),),
            draw=pictures.comparison,
            overrides=CIFAR10,
            quick=CIFAR10_QUICK,
            family="cifar10",
            notes=(SHORT_NOTE, DENSITY_NOTE),
        ),
        Reproduction(
            name="cifar10-ood",
            shows="CIFAR-10 against other images",
            reference="Table 4",
            experiments=(*DENSITY, *SHORT),
            columns=tuple(
                Column(f"ood.{other}.{key}", f"{key.upper()} {title}")
                for other, title in (("svhn", "SVHN"), ("cifar100", "C100"))
                for key in ("auroc", "auprc", "fpr80")
            ),
            draw=pictures.comparison,
            overrides=CIFAR10,
            quick=CIFAR10_QUICK,
            family="cifar10",
            notes=(
                SHORT_NOTE,
                DENSITY_NOTE,
                "10,000 images against 10,000, the foreign ones positive; the paper does not say which were. C100 is "
                "CIFAR-100. Where the files of a set are not those its site gives out, as_published says so.",
            ),
        ),
        Reproduction(
            name="runtime",
            shows="Training time on CIFAR-10",
            reference="Table 5",
            experiments=every_method("cifar10"),
            columns=(Column("iterations", "iterations", ",.0f"), Column("hours", "hours", ".2f")),
            draw=pictures.comparison,
            overrides=CIFAR10,
            quick=CIFAR10_QUICK,
            family="cifar10",
            notes=("The paper's machine is a 12 GB Titan. Compiling is included, evaluation along the way is not.",),
        ),
    )
}


def find(name: str) -> Reproduction:
    if name not in REPRODUCTIONS:
        raise unknown("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]

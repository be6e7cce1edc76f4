"""Out-of-distribution detection by energy: energies -> balanced, seeded subsets -> threshold-free numbers."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from ebmbounds.errors import BadInput

Positive = Literal["ood", "in-distribution"]


@dataclass(frozen=True)
class Detection:
    """How well energies tell two sets apart."""

    auroc: float
    auprc: float
    """Average precision."""
    fpr80: float
    """Share of negatives taken for positives where 80% of the positives are found."""
    fpr95: float
    """The same where 95% are found."""
    count: int
    """Images of each set."""


def detection(
    in_distribution: ArrayLike,
    ood: ArrayLike,
    *,
    positive: Positive = "ood",
    count: int = 10_000,
    seed: int = 0,
) -> Detection:
    """Detection from energies (n,) of the in-distribution test set and (m,) of another set.

    The protocol: `count` of each, or as many as the smaller set has (AUPRC depends on the balance), drawn
    with the seed; OOD is the positive class and the energy its score. With `positive="in-distribution"` the
    classes change places and the score its sign: AUROC stays, the other numbers do not.
    """
    inside, outside = _energies("in-distribution", in_distribution), _energies("OOD", ood)
    size = min(count, len(inside), len(outside))
    random = np.random.default_rng(seed)
    inside, outside = random.choice(inside, size, replace=False), random.choice(outside, size, replace=False)
    negatives, positives = (inside, outside) if positive == "ood" else (-outside, -inside)

    score = np.concatenate([negatives, positives])
    truth = np.repeat([0, 1], size)
    fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
    return Detection(
        auroc=float(roc_auc_score(truth, score)),
        auprc=float(average_precision_score(truth, score)),
        fpr80=float(fpr[np.searchsorted(tpr, 0.80)]),
        fpr95=float(fpr[np.searchsorted(tpr, 0.95)]),
        count=size,
    )


def both_orientations(
    in_distribution: ArrayLike, ood: ArrayLike, *, count: int = 10_000, seed: int = 0
) -> dict[Positive, Detection]:
    """Detection with either set as the positive class."""
    orientations: tuple[Positive, ...] = ("ood", "in-distribution")
    return {
        positive: detection(in_distribution, ood, positive=positive, count=count, seed=seed)
        for positive in orientations
    }


def _energies(name: str, energies: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(energies, np.float64).ravel()
    if not len(values):
        raise BadInput(f"there are no {name} energies: give at least one.")
    if bad := int((~np.isfinite(values)).sum()):
        raise BadInput(
            f"{bad} of {len(values)} {name} energies are not finite: detection needs a model that has not diverged."
        )
    return values

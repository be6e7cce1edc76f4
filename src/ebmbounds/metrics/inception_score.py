"""Inception Score (Salimans et al., 2016): exp E KL(p(y|x), p(y)) under the Inception classifier."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from ebmbounds.errors import BadInput
from ebmbounds.metrics.inception import Inception, logits


@dataclass(frozen=True)
class InceptionScore:
    """Mean and standard deviation over the splits."""

    mean: float
    std: float
    splits: int


@dataclass(frozen=True)
class NotMeasured:
    """Stands where a score would."""

    reason: str

    def __str__(self) -> str:
        return f"not measured: {self.reason}"


def inception_score(class_logits: NDArray, *, splits: int = 1) -> InceptionScore:
    """The score of logits (n, classes). One split as in the authors' code; ten are usual elsewhere."""
    if not 1 <= splits <= len(class_logits):
        raise BadInput(f"{len(class_logits)} images cannot be split into {splits}: take fewer splits.")
    scores = []
    for part in np.array_split(class_logits.astype(np.float64), splits):
        log_p = log_softmax(part, axis=1)
        log_marginal = logsumexp(log_p, axis=0) - np.log(len(part))
        scores.append(np.exp((np.exp(log_p) * (log_p - log_marginal)).sum(axis=1).mean()))
    return InceptionScore(float(np.mean(scores)), float(np.std(scores)), splits)


def score_features(features: NDArray, network: Inception, *, splits: int = 1) -> InceptionScore | NotMeasured:
    """The score of features (n, 2048), where the network can classify them."""
    class_logits = logits(features, network)
    if class_logits is None:
        return NotMeasured(
            "this Inception network file has no classifier; give one that has it (inception-2015-12-05.pt)"
        )
    return inception_score(class_logits, splits=splits)

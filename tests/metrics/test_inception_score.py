"""Inception Score of logits whose answer is known, and the result where there is no classifier."""

import numpy as np
import pytest
import torch

from ebmbounds.errors import BadInput
from ebmbounds.metrics.inception import Inception
from ebmbounds.metrics.inception_score import InceptionScore, NotMeasured, inception_score, score_features


def test_certain_and_varied_scores_the_number_of_classes():
    logits = 1000 * np.eye(10)[np.arange(200) % 10]
    assert inception_score(logits).mean == pytest.approx(10)


def test_equal_predictions_score_one():
    assert inception_score(np.tile([3.0, 1.0, 0.0], (50, 1))).mean == pytest.approx(1)


def test_splits_are_scored_apart():
    logits = 1000 * np.eye(10)[np.repeat(np.arange(10), 20)]  # each tenth holds one class alone
    found = inception_score(logits, splits=10)
    assert found.mean == pytest.approx(1) and found.std == pytest.approx(0) and found.splits == 10


def test_too_many_splits_are_refused():
    with pytest.raises(BadInput, match="into 9"):
        inception_score(np.zeros((5, 3)), splits=9)


def test_not_measured_without_a_classifier():
    features = np.random.default_rng(0).normal(size=(6, 2048)).astype(np.float32)
    found = score_features(features, Inception(layers=None, classifier=None, sha256=""))
    assert isinstance(found, NotMeasured)
    assert str(found).startswith("not measured: ") and "classifier" in found.reason


def test_measured_with_a_classifier():
    features = np.random.default_rng(0).normal(size=(6, 2048)).astype(np.float32)
    weights = torch.randn(1008, 2048, generator=torch.Generator().manual_seed(0))
    found = score_features(features, Inception(layers=None, classifier=weights, sha256=""))
    assert isinstance(found, InceptionScore)
    assert found == inception_score(features @ weights.numpy().T)

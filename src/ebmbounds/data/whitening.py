"""Rows of numbers as a model sees them: centred, of unit covariance, and checked."""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.covariance import OAS

from ebmbounds.errors import BadInput


@dataclass(frozen=True)
class Whitening:
    """u = T (x - mean), with T T' the inverse of the covariance, shrunk where rows are few (Chen et al. 2010)."""

    mean: np.ndarray
    transform: np.ndarray
    """T, lower triangular (D, D)."""

    @classmethod
    def fit(cls, X: np.ndarray) -> "Whitening":
        check_columns(X)
        mean, scale = X.mean(0), X.std(0)
        covariance = OAS(assume_centered=True).fit((X - mean) / scale).covariance_
        return cls(mean, np.linalg.inv(np.linalg.cholesky(covariance)) / scale)

    @property
    def log_det(self) -> float:
        return float(np.log(np.diag(self.transform)).sum())

    def apply(self, X: np.ndarray) -> np.ndarray:
        return (X - self.mean) @ self.transform.T

    def invert(self, U: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.transform, U.T).T + self.mean


def check_columns(X: np.ndarray) -> None:
    """A density needs columns that vary, each in its own way, and take more than a few values."""
    spread = X.std(0)
    constant = np.flatnonzero(spread <= 1e-12 * np.abs(X).max(0))
    if len(constant):
        raise BadInput(f"column {constant[0]} is constant, so that no density exists: remove it.")
    correlation = np.abs(np.corrcoef(X, rowvar=False)) - np.eye(X.shape[1])
    i, j = np.unravel_index(correlation.argmax(), correlation.shape)
    if correlation[i, j] > 1 - 1e-9 and len(X) > 2:
        raise BadInput(f"columns {i} and {j} are the same up to scale, so that no density exists: remove one of them.")
    distinct = np.array([len(np.unique(column)) for column in X.T])
    if (distinct < len(X) / 10).any():
        column = int(distinct.argmin())
        warnings.warn(
            f"column {column} takes {distinct[column]} values in {len(X)} rows: the density of discrete numbers has no "
            "limit, so add noise as wide as their steps (dequantise) to make scores comparable.",
            stacklevel=4,
        )

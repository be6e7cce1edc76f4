"""The MATLAB files of SVHN (cropped digits, 32 x 32).

`scipy.io` reads numbers, text and structures from such files; nothing in them is evaluated. What a file
claims to hold is compared with what is expected before any of it is read.
"""

import math
from pathlib import Path
from typing import BinaryIO

import numpy as np
from scipy.io import loadmat, whosmat

from ebmbounds.errors import BadInput

# Deflate shrinks at most this much: a header that claims more than that times the file's size lies.
MOST_SHRUNK = 1032


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) uint8 and labels (N,) of an SVHN file, in which the digit 0 has the label 10."""
    try:
        with path.open("rb") as file:
            images, labels = _read(file, path)
    except BadInput:
        raise
    except Exception as error:  # a corrupt file fails in whatever way its bytes lead to
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"cannot read {path} as a MATLAB file ({reason}): download it again.") from error
    if labels.dtype.kind not in "iuf" or not np.isin(labels, range(11)).all():
        raise BadInput(f"the labels 'y' of {path} are not all whole numbers from 1 to 10: download it again.")
    return images, labels.astype(np.int64) % 10


def _read(file: BinaryIO, path: Path) -> tuple[np.ndarray, np.ndarray]:
    claimed = {name: (shape, kind) for name, shape, kind in whosmat(file)}
    shape, kind = claimed.get("X", ((), "nothing"))
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or kind != "uint8":
        raise BadInput(
            f"the 'X' of {path} is {kind} of shape {shape}, expected uint8 of shape (32, 32, 3, N): "
            "is it the cropped format, train_32x32.mat or test_32x32.mat?"
        )
    count = shape[3]
    if claimed.get("y", ((), ""))[0] not in ((count, 1), (1, count)):
        raise BadInput(f"{path} has {count} images but no {count} labels in 'y': download it again.")
    if math.prod(shape) > MOST_SHRUNK * path.stat().st_size:
        raise BadInput(f"{path} claims {count} images, more than its size can hold: download it again.")
    held = loadmat(file, variable_names=("X", "y"))
    return np.ascontiguousarray(held["X"].transpose(3, 2, 0, 1)), held["y"].reshape(-1)

"""A user's own numbers: one array from a .npy, .npz or .csv file."""

import csv
from array import array
from pathlib import Path

import numpy as np

from ebmbounds.errors import BadInput, unknown


def read_array(path: Path) -> np.ndarray:
    """The real, finite numbers of a file as an array (N, ...) of N samples; N numbers give (N, 1).

    A .csv gives float64 (N, columns). A .npy keeps its type and shape, as does a .npz, from which the array
    `x` is taken, or its only one.
    """
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise unknown("kind of array file", path.suffix, readers)
    try:
        values = readers[path.suffix.lower()](path)
    except BadInput:
        raise
    except Exception as error:  # a corrupt file fails in whatever way its bytes lead to
        raise BadInput(f"cannot read {path} ({error}): expected plain numbers, without pickled objects.") from error
    if values.dtype.kind not in "biuf":
        raise BadInput(f"{path} holds values of type {values.dtype}, expected real numbers.")
    if values.size == 0 or values.ndim == 0:
        raise BadInput(f"{path} holds an array of shape {values.shape}, expected at least one sample in (N, ...).")
    values = values.reshape(len(values), -1) if values.ndim == 1 else values
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not finite.all():
        raise BadInput(f"sample {finite.argmin() + 1} of {path} has NaN or infinity: remove or replace it.")
    return values


def _read_npy(path: Path) -> np.ndarray:
    # Mapped first, which fails when the header claims more than the file holds; read, it would be allocated.
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_npz(path: Path) -> np.ndarray:
    with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as held:
        names = held.files
        if "x" not in names and len(names) != 1:
            raise BadInput(f"{path} holds the arrays {', '.join(names) or '(none)'}: name the one to use 'x'.")
        return np.asarray(held["x" if "x" in names else names[0]])


def _read_csv(path: Path) -> np.ndarray:
    numbers, columns = array("d"), 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file)
        for line in lines:
            if not line:
                continue
            if columns == 0:
                columns = len(line)
                if not any(map(_is_number, line)):  # names of columns
                    if line[0] == "" and columns > 1:
                        raise BadInput(f"the first column of {path} has no name, as row numbers have: remove it.")
                    continue
            if len(line) != columns:
                raise BadInput(f"line {lines.line_num} of {path} has {len(line)} values, the first {columns}.")
            try:
                numbers.extend(map(float, line))
            except ValueError as error:
                raise BadInput(f"line {lines.line_num} of {path} is not all numbers ({error}).") from error
    return np.array(numbers).reshape(-1, max(columns, 1))


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True

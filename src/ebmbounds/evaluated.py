"""What `evaluate` leaves in a run folder for pictures that are drawn later, without the checkpoint.

energies.npz    the energies (n,) of each set: train, test, samples, and the other sets by their names
density.npz     on data in the plane, the log-density of the energy as a map, and points of data and generator
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebmbounds.data.toy import Toy
from ebmbounds.errors import BadInput
from ebmbounds.run import Run, write_atomically

SIDE = 120
"""At most so many cells a side in a density map."""
POINTS = 1000
"""At most so many points of each kind beside it."""


@dataclass(frozen=True)
class DensityMap:
    """The log-density of an energy over the square that holds the data, and points to be drawn over it."""

    axis: NDArray[np.float32]
    """Midpoints (k,) of the cells, along either axis."""
    log_density: NDArray[np.float32]
    """(k, k) nats, the mean density of each cell; the first index is that of x."""
    data: NDArray[np.float32]
    samples: NDArray[np.float32]

    @classmethod
    def of(cls, toy: Toy, energies: Tensor, log_partition: float, data: Tensor, samples: Tensor) -> "DensityMap":
        """From energies (resolution, resolution) on the grid of the data set."""
        cell = 2 * toy.extent / toy.resolution
        half = min(toy.resolution // 2, int(np.ceil(1.15 * float(data.abs().max()) / cell)))
        block = int(np.ceil(2 * half / SIDE))
        half -= half % block  # whole blocks
        middle = slice(toy.resolution // 2 - half, toy.resolution // 2 + half)
        log_density = (-energies.double() - log_partition)[middle, middle]
        k = 2 * half // block
        blocks = log_density.reshape(k, block, k, block).transpose(1, 2).reshape(k, k, -1)
        axis = (np.arange(k) - (k - 1) / 2) * block * cell
        mean = torch.logsumexp(blocks, 2) - np.log(block**2)
        parts = (axis, mean, data[:POINTS].cpu(), samples[:POINTS].cpu())
        return cls(*(np.asarray(part, np.float32) for part in parts))


def write_energies(run: Run, energies: Mapping[str, NDArray[np.floating]]) -> None:
    _write(run.path / "energies.npz", {name: np.asarray(values, np.float32) for name, values in energies.items()})


def read_energies(run: Run) -> dict[str, NDArray[np.float32]]:
    """By set; none where the run was not evaluated."""
    return _read(run.path / "energies.npz")


def write_density(run: Run, density: DensityMap) -> None:
    _write(run.path / "density.npz", vars(density))


def read_density(run: Run) -> DensityMap | None:
    held = _read(run.path / "density.npz")
    if not held:
        return None
    if set(held) != {field.name for field in fields(DensityMap)}:
        raise BadInput(f"{run.path / 'density.npz'} holds no density map: evaluate the run again.")
    return DensityMap(**held)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(path, content.getvalue())


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except Exception as error:  # a damaged file fails in whatever way its bytes lead to
        raise BadInput(f"{path} cannot be read ({error}): evaluate the run again.") from None

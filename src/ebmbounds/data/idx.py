"""The idx files of MNIST and Fashion-MNIST, plain or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ebmbounds.errors import BadInput

# No idx file of this family is larger (EMNIST's largest has 547 MB): a header that asks for more lies.
LIMIT = 2**30
CHUNK = 2**20


def read_pair(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images (N, 1, H, W) of one idx file and the labels (N,) of another, both uint8."""
    return read_idx(images, 3)[:, None], read_idx(labels, 1)


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array with `ndim` dimensions that an idx file holds."""
    try:
        with _open(path) as file:
            return _parse(file, path, ndim)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {path} ({error}): copy or download it again.") from error


def _open(path: Path) -> BinaryIO:
    # By content, since browsers unpack a .gz on the way and keep its name.
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if zipped else path.open("rb")


def _parse(file: BinaryIO, path: Path, ndim: int) -> np.ndarray:
    magic = file.read(4)
    if magic != bytes([0, 0, 8, ndim]):  # two zeros, 8 for unsigned bytes, number of dimensions
        raise BadInput(
            f"{path} starts with the bytes {magic.hex() or '(none)'}, expected 000008{ndim:02x} (idx, bytes, "
            f"{ndim} dimensions): copy or download it again."
        )
    header = file.read(4 * ndim)
    if len(header) < 4 * ndim:
        raise BadInput(f"{path} ends within its header: copy or download it again.")
    shape = struct.unpack(f">{ndim}I", header)
    claimed = math.prod(shape)
    if not 0 < claimed <= LIMIT:
        raise BadInput(f"the header of {path} claims {claimed:,} bytes, expected 1 to {LIMIT:,}: download it again.")
    # Piece by piece: the header is believed only as far as bytes come. One byte more would be one too many.
    body = bytearray()
    while piece := file.read(min(CHUNK, claimed + 1 - len(body))):
        body += piece
    if len(body) != claimed:
        found = "more" if len(body) > claimed else f"{len(body):,}"
        raise BadInput(
            f"the header of {path} claims {' x '.join(map(str, shape))} = {claimed:,} bytes, and {found} "
            "follow: copy or download it again."
        )
    return np.frombuffer(body, np.uint8).reshape(shape)

"""The MATLAB files of SVHN (cropped digits, 32 x 32), of which this reads what they hold: arrays of plain numbers.

`scipy.io` reads far more, and a file that is made for it can crash the interpreter there (found by fuzzing). The format
is that of "MAT-File Format", level 5: a header of 128 bytes, then elements, each a tag (type, size) and as many bytes,
padded to 8; a matrix is an element that holds flags, dimensions, name and numbers as elements of its own.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ebmbounds.errors import BadInput

LIMIT = 2**31
"""Bytes; the largest of the published files unpacks to 1.6 GB."""
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Element types that hold numbers."""
MATRIX, COMPRESSED = 14, 15
UINT8 = 9
"""The class of a matrix, in its flags, whose numbers are bytes."""


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) uint8 and labels (N,) of an SVHN file, in which the digit 0 has the label 10."""
    try:
        held = dict(_matrices(path.read_bytes()))
    except (OSError, ValueError, struct.error, zlib.error) as error:
        raise BadInput(f"cannot read {path} as a MATLAB file ({error}): download it again.") from error
    images, labels = held.get("X", np.empty(0)), held.get("y", np.empty(0))
    if images.shape[:3] != (32, 32, 3) or images.ndim != 4 or images.dtype != np.uint8:
        raise BadInput(
            f"the 'X' of {path} is {images.dtype} of shape {images.shape}, expected uint8 of shape (32, 32, 3, N): "
            "is it the cropped format, train_32x32.mat or test_32x32.mat?"
        )
    count = images.shape[3]
    if labels.shape not in ((count, 1), (1, count)):
        raise BadInput(f"{path} has {count} images but no {count} labels in 'y': download it again.")
    if not np.isin(labels, range(11)).all():
        raise BadInput(f"the labels 'y' of {path} are not all whole numbers from 1 to 10: download it again.")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.reshape(-1).astype(np.int64) % 10


def _matrices(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """The names and numbers of a file's matrices; those of another kind are passed over."""
    if len(content) < 128 or content[124:128] != b"\x00\x01IM":
        raise ValueError("it does not begin as a MATLAB 5 file does")
    for kind, body in _elements(memoryview(content)[128:]):
        if kind == COMPRESSED:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(body, LIMIT)
            if unpacker.unconsumed_tail:
                raise ValueError(f"it unpacks to more than {LIMIT:,} bytes")
            ((kind, body),) = _elements(memoryview(unpacked))
        if kind == MATRIX and (matrix := _matrix(body)):
            yield matrix


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and bytes of the elements that follow each other."""
    while content:
        kind, size = struct.unpack_from("<II", content)
        start, step = 8, 8 + size + (-size % 8 if kind != COMPRESSED else 0)
        if kind >> 16:  # a small element: type and size share four bytes, and four are left for it
            kind, size, start, step = kind & 0xFFFF, kind >> 16, 4, 8
        if size > (4 if start == 4 else len(content) - 8):
            raise ValueError("it ends within an element")
        yield kind, content[start : start + size]
        content = content[step:]


def _matrix(body: memoryview) -> tuple[str, np.ndarray] | None:
    """Name and numbers of a matrix; None where it holds something else than real numbers."""
    (_, flags), (_, dimensions), (_, name), *parts = _elements(body)
    if len(parts) != 1 or parts[0][0] not in NUMBERS:
        return None
    shape = tuple(np.frombuffer(dimensions, "<i4").tolist())
    numbers = np.frombuffer(parts[0][1], "<" + NUMBERS[parts[0][0]])
    if min(shape, default=-1) < 0 or math.prod(shape) != len(numbers):
        raise ValueError(f"a matrix of shape {shape} has {len(numbers)} numbers")
    numbers = numbers.astype(np.uint8) if bytes(flags[:1]) == bytes([UINT8]) else numbers
    return bytes(name).decode("latin1"), numbers.reshape(shape, order="F")

"""Pictures inside a page: shrunk, compressed, and written as data addresses."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ebmbounds.errors import BadInput

WIDTHS = (1200, 512, 256)
"""In pixels, the widest that the budget allows."""
MOST_FRAMES = 12


@dataclass(frozen=True)
class Frame:
    iteration: int
    wide: bool
    """Several times as wide as high."""
    address: str


def film(frames: Mapping[int, Path], budget: int) -> list[Frame]:
    """Pictures at even steps through training, the last one always, in at most so many characters: smaller ones where
    that is needed, then fewer."""
    iterations = sorted(frames)
    most = min(MOST_FRAMES, len(iterations))
    kept: list[Frame] = []
    for count, width in [(most, width) for width in WIDTHS] + [(count, WIDTHS[-1]) for count in range(most - 1, 0, -1)]:
        chosen = np.linspace(len(iterations) - 1, 0, count).round().astype(int)[::-1]
        kept = [embedded(iterations[i], frames[iterations[i]], width) for i in chosen]
        if sum(len(frame.address) for frame in kept) <= budget:
            break
    return kept


def embedded(iteration: int, path: Path, width: int) -> Frame:
    try:
        with Image.open(path, formats=("PNG",)) as image:
            picture = image.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path} is no picture that can be read ({error}): remove it from the run folder.") from None
    picture.thumbnail((width, width))
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=80)
    wide = picture.width > 2 * picture.height
    return Frame(iteration, wide, "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode())

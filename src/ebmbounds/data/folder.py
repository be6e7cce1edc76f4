"""A folder of images, of any sizes and at any depth, as one data set."""

import os
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track

from ebmbounds.errors import BadInput, unknown

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Named one by one, since a file is recognised by its content: Pillow would hand PostScript to an interpreter.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 2**26  # 8192 x 8192; more than that in one image is taken for a decompression bomb
TRAIN_SHARE = 0.85  # as the paper splits ANIMEFACE


def image_files(root: Path) -> list[Path]:
    """All images under `root`, in the order of their relative paths, without hidden files and folders."""
    if not root.is_dir():
        raise BadInput(f"{root} is not a folder: name a folder of images.")
    found: list[Path] = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in SUFFIXES]
    if not found:
        raise BadInput(f"there are no images in {root}: expected files ending in {', '.join(sorted(SUFFIXES))}.")
    return sorted(found, key=Path.as_posix)


def split_files(files: list[Path], split: str, seed: int = 0) -> list[Path]:
    """The `train` (85%) or `test` (15%) part of the files, drawn by `seed`, in their order."""
    if split not in ("train", "test"):
        raise unknown("split", split, ("train", "test"))
    if len(files) < 2:
        raise BadInput(f"{files[0].parent} has one image: a split into train and test needs at least two.")
    count = min(round(TRAIN_SHARE * len(files)), len(files) - 1)
    order = np.random.default_rng(seed).permutation(len(files))
    return [files[i] for i in sorted(order[:count] if split == "train" else order[count:])]


def read_images(files: list[Path], size: int, *, progress: bool = False) -> np.ndarray:
    """The images as uint8 (N, 3, size, size): RGB, the middle square of each, resized."""
    images = np.empty((len(files), 3, size, size), np.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # _read_image refuses them
        pixels: Iterable[np.ndarray] = pool.map(partial(_read_image, size=size), files)
        pixels = track(
            pixels,
            "reading images",
            len(files),
            console=Console(stderr=True),
            transient=True,
            disable=not progress,
        )
        for image, values in zip(images, pixels, strict=True):
            image[:] = values
    return images


def _read_image(path: Path, size: int) -> np.ndarray:
    """One image as uint8 (3, size, size)."""
    try:
        with Image.open(path, formats=FORMATS) as image:  # reads the header only
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            if image.mode[0] in "IF":  # Pillow would clip them at 255
                raise ValueError(f"{image.mode} pixels, expected 8 bits a channel")
            # Cameras store how they were held beside the pixels.
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except Image.DecompressionBombError as error:
        raise BadInput(
            f"the image {path} has more than {MOST_PIXELS:,} pixels: shrink it or take it out of the folder."
        ) from error
    except Exception as error:  # Pillow's decoders raise whatever the broken bytes lead to
        raise BadInput(f"cannot read the image {path} ({error}): replace it or take it out of the folder.") from error
    square = ImageOps.fit(upright, (size, size), Image.Resampling.LANCZOS)
    return np.asarray(square).transpose(2, 0, 1)

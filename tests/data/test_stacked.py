import numpy as np
import pytest

from ebmbounds.data.registry import load_images
from ebmbounds.data.stacked import stack

IMAGES = np.repeat(np.arange(10, dtype=np.uint8), 28 * 28).reshape(10, 1, 28, 28)  # an image shows its label


def test_labels_are_read_off_the_channels():
    images, labels = stack(IMAGES, np.arange(10), 500, seed=0)
    assert images.shape == (500, 3, 28, 28) and images.dtype == np.uint8 and labels.dtype == np.int64
    a, b, c = images[:, :, 0, 0].astype(int).T
    np.testing.assert_array_equal(labels, 100 * a + 10 * b + c)


def test_the_seed_decides():
    first, again, other = (stack(IMAGES, np.arange(10), 500, seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.data
def test_the_real_digits_give_every_mode(real_data):
    train = load_images("stackedmnist", "train", real_data)
    assert train.images.shape == (128_000, 3, 28, 28)
    assert (np.bincount(train.labels, minlength=1000) > 0).sum() == 1000

import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ebmbounds.data.folder import image_files, read_images, split_files
from ebmbounds.data.registry import load_images
from ebmbounds.errors import BadInput


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG of one bit a pixel that claims this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.fixture
def folder(tmp_path):
    """Three images at three depths among other files."""
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    for name in ("z.PNG", "b/a.jpg", "b/c/d.webp", ".hidden/e.png", "b/._a.jpg"):
        Image.new("RGB", (40, 50), (200, 100, 0)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_finds_images_at_any_depth_in_the_order_of_their_paths(folder):
    assert [path.relative_to(folder).as_posix() for path in image_files(folder)] == [
        "b/a.jpg",
        "b/c/d.webp",
        "z.PNG",
    ]


@pytest.mark.parametrize("size", [32, 64])
def test_mixed_sizes_and_modes_become_rgb_squares(tmp_path, size):
    for i, mode in enumerate(("RGB", "RGBA", "L", "LA", "P", "1", "CMYK")):
        for width, height in ((64, 64), (200, 70), (1, 90)):
            suffix = "tiff" if mode == "CMYK" else "png"
            Image.new(mode, (width, height)).save(tmp_path / f"{i}-{width}.{suffix}")
    images = read_images(image_files(tmp_path), size)
    assert images.shape == (21, 3, size, size) and images.dtype == np.uint8


@pytest.mark.parametrize("landscape", [True, False])
def test_the_middle_of_the_long_edge_is_kept(tmp_path, landscape):
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, 32:96] = 255  # what is cropped away is black
    Image.fromarray(pixels if landscape else pixels.transpose(1, 0, 2)).save(tmp_path / "a.png")
    assert (read_images(image_files(tmp_path), 64) == 255).all()


def test_an_image_of_the_right_size_is_left_as_it_is(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(64, 64, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_images(image_files(tmp_path), 64)[0], pixels.transpose(2, 0, 1))


def test_photographs_are_turned_upright(tmp_path):
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:32] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # held upside down
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert read_images(image_files(tmp_path), 64)[0, 0, :, 0].tolist() == [0] * 32 + [255] * 32


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 300), st.integers(0, 9), st.randoms())
def test_the_split_is_85_to_15_and_exhaustive(tmp_path_factory, count, seed, shuffle):
    files = [tmp_path_factory.getbasetemp() / f"{i}.png" for i in range(count)]
    train, test = split_files(files, "train", seed), split_files(files, "test", seed)
    assert sorted(train + test) == sorted(files)
    assert abs(len(train) - 0.85 * count) <= 0.5 or len(test) == 1
    assert train == split_files(files, "train", seed)


def test_the_split_does_not_depend_on_the_order_of_the_file_system(tmp_path):
    names = [f"{i}.png" for i in range(20)]
    for folder, order in (("a", names), ("b", names[::-1])):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / name).write_bytes(b"")
    splits = [[p.name for p in split_files(image_files(tmp_path / folder), "test", 3)] for folder in "ab"]
    assert splits[0] == splits[1] and len(splits[0]) == 3
    assert splits[0] != [p.name for p in split_files(image_files(tmp_path / "a"), "test", 4)]


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "cannot read"),
        (b"not an image", "cannot read"),
        (png(64, 64), "cannot read"),  # no pixels
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "cannot read"),
        (png(50_000, 50_000), "more than 67,108,864 pixels"),
        (png(12_000, 10_000), "more than 67,108,864 pixels"),  # Pillow itself would only warn
        (png(9_000, 9_000, bytes(9_000 * 1_126)), "more than 67,108,864 pixels"),  # and here be silent
    ],
)
def test_a_broken_image_or_bomb_is_named(folder, content, says):
    path = folder / "b" / "bad.png"
    path.write_bytes(content)
    with warnings.catch_warnings(), pytest.raises(BadInput) as caught:
        warnings.simplefilter("error")
        read_images(image_files(folder), 32)
    assert str(path) in str(caught.value) and says in str(caught.value)


def test_sixteen_bits_are_refused_rather_than_clipped(tmp_path):
    Image.fromarray(np.full((40, 40), 30_000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(BadInput, match="8 bits"):
        read_images(image_files(tmp_path), 32)


def test_folders_without_enough_images(tmp_path):
    with pytest.raises(BadInput, match="no images"):
        image_files(tmp_path)
    with pytest.raises(BadInput, match="not a folder"):
        image_files(tmp_path / "missing")
    Image.new("RGB", (9, 9)).save(tmp_path / "only.png")
    with pytest.raises(BadInput, match="at least two"):
        load_images("folder", "train", tmp_path)


def test_progress_leaves_the_result_alone(folder, capfd):
    files = image_files(folder)
    np.testing.assert_array_equal(read_images(files, 32, progress=True), read_images(files, 32))
    assert capfd.readouterr().out == ""


@pytest.mark.data
def test_the_real_faces(real_data):
    test = load_images("animeface", "test", real_data)
    count = len(image_files(real_data / "animeface"))
    assert test.images.shape == (count - round(0.85 * count), 3, 64, 64)
    assert 60 < test.images.mean() < 200 and test.labels is None

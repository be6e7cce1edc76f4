import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ebmbounds.data.arrays import read_array
from ebmbounds.errors import BadInput


def write(tmp_path, name: str, content: bytes | str):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content, expected",
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("x,y\n1,2\n3,4", [[1, 2], [3, 4]]),
        ('"x","y"\r\n"1","2"\r\n', [[1, 2]]),
        ("\ufeffx,y\n1e-3, -2.5\n\n", [[1e-3, -2.5]]),
        ("7\n8\n", [[7], [8]]),
    ],
)
def test_csv_with_and_without_header(tmp_path, content, expected):
    assert read_array(write(tmp_path, "a.csv", content)).tolist() == expected


@pytest.mark.parametrize(
    "content, says",
    [
        ("", "shape (0, 1)"),
        ("x,y\n", "shape (0, 2)"),
        ("x,y\n1,2\n3\n", "line 3 of"),
        ("1,2\n3,a\n", "line 2 of"),
        ("1,a\n3,4\n", "line 1 of"),
        ("1,\n3,4\n", "line 1 of"),
        ("1,2\n3,nan\n", "sample 2 of"),
        ("inf,2\n", "sample 1 of"),
        (",x\n0,5\n", "row numbers"),
        (b"x\n\xff\xfe\n", "cannot read"),
        (b"1,2\n3,\x004\n", "line"),
    ],
)
def test_a_bad_csv_is_named(tmp_path, content, says):
    path = write(tmp_path, "a.csv", content)
    with pytest.raises(BadInput) as caught:
        read_array(path)
    assert str(path) in str(caught.value) and says in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.uint8, np.int64, np.float32, np.float64]),
        arrays.array_shapes(min_dims=2, max_dims=2),
        elements=st.integers(0, 200),
    )
)
def test_what_is_saved_is_read(tmp_path_factory, values):
    folder = tmp_path_factory.getbasetemp()
    np.save(folder / "a.npy", values)
    np.savez(folder / "a.npz", values)
    np.savez_compressed(folder / "b.npz", x=values, y=[1])
    np.savetxt(folder / "a.csv", values, delimiter=",")
    for name in ("a.npy", "a.npz", "b.npz", "a.csv"):
        found = read_array(folder / name)
        np.testing.assert_array_equal(found, values)
        assert name == "a.csv" or found.dtype == values.dtype


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(alphabet='0123456789.,-+enaif"\n\r #x\x00'), st.binary()))
def test_any_text_gives_numbers_or_a_sentence(tmp_path_factory, content):
    path = write(tmp_path_factory.getbasetemp(), "fuzz.csv", content)
    try:
        values = read_array(path)
    except BadInput as error:
        assert str(path) in str(error)
    else:
        assert values.ndim == 2 and np.isfinite(values).all()


def test_one_dimension_is_one_column(tmp_path):
    np.save(tmp_path / "a.npy", [1.0, 2.0])
    assert read_array(tmp_path / "a.npy").tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "values",
    [np.array([{}]), np.array(["a"]), np.array([1j]), np.array(3.0), np.zeros((0, 2)), np.array([[np.nan]])],
)
def test_values_that_are_no_samples_are_named(tmp_path, values):
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    np.savez(tmp_path / "a.npz", values)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(BadInput, match=name):
            read_array(tmp_path / name)


def test_headers_that_lie_and_files_that_are_something_else(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    content = (tmp_path / "a.npy").read_bytes()
    lie = content.replace(b"(4, 2), }" + b" " * 12, b"(400000000000, 2), }" + b" ")
    assert len(lie) == len(content) and lie != content
    bad = {
        "lie.npy": lie,
        "short.npy": content[:-8],
        "tokens.npy": content.replace(b"{'descr", b"((('''r"),
        "text.npy": b"1,2",
        "empty.npy": b"",
        "pickle.npy": b"\x80\x04K\x01.",
        "text.npz": b"1,2",
        "npy.npz": content,
    }
    for name, hostile in bad.items():
        with pytest.raises(BadInput, match=name):
            read_array(write(tmp_path, name, hostile))


def test_several_arrays_need_one_named_x(tmp_path):
    np.savez(tmp_path / "a.npz", a=[1], b=[2])
    with pytest.raises(BadInput, match="a, b"):
        read_array(tmp_path / "a.npz")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(BadInput, match="kind of array file"):
        read_array(tmp_path / "a.xlsx")
    with pytest.raises(BadInput, match=r"missing\.csv"):
        read_array(tmp_path / "missing.csv")

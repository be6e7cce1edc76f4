"""Settings from text: types, ranges, and the sentences that refuse."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebmbounds.errors import BadInput, unknown
from ebmbounds.settings import Count, Fraction, NonNegative, Positive, Range, Whole, build, field_names


@dataclass(frozen=True)
class Sample:
    count: Count = 1
    whole: Whole = 0
    positive: Positive = 1.0
    weight: NonNegative = 0.0
    share: Fraction = 0.5
    switch: bool = False
    maybe: bool | None = None
    mode: Literal["s1", "exact"] = "s1"
    label: str = ""


@pytest.mark.parametrize(
    ("key", "given_value", "expected"),
    [
        ("count", "200", 200),
        ("count", "2e5", 200_000),
        ("count", "30_000", 30_000),
        ("count", 7, 7),
        ("count", 7.0, 7),
        ("whole", "0", 0),
        ("positive", "1e-4", 1e-4),
        ("positive", 2, 2.0),
        ("weight", "0", 0.0),
        ("share", "0.999", 0.999),
        ("switch", "true", True),
        ("switch", "False", False),
        ("switch", True, True),
        ("maybe", "none", None),
        ("maybe", None, None),
        ("maybe", "true", True),
        ("mode", "exact", "exact"),
        ("label", "fid", "fid"),
    ],
)
def test_values_and_their_text(key, given_value, expected):
    found = getattr(build(Sample, {key: given_value}), key)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("count", "3.7", "int"),
        ("count", "0", "at least 1"),
        ("count", "-5", "at least 1"),
        ("count", "many", "int"),
        ("count", "", "int"),
        ("count", "1e400", "int"),
        ("count", True, "int"),
        ("count", None, "int"),
        ("count", [1], "int"),
        ("whole", "-1", "at least 0"),
        ("positive", "0", "above 0"),
        ("positive", "nan", "float"),
        ("positive", "inf", "float"),
        ("weight", "-1e-9", "at least 0"),
        ("share", "1", "at least 0 and below 1"),
        ("share", "1.5", "below 1"),
        ("switch", "yes", "bool"),
        ("switch", 1, "bool"),
        ("maybe", "maybe", "bool"),
        ("mode", "s2", "s1, exact"),
        ("mode", ["s1"], "s1, exact"),
        ("label", 3, "str"),
    ],
)
def test_a_bad_value_is_named_with_what_would_do(key, value, says):
    with pytest.raises(BadInput) as caught:
        build(Sample, {key: value})
    assert f"{key}=" in str(caught.value) and says in str(caught.value)


@given(st.integers(-(2**53), 2**53))
def test_whole_numbers_come_through_exactly(number):
    @dataclass(frozen=True)
    class Any:
        n: int = 0

    assert build(Any, {"n": number}).n == build(Any, {"n": str(number)}).n == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_through_exactly(number):
    @dataclass(frozen=True)
    class Any:
        x: float = 0.0

    assert build(Any, {"x": repr(number)}).x == number


def test_unknown_keys_suggest_the_closest():
    with pytest.raises(BadInput, match=r"unknown key 'wieght': did you mean 'weight'\?"):
        build(Sample, {"wieght": 1})
    with pytest.raises(BadInput, match=r"choose one of: .*count.*whole"):
        build(Sample, {"zzzzzz": 1})


def test_defaults_stay():
    assert build(Sample, {}) == Sample()
    assert field_names(Sample) == [field.name for field in dataclasses.fields(Sample)]


@given(st.floats(-10, 10), st.floats(-10, 10), st.booleans(), st.booleans(), st.floats(-10, 10))
def test_ranges(low, high, open_low, open_high, value):
    found = Range(low, high, open_low, open_high).holds(value)
    inside = (low < value or (low == value and not open_low)) and (value < high or (value == high and not open_high))
    assert found == inside


def test_ranges_in_words():
    assert str(Range(0, open_low=True)) == "above 0"
    assert str(Range(1, 16)) == "at least 1 and at most 16"
    assert str(Range(high=1, open_high=True)) == "below 1"
    assert not Range(0, 1).holds(math.nan)


def test_the_closest_name_or_all_of_them():
    assert "did you mean 'cifar10'?" in str(unknown("data set", "cifra10", ["cifar10", "mnist"]))
    assert "choose one of: a, b." in str(unknown("thing", "xyz", ["b", "a"]))

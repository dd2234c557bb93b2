"""Verdicts follow from criteria, and criteria from the numbers alone."""

import math

import pytest

from shoal.lab import Claim, Criterion
from shoal.lab.claims import near_printed

HOLDS, FAILS = Criterion("at most 1", 0.5, most=1), Criterion("at least 1", 0.5, least=1)


@pytest.mark.parametrize(
    ("criteria", "corrected", "verdict"),
    [
        ((HOLDS,), False, "reproduced"),
        ((HOLDS, HOLDS), True, "reproduced with correction"),
        ((HOLDS, FAILS), False, "in part"),
        ((HOLDS, FAILS), True, "in part"),
        ((FAILS,), False, "not reproduced"),
        ((FAILS, FAILS), True, "not reproduced"),
    ],
)
def test_the_verdict_is_that_of_the_criteria(
    criteria: tuple[Criterion, ...], corrected: bool, verdict: str
) -> None:
    assert Claim("", "", "", "", criteria, corrected).verdict == verdict


@pytest.mark.parametrize(
    ("value", "holds"),
    [(1.0, True), (2.0, True), (0.999, False), (2.001, False), (math.nan, False)],
)
def test_a_range_has_its_ends_and_no_nan(value: float, holds: bool) -> None:
    assert Criterion("", value, 1.0, 2.0).holds is holds


@pytest.mark.parametrize(
    ("value", "held"), [(0.95, [1, 1]), (1.2, [0, 1]), (0.51, [0, 1]), (0.4, [0, 0]), (3, [0, 0])]
)
def test_near_a_printed_value(value: float, held: list[int]) -> None:
    assert [criterion.holds for criterion in near_printed({"x": value}, {"x": 1.0})] == held

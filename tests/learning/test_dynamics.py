"""What is left of an error, and what is learned, against high precision."""

import math

import mpmath
import pytest
import torch

from shoal.learning.linear_training import first_time, remaining

EIGENVALUES = [1e-300, 1e-18, 1e-9, 0.3, 0.999, 1.0, 1.3, 1.999]


def exact(step_size, eigenvalue, time):
    with mpmath.workdps(400):
        if step_size is None:
            left = mpmath.exp(-mpmath.mpf(eigenvalue) * time)
        else:
            left = (1 - mpmath.mpf(step_size) * mpmath.mpf(eigenvalue)) ** time
        return float(left), float(1 - left)


@pytest.mark.parametrize("step_size", [None, 1.0, 0.125])
@pytest.mark.parametrize("time", [0, 1, 2, 17, 10**6])
def test_shares_have_all_digits(step_size, time):
    values = torch.tensor(EIGENVALUES, dtype=torch.float64)
    left, learned = (share.tolist() for share in remaining(values, time, step_size))
    for i, eigenvalue in enumerate(EIGENVALUES):
        expected = exact(step_size, eigenvalue, time)
        # the argument of an exponential is rounded once
        assert left[i] == pytest.approx(expected[0], rel=4e-15 * (4 + time), abs=1e-300)
        assert learned[i] == pytest.approx(expected[1], rel=1e-14, abs=0)


@pytest.mark.parametrize("step_size", [None, 1.0])
def test_limits(step_size):
    values = torch.tensor([0.0, 1e-300, 0.5, 1.0, 1.9], dtype=torch.float64)
    left, learned = remaining(values, math.inf, step_size)
    assert left[2:].tolist() == [0, 0, 0]
    assert learned[2:].tolist() == [1, 1, 1]
    for time in (0, 3, math.inf):
        assert [float(share[0]) for share in remaining(values, time, step_size)] == [1, 0]
    assert remaining(values, 0, step_size)[0].tolist() == [1] * 5


@pytest.mark.parametrize("level", [1e-200, 1e-8, 0.3, 0.999999])
def test_search(level):
    assert first_time(lambda t: math.exp(-t), level, 5.0) == pytest.approx(
        -math.log(level), rel=1e-11
    )
    assert first_time(lambda k: 0.9**k, level, 1.0, whole=True) == math.ceil(
        math.log(level) / math.log(0.9)
    )


def test_search_ends():
    assert first_time(lambda t: math.exp(-t), 1.0, 1.0) == 0
    assert first_time(lambda k: 0.5**k, 2.0, 1.0, whole=True) == 0
    assert first_time(lambda t: 1 + math.exp(-t), 0.5, 1.0) == math.inf
    assert first_time(lambda k: 1 + 0.5**k, 0.5, 1.0, whole=True) == math.inf

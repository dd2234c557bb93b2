"""Flags that are no truth values, masked entries and imaginary parts are refused by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from shoal import data

DEQ = shoal.DEQ(shoal.ReLU(), 0.2, 0.8)
HOLES = np.ma.masked_array(np.eye(4), mask=np.eye(4) > 0)
ONES = np.ones((4, 1))


def mixture() -> shoal.GaussianMixture:
    return shoal.GaussianMixture(np.zeros((1, 6)), 1.0)


def network() -> torch.nn.Module:
    return shoal.build(DEQ, in_features=4, width=8, dtype=torch.float64)


@pytest.mark.parametrize("value", ["no", 1, None, np.True_], ids=repr)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("shuffle", lambda v: mixture().sample(4, 0, shuffle=v)),
        ("regression", lambda v: data.read_csv("a.csv", label=1, regression=v)),
        ("header", lambda v: data.read_csv("a.csv", label=1, header=v)),
        ("raw", lambda v: data.load("digits", raw=v)),
        ("center", lambda v: shoal.coefficients(DEQ, tau0=1.0, center=v)),
        ("norm_gated", lambda v: shoal.FullyConnected([shoal.Tanh()], norm_gated=v)),
    ],
)
def test_flags_are_true_or_false(
    name: str,
    call: Callable[[object], object],
    value: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n1,2\n3,4\n1,3\n")
    if value is None and name == "header":
        call(value)  # which leaves it open
        return
    with pytest.raises(TypeError, match=f"{name} must be True or False, got "):
        call(value)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x1", lambda a: shoal.kernel(DEQ, a)),
        ("x2", lambda a: shoal.kernel(DEQ, np.eye(4), a)),
        ("x", lambda a: shoal.train(network(), a, ONES, step_size=0.1, steps=1)),
        ("y", lambda a: shoal.train(network(), np.eye(4), a[:, :1], step_size=0.1, steps=1)),
        ("x", lambda a: shoal.certify(network(), a, ONES)),
        ("x", lambda a: shoal.kernel_regression(DEQ, a, ONES, ridge=0.1)),
        ("y", lambda a: shoal.kernel_regression(DEQ, np.eye(4), a[:, :1], ridge=0.1)),
        ("x", lambda a: shoal.required_width(DEQ, a, ONES)),
        ("means", lambda a: shoal.GaussianMixture(a, 1.0)),
        ("x", lambda a: shoal.GaussianMixture.fit(a, [0, 0, 1, 1], covariance="scalar")),
        ("grid", lambda a: shoal.spectrum(DEQ, mixture(), n=20).ck.density(a[0])),
    ],
)
def test_masked_entries_are_no_numbers(name: str, call: Callable[[object], object]) -> None:
    with pytest.raises(ValueError, match=rf"{name} must not have masked entries, got \d+ of \d+"):
        call(HOLES)


def test_labels_that_are_masked_are_no_labels() -> None:
    labels = np.ma.masked_array([0, 0, 1, 1], mask=[False, False, True, False])
    with pytest.raises(ValueError, match="labels must not have masked entries, got 1 of 4"):
        shoal.GaussianMixture.fit(np.eye(4), labels, covariance="scalar")


def test_a_mask_of_nothing_does_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    found = shoal.kernel(DEQ, np.ma.masked_array(x)).ck
    assert np.asarray(found) == pytest.approx(np.asarray(shoal.kernel(DEQ, x).ck))


def test_imaginary_parts_are_not_dropped() -> None:
    law = shoal.spectrum(DEQ, mixture(), n=20).ck
    for points in ([1 + 1j], np.array([1 + 1j]), torch.tensor([1 + 1j])):
        with pytest.raises(TypeError, match="must be real numbers"):
            law.density(points)

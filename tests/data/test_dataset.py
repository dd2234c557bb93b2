"""Datasets and their standardization, against NumPy and scikit-learn."""

import dataclasses

import numpy as np
import pytest
import torch

from shoal import data
from shoal.data import Dataset


def images(n: int = 30, shape: tuple[int, int, int] = (3, 8, 6), classes: int = 5) -> Dataset:
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = tuple("abcdefghij"[:classes])
    return Dataset(x, torch.arange(n) % classes, "noise", classes=names)


def test_datasets_are_frozen_and_checked() -> None:
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    toy = Dataset(x, y, "toy", classes=("a", "b"))
    assert repr(toy) == "Dataset('toy', 2 samples of shape 3, float32, 2 classes)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy.x = x
    bad = [
        ((x.tolist(), y, "toy"), TypeError, "x must be a tensor, got list"),
        ((x > 0, y, "toy"), TypeError, "x must hold real numbers"),
        ((x[:0], y[:0], "toy"), ValueError, r"at least one entry, got shape \(0, 3\)"),
        ((x, y.tolist(), "toy"), TypeError, "y must be a tensor"),
        ((x, y.int(), "toy"), TypeError, r"y must be int64 or floating-point, got .*int32"),
        ((x, y[:1], "toy"), ValueError, "y must have 2 rows"),
        ((x, y, "toy", ("a",)), ValueError, r"in 0\.\.0 for 1 classes, got 0\.\.1"),
        ((x, y - 1, "toy", ("a", "b")), ValueError, r"got -1\.\.0"),
        ((x, None, "toy", ("a", "b")), ValueError, "y must be class indices if there are classes"),
    ]
    for arguments, error, message in bad:
        with pytest.raises(error, match=message):
            Dataset(*arguments)
    with pytest.raises(ValueError, match="data must have labels, and has none"):
        Dataset(x).targets()


def test_labels_as_numbers() -> None:
    whole = images()
    rows = (whole.y == 2) | (whole.y == 4)
    pair = dataclasses.replace(
        whole, x=whole.x[rows], y=(whole.y[rows] == 4).long(), classes=("c", "e")
    )
    signed = pair.targets()
    assert signed.dtype == torch.float64
    assert signed[:, 0].tolist() == [-1.0 if k == 0 else 1.0 for k in pair.y.tolist()]
    assert (images().targets().numpy() == np.eye(5)[np.arange(30) % 5]).all()
    assert (pair.targets(2).numpy() == np.eye(2)[pair.y]).all()
    with pytest.raises(ValueError, match="must have 5 outputs for the labels of noise, got 3"):
        images().targets(3)
    real = dataclasses.replace(pair, y=signed, classes=())
    assert torch.equal(real.targets(), signed)


def test_standardize() -> None:
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 4)) * [1, 1e-6, 1e6, 0] + [
        0,
        3e-6,
        -5,
        0.1,
    ]  # the last is constant
    train, test = Dataset(torch.from_numpy(x[:40])), Dataset(torch.from_numpy(x[40:]))
    found = data.standardize(train)
    np.testing.assert_allclose(found.x.numpy(), scaler.fit_transform(x[:40]), rtol=1e-8, atol=1e-10)
    assert (found.x[:, 3] == 0).all()
    like = data.standardize(test, like=train).x.numpy()
    np.testing.assert_allclose(like[:, :3], scaler.transform(x[40:])[:, :3], rtol=1e-8, atol=1e-8)
    with pytest.raises(
        ValueError, match=r"like must have samples of shape \(4,\), got \(3, 8, 6\)"
    ):
        data.standardize(train, like=images())
    with pytest.raises(TypeError, match="dataset must be a Dataset, got"):
        data.standardize(torch.ones(2, 3))

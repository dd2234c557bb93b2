"""Mixtures: their statistics by hand, their samples by their law."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch

from shoal import GaussianMixture
from shoal.asymptotics import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScalarCovariance,
    class_indices,
    estimate,
)

P = 6
MATRIX = [[2.0, 1.0], [1.0, 2.0]]


def three(proportions: object = (1, 2, 3)) -> GaussianMixture:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, P, generator=generator, dtype=torch.float64)
    factor = torch.randn(P, 2, generator=generator, dtype=torch.float64)
    diagonal = [1.0, 2.0, 0.0, 1.0, 3.0, 0.5]
    return GaussianMixture(means, [0.5, diagonal, LowRankCovariance(factor, 1.0)], proportions)


def test_statistics_against_dense_matrices() -> None:
    mixture = three()
    dense = torch.stack([c.dense() for c in mixture.covariances])
    weights = torch.tensor([1 / 6, 2 / 6, 3 / 6], dtype=torch.float64)
    mean = torch.einsum("a,aij->ij", weights, dense)
    torch.testing.assert_close(mixture.proportions, weights)
    assert mixture.input_norm == pytest.approx(math.sqrt(float(mean.trace()) / P))
    deviations = torch.stack([(c - mean).trace() / math.sqrt(P) for c in dense])
    torch.testing.assert_close(mixture.trace_deviations, deviations)
    assert float(mixture.proportions @ mixture.trace_deviations) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(
        mixture.trace_products, torch.einsum("aij,bij->ab", dense, dense) / P
    )
    torch.testing.assert_close(mixture.mean_products, mixture.means @ mixture.means.T / P)
    distances = torch.cdist(mixture.means, mixture.means) ** 2 / P
    torch.testing.assert_close(mixture.statistics.mean_distances.value, distances)
    for field in dataclasses.fields(mixture.statistics):
        entry = getattr(mixture.statistics, field.name)
        if hasattr(entry, "error"):
            assert entry.error.shape == entry.value.shape
            assert not entry.error.any()
    assert float(mixture.statistics.input_norm.error) == 0


def test_forms_of_arguments() -> None:
    means = np.zeros((2, 2))
    kinds: list[tuple[object, type[Covariance]]] = [
        (2, ScalarCovariance),
        (np.ones(2), DiagonalCovariance),
        (torch.tensor(MATRIX), FullCovariance),
        (np.array(MATRIX, dtype=np.float32), FullCovariance),
        (ScalarCovariance(1.0, 2), ScalarCovariance),
    ]
    for value, kind in kinds:
        shared = GaussianMixture(means, value)
        each = GaussianMixture(list(means), [value, value])
        for mixture in (shared, each):
            assert [type(c) for c in mixture.covariances] == [kind, kind]
            assert mixture.dimension == 2
    nested = GaussianMixture([[0, 1], [1, 0]], [[1.0, 2.0], MATRIX])
    assert [c.trace() for c in nested.covariances] == [3.0, 4.0]
    tensors = GaussianMixture([torch.zeros(2), torch.ones(2)], 1.0)
    assert tensors.means.dtype == torch.float64
    assert repr(tensors) == "GaussianMixture(classes=(0, 1), dimension=2)"
    assert GaussianMixture(means, 1.0, classes=("a", "b")).classes == ("a", "b")


def test_ling2024() -> None:
    p = 1000
    mixture = GaussianMixture.ling2024(p)
    means = torch.zeros(2, p, dtype=torch.float64)
    means[0, 0] = means[1, 8] = 8  # [0_{8(a-1)}; 8; 0_{p-8a+7}]
    assert torch.equal(mixture.means, means)
    root = math.sqrt(p)
    assert mixture.input_norm**2 == pytest.approx(1 + 4 / root)
    torch.testing.assert_close(mixture.trace_deviations, torch.tensor([-4.0, 4.0]).double())
    scales = torch.tensor([1, 1 + 8 / root]).double()
    torch.testing.assert_close(mixture.trace_products, torch.outer(scales, scales))
    assert GaussianMixture.ling2024(25, classes=4).means[3, 24] == 8


def test_samples_have_the_law() -> None:
    mixture, n = three(), 60_000
    x, labels = mixture.sample(n, seed=1)
    assert torch.bincount(labels).tolist() == [10_000, 20_000, 30_000]
    assert torch.equal(labels, labels.sort().values)
    for a, covariance in enumerate(mixture.covariances):
        rows = math.sqrt(P) * x[labels == a]
        matrix, count = covariance.dense(), len(rows)
        spread = matrix.diagonal().sqrt()
        assert ((rows.mean(0) - mixture.means[a]).abs() <= 4.5 * spread / count**0.5 + 1e-12).all()
        errors = ((matrix**2 + torch.outer(spread**2, spread**2)) / count).sqrt()
        assert ((rows.T.cov() - matrix).abs() <= 4.5 * errors + 1e-12).all()


def test_seeds_dtypes_and_order() -> None:
    mixture = three()
    x, labels = mixture.sample(50, seed=1)
    again = mixture.sample(50, 1)
    assert torch.equal(x, again[0])
    assert torch.equal(labels, again[1])
    assert not torch.equal(x, mixture.sample(50, seed=2)[0])
    single, _ = mixture.sample(50, seed=1, dtype=torch.float32)
    assert single.dtype == torch.float32
    assert torch.equal(single, x.float())
    mixed, shuffled = mixture.sample(60_000, seed=1, shuffle=True)
    assert not torch.equal(shuffled, shuffled.sort().values)
    assert torch.bincount(shuffled).tolist() == [10_000, 20_000, 30_000]
    first = mixed[shuffled == 0].mean(0) * math.sqrt(P)
    assert (first - mixture.means[0]).abs().max() < 5 * math.sqrt(0.5 / 10_000)
    restored = pickle.loads(pickle.dumps(mixture))
    assert torch.equal(restored.sample(50, seed=1)[0], x)


@pytest.mark.parametrize(
    ("n", "proportions", "sizes"),
    [
        (6, (1, 2, 3), [1, 2, 3]),
        (1, (1, 1, 1), [1, 0, 0]),
        (5, (1, 1, 1), [2, 2, 1]),
        (10, (0.1, 0.2, 0.7), [1, 2, 7]),
        (300, (0.1, 0.2, 0.7), [30, 60, 210]),
        (8, (0.45, 0.45, 0.1), [4, 3, 1]),  # 3.6, 3.6, 0.8
        (100_000_003, (1, 2, 3), [16_666_667, 33_333_334, 50_000_002]),  # .17, .33, .50
    ],
)
def test_exact_counts(n: int, proportions: tuple, sizes: list[int]) -> None:
    from shoal.asymptotics.mixture import _shares

    assert _shares(n, three(proportions).proportions).tolist() == sizes


def test_random_counts() -> None:
    mixture, n = three(), 600
    drawn = torch.stack(
        [
            torch.bincount(mixture.sample(n, seed=seed, counts="random")[1], minlength=3)
            for seed in range(300)
        ]
    ).double()
    assert (drawn.sum(1) == n).all()
    expected = n * mixture.proportions
    variance = expected * (1 - mixture.proportions)
    assert ((drawn.mean(0) - expected).abs() < 4 * (variance / 300).sqrt()).all()
    assert ((drawn.var(0) / variance - 1).abs() < 4 * math.sqrt(2 / 300)).all()


def test_class_indices() -> None:
    assert class_indices(np.array([3, 1, 3]), (1, 3)).tolist() == [1, 0, 1]
    assert class_indices(torch.tensor([3, 1]), (3, 1)).tolist() == [0, 1]
    assert class_indices(["b", "a"], ("a", "b")).tolist() == [1, 0]
    with pytest.raises(ValueError, match="among the classes 'a', 'b', got 'c'"):
        class_indices(["a", "c"], ("a", "b"))


def test_estimates_must_fit() -> None:
    x, labels = three().sample(60, seed=0)
    estimates = estimate(x, labels)
    kept = dataclasses.replace(three(), estimates=estimates)
    assert kept.statistics is estimates
    with pytest.raises(ValueError, match=r"must have the proportions \[0.33"):
        dataclasses.replace(kept, proportions=[1, 1, 1])
    with pytest.raises(ValueError, match=r"in dimension 2, got \(0, 1, 2\) in dimension 6"):
        GaussianMixture(torch.zeros(3, 2), 1.0, estimates=estimates)
    with pytest.raises(TypeError, match="estimates must be MixtureStatistics, got dict"):
        GaussianMixture(torch.zeros(3, 2), 1.0, estimates={})
    weights = dataclasses.replace(three(), proportions=[1, 1, 1])
    assert float(weights.trace_deviations.sum()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ([1.0, 2.0], 1.0),
            ValueError,
            r"means must have shape \(classes, dimension\), got \(2,\)",
        ),
        ((3.0, 1.0), TypeError, "means must be a tensor, an array or a sequence, got 3.0"),
        ((np.array([["a"]]), 1.0), TypeError, "means must hold real numbers, got dtype <U1"),
        (([[1.0], [1.0, 2.0]], 1.0), ValueError, "means must be rectangular"),
        (([torch.ones(1), torch.ones(2)], 1.0), ValueError, r"the shapes \(1,\), \(2,\)"),
        (([[float("nan")]], 1.0), ValueError, "means must be finite"),
        ((torch.zeros(0, 3), 1.0), ValueError, "means must not be empty"),
        (([[1.0, 2.0]], [1.0, 2.0]), ValueError, "one for each of the 1 classes, .* got 2"),
        (([[1.0, 2.0]], np.ones(3)), ValueError, "covariances must have dimension 2, got 3"),
        (([[1.0, 2.0]], np.ones((1, 2, 2))), ValueError, r"vectors or matrices, got \(1, 2, 2\)"),
        (([[1.0, 2.0]], -1.0), ValueError, "covariances must be >= 0"),
        (([[1.0, 2.0]], np.array([1.0, -1.0])), ValueError, "covariances must be >= 0"),
        (([[1.0, 2.0]], None), TypeError, "covariances must be a tensor, an array"),
        (([[1.0, 2.0]], True), TypeError, "covariances must be a tensor, an array"),
        (([[1.0, 2.0]], 1.0, [0.0]), ValueError, "proportions must be > 0, got 0"),
        (([[1.0], [2.0]], 1.0, [0.5, 0.6]), ValueError, "proportions must sum to 1 or be whole"),
        (([[1.0, 2.0]], 1.0, [0.5, 0.5]), ValueError, "each of the 1 classes, got shape"),
    ],
)
def test_bad_mixtures(arguments: tuple, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        GaussianMixture(*arguments)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"classes must be 2 different labels, got \('a', 'a'\)"):
        GaussianMixture(np.zeros((2, 2)), 1.0, classes=["a", "a"])
    with pytest.raises(ValueError, match="dimension must be >= 9, got 8"):
        GaussianMixture.ling2024(8)
    mixture = three()
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        mixture.sample(0, seed=0)
    with pytest.raises(TypeError, match="seed must be an integer, got None"):
        mixture.sample(4, seed=None)
    with pytest.raises(ValueError, match="counts must be one of 'exact', 'random', got 'some'"):
        mixture.sample(4, seed=0, counts="some")
    with pytest.raises(TypeError, match=r"dtype must be .*, got torch.int32"):
        mixture.sample(4, seed=0, dtype=torch.int32)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float16"])
def test_all_real_dtypes(dtype):
    means = np.array([[1, 0, 0], [0, 2, 0]], dtype=dtype)
    for given in (means, torch.from_numpy(means)):
        mixture = GaussianMixture(given, 1.0, np.array([1, 3], dtype=dtype))
        assert mixture.means.tolist() == [[1, 0, 0], [0, 2, 0]]
        assert mixture.proportions.tolist() == [0.25, 0.75]
    with pytest.raises(TypeError, match="means must hold real numbers, got dtype bool"):
        GaussianMixture(means.astype(bool), 1.0)


def test_classes_are_integers_or_strings():
    assert repr(GaussianMixture(np.zeros((2, 3)), 1.0, classes=np.array([5, 7]))) == (
        "GaussianMixture(classes=(5, 7), dimension=3)"
    )
    for bad in ([0.5, 1.5], [None, 1], [[1], [2]], [True, False]):
        with pytest.raises(TypeError, match="classes must be integers or strings, got"):
            GaussianMixture(np.zeros((2, 3)), 1.0, classes=bad)

"""Mixtures: statistics by hand, samples by their law, estimates against U-statistics."""

import dataclasses
import itertools
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal import GaussianMixture
from shoal.asymptotics import Covariance, DiagonalCovariance, FullCovariance, class_indices

P = 6
MATRIX = [[2.0, 1.0], [1.0, 2.0]]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def three(proportions: object = (1, 2, 3)) -> GaussianMixture:
    factor = normal(P, 2, seed=1)
    full = factor @ factor.T + torch.eye(P, dtype=torch.float64)
    diagonal = [1.0, 2.0, 0.0, 1.0, 3.0, 0.5]
    return GaussianMixture(normal(3, P), [0.5, diagonal, full], proportions)


# Parameters


def test_statistics_against_dense_matrices() -> None:
    mixture = three()
    dense = torch.stack([c.dense() for c in mixture.covariances])
    weights = torch.tensor([1 / 6, 2 / 6, 3 / 6], dtype=torch.float64)
    mean = torch.einsum("a,aij->ij", weights, dense)
    torch.testing.assert_close(mixture.proportions, weights)
    assert mixture.input_norm == pytest.approx(math.sqrt(float(mean.trace()) / P))
    products = torch.einsum("aij,bij->ab", dense, dense) / P
    torch.testing.assert_close(mixture.trace_products, products)
    found = mixture.statistics
    torch.testing.assert_close(found.traces, torch.einsum("aii->a", dense) / P)
    torch.testing.assert_close(found.mean_products, mixture.means @ mixture.means.T / P)
    assert not found.norm_excess.any()


def test_covariances_against_their_matrices() -> None:
    for covariance in three().covariances:
        matrix = covariance.dense()
        torch.testing.assert_close(covariance.variances(), matrix.diagonal())
        assert covariance.trace() == pytest.approx(float(matrix.trace()))
        for v in (normal(P, seed=4), normal(P, 3, seed=5)):
            torch.testing.assert_close(covariance.apply(v), matrix @ v)


def test_forms_of_arguments() -> None:
    means = np.zeros((2, 2))
    kinds: list[tuple[object, type[Covariance]]] = [
        (2, DiagonalCovariance),
        (np.ones(2), DiagonalCovariance),
        (torch.tensor(MATRIX), FullCovariance),
        (np.array(MATRIX, dtype=np.float32), FullCovariance),
        (DiagonalCovariance([1.0, 2.0]), DiagonalCovariance),
    ]
    for value, kind in kinds:
        for mixture in (GaussianMixture(means, value), GaussianMixture(list(means), [value] * 2)):
            assert [type(c) for c in mixture.covariances] == [kind, kind]
            assert mixture.dimension == 2
    nested = GaussianMixture([[0, 1], [1, 0]], [[1.0, 2.0], MATRIX])
    assert [c.trace() for c in nested.covariances] == [3.0, 4.0]
    for dtype in ("uint8", "int32", "float16"):
        array = np.array([[1, 0, 0], [0, 2, 0]], dtype=dtype)
        for given in (array, torch.from_numpy(array)):
            mixture = GaussianMixture(given, 1.0, np.array([1, 3], dtype=dtype))
            assert mixture.means.tolist() == [[1, 0, 0], [0, 2, 0]]
            assert mixture.proportions.tolist() == [0.25, 0.75]
    named = GaussianMixture(means, 1.0, classes=("a", "b"))
    assert repr(named) == "GaussianMixture(classes=('a', 'b'), dimension=2)"


def test_rounding_is_forgiven_as_the_dtype_has_it() -> None:
    factor = normal(7, 2)
    single = (factor @ factor.T).float()  # rank 2 up to rounding
    assert float(torch.linalg.eigvalsh(single.double())[0]) < 0
    assert FullCovariance(single).trace() == pytest.approx(float(factor.square().sum()), rel=1e-6)
    with pytest.raises(ValueError, match="positive semidefinite, got the eigenvalue -"):
        FullCovariance(single.double() - 1e-6 * torch.eye(7))


def test_ling2024() -> None:
    p = 1000
    mixture = GaussianMixture.ling2024(p)
    means = torch.zeros(2, p, dtype=torch.float64)
    means[0, 0] = means[1, 8] = 8  # [0_{8(a-1)}; 8; 0_{p-8a+7}]
    assert torch.equal(mixture.means, means)
    assert mixture.input_norm**2 == pytest.approx(1 + 4 / math.sqrt(p))
    scales = torch.tensor([1, 1 + 8 / math.sqrt(p)]).double()
    torch.testing.assert_close(mixture.trace_products, torch.outer(scales, scales))
    assert GaussianMixture.ling2024(25, classes=4).means[3, 24] == 8


# Samples


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
        (8, (0.45, 0.45, 0.1), [4, 3, 1]),  # 3.6, 3.6, 0.8
    ],
)
def test_exact_counts(n: int, proportions: tuple, sizes: list[int]) -> None:
    labels = three(proportions).sample(n, seed=0)[1]
    assert torch.bincount(labels, minlength=3).tolist() == sizes


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


def test_class_indices() -> None:
    assert class_indices(np.array([3, 1, 3]), (1, 3)).tolist() == [1, 0, 1]
    assert class_indices(torch.tensor([3, 1]), (3, 1)).tolist() == [0, 1]
    assert class_indices(["b", "a"], ("a", "b")).tolist() == [1, 0]
    assert class_indices(np.array(["b", "a"], dtype=object), ("a", "b")).tolist() == [1, 0]
    with pytest.raises(ValueError, match="among the classes 'a', 'b', got 'c'"):
        class_indices(["a", "c"], ("a", "b"))


# Estimates


def fitted(x: object, labels: object, covariance: str = "diagonal") -> GaussianMixture:
    return GaussianMixture.fit(x, labels, covariance=covariance)  # type: ignore[arg-type]


def skewed(*shape: int, seed: int = 0) -> Tensor:
    """Centered exponential numbers: variance 1, fourth moment 9."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(*shape, dtype=torch.float64).exponential_(generator=generator) - 1


def mean(function: Callable[..., Tensor], rows: Tensor, count: int) -> float:
    """Over all tuples of different rows."""
    values = [function(*tuple_) for tuple_ in itertools.permutations(rows, count)]
    return float(torch.stack(values).mean())


@pytest.mark.parametrize(("n", "other", "p"), [(6, 5, 3), (4, 7, 9), (6, 6, 1)])
def test_against_u_statistics(n: int, other: int, p: int) -> None:
    """The values are the symmetric unbiased estimates, by features and by samples."""
    x = skewed(n + other, p) + 0.5
    found = fitted(x, [0] * n + [1] * other).statistics
    groups = [math.sqrt(p) * x[:n], math.sqrt(p) * x[n:]]
    for a, y in enumerate(groups):
        trace = mean(lambda i, j: (i - j) @ (i - j) / 2, y, 2)
        square = mean(lambda i, j, k, m: ((i - j) @ (k - m)) ** 2 / 4, y, 4)
        of_trace = mean(lambda i, j, k, m: ((i - j) @ (i - j)) * ((k - m) @ (k - m)) / 4, y, 4)
        fourth = mean(lambda i, j: ((i - j) @ (i - j)) ** 2 / 2, y, 2)
        assert float(found.traces[a]) == pytest.approx(trace / p)
        assert float(found.trace_products[a, a]) == pytest.approx(square / p)
        # E‖z - z'‖⁴ / 2 = excess + 4 tr C² + 2 (tr C)²
        excess = fourth - 4 * square - 2 * of_trace
        assert float(found.norm_excess[a]) == pytest.approx(excess / p)
        inner = mean(lambda i, j: i @ j, y, 2)
        assert float(found.mean_products[a, a]) == pytest.approx(inner / p)
    pairs = [list(itertools.permutations(y, 2)) for y in groups]
    cross = [((i - j) @ (k - m)) ** 2 / 4 for i, j in pairs[0] for k, m in pairs[1]]
    inner = float(groups[0].mean(0) @ groups[1].mean(0))
    for a, b in ((0, 1), (1, 0)):
        square = float(torch.stack(cross).mean())
        assert float(found.trace_products[a, b]) == pytest.approx(square / p)
        assert float(found.mean_products[a, b]) == pytest.approx(inner / p)


@pytest.mark.parametrize(("p", "n"), [(50, 30), (6, 240)])
def test_unbiased_for_known_mixtures(p: int, n: int) -> None:
    """By z-tests, with fewer samples of a class than dimensions and with many more."""
    times, generator = 200, torch.Generator().manual_seed(p)
    variances = 2 * torch.rand(2, p, generator=generator, dtype=torch.float64)
    means = torch.zeros(2, p, dtype=torch.float64)
    means[:, 0] = torch.tensor([4.0, -2.0])
    truth = GaussianMixture(means, list(variances), [1, 2])
    runs = [fitted(*truth.sample(n, seed=seed)).statistics for seed in range(times)]
    for field in dataclasses.fields(truth.statistics):
        values = torch.stack([getattr(run, field.name) for run in runs])
        bias = values.mean(0) - getattr(truth.statistics, field.name)
        assert (bias.abs() <= 4 * values.std(0) / math.sqrt(times)).all(), field.name


def test_the_plug_in_is_biased() -> None:
    """Why all this: at n = p the trace of the squared sample covariance is twice too large."""
    p = 400
    x, labels = GaussianMixture(torch.zeros(1, p), 1.0).sample(p, seed=0)
    found = fitted(x, labels, "full")
    plug_in = found.covariances[0].inner(found.covariances[0]) / p
    assert plug_in == pytest.approx(2, rel=0.02)
    assert float(found.trace_products) == pytest.approx(1, abs=0.05)
    # samples whose scale varies have norms that fluctuate more than a Gaussian's
    scales = 1 + 0.2 * normal(p, 1, seed=1)
    assert abs(float(found.statistics.norm_excess)) < 2
    assert float(fitted(x * scales, labels).statistics.norm_excess) > 10


def test_fit() -> None:
    means = torch.zeros(2, 10, dtype=torch.float64)
    means[:, 0] = torch.tensor([3.0, -1.5])
    x, labels = GaussianMixture(means, 1.0, [1, 2]).sample(90, seed=0, shuffle=True)
    classes = np.array(["b", "a"])[labels.numpy()]
    groups = [math.sqrt(10) * x[classes == name] for name in ("a", "b")]
    fits = [fitted(x, classes, form) for form in ("scalar", "diagonal", "full")]
    for fit in fits:
        assert fit.classes == ("a", "b")
        assert fit.proportions.tolist() == pytest.approx([2 / 3, 1 / 3])
        torch.testing.assert_close(fit.means, torch.stack([g.mean(0) for g in groups]))
        torch.testing.assert_close(fit.trace_products, fits[0].trace_products)
    for a, group in enumerate(groups):
        matrix = group.T.cov()
        scalar, diagonal, full = (fit.covariances[a] for fit in fits)
        torch.testing.assert_close(scalar.variances(), matrix.diagonal().mean().expand(10))
        torch.testing.assert_close(diagonal.variances(), matrix.diagonal())
        torch.testing.assert_close(full.dense(), matrix)
    again = fitted(x.float().numpy(), classes.tolist())
    torch.testing.assert_close(again.means, fits[0].means, rtol=1e-5, atol=1e-6)
    constant = fitted(np.ones((12, 3)), [0] * 6 + [1] * 6).statistics
    assert not constant.traces.any()
    assert constant.mean_products.tolist() == [[3.0, 3.0], [3.0, 3.0]]


# Bad input

X, LABELS = np.zeros((12, 3)), [0] * 6 + [1] * 6


@pytest.mark.parametrize(
    ("x", "labels", "error", "message"),
    [
        (X, [0] * 3 + [1] * 9, ValueError, "at least 4 samples, got 3 of class 0"),
        (X, ["one"] + ["many"] * 11, ValueError, "at least 4 samples, got 1 of class 'one'"),
        (X[:1], [0], ValueError, "at least 4 samples, got 1 of class 0"),
        (X, LABELS[1:], ValueError, "as many as samples, got 11 for 12 samples"),
        (X[0], LABELS, ValueError, r"x must have shape \(samples, dimension\), got \(3,\)"),
        (X + np.nan, LABELS, ValueError, "x must be finite"),
        (X[:0], [], ValueError, "x must not be empty"),
        (torch.zeros(12, 3).long(), LABELS, TypeError, "x must be a floating-point tensor"),
        (X + 1j, LABELS, TypeError, "x must hold real numbers, got dtype complex128"),
        (X, [0.5] * 12, TypeError, "labels must be integers or strings, got dtype float64"),
        (X, ["a", *LABELS[1:]], TypeError, "integers or strings, not both, got 0"),
        (X, np.zeros((12, 1), int), ValueError, r"labels must have shape \(samples,\), got \(12"),
    ],
)
def test_bad_data(x: object, labels: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fitted(x, labels)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], 1.0), ValueError, r"means must have shape \(classes, dimension\)"),
        ((3.0, 1.0), TypeError, "means must be a tensor, an array or a sequence, got 3.0"),
        ((np.array([["a"]]), 1.0), TypeError, "means must hold real numbers, got dtype <U1"),
        ((np.ones((1, 2), bool), 1.0), TypeError, "means must hold real numbers, got dtype bool"),
        (([[1.0], [1.0, 2.0]], 1.0), ValueError, "means must be rectangular"),
        (([torch.ones(1), torch.ones(2)], 1.0), ValueError, r"the shapes \(1,\), \(2,\)"),
        (([[float("nan")]], 1.0), ValueError, "means must be finite"),
        ((torch.zeros(0, 3), 1.0), ValueError, "means must not be empty"),
        (([[1.0, 2.0]], [1.0, 2.0]), ValueError, "one for each of the 1 classes, .* got 2"),
        (([[1.0, 2.0]], np.ones(3)), ValueError, "covariances must have dimension 2, got 3"),
        (([[1.0, 2.0]], np.ones((1, 2, 2))), ValueError, r"vectors or matrices, got \(1, 2, 2\)"),
        (([[1.0, 2.0]], -1.0), ValueError, "covariances must be >= 0"),
        (([[1.0, 2.0]], np.array([1.0, -1.0])), ValueError, "values must be >= 0, got -1"),
        (([[1.0, 2.0]], np.array([[1.0, 2.0], [2.0, 1.0]])), ValueError, "semidefinite, got"),
        (([[1.0, 2.0]], np.array([[1.0, 0.5], [0.0, 1.0]])), ValueError, "matrix must be symmetr"),
        (([[1.0, 2.0]], None), TypeError, "covariances must be a tensor, an array"),
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
    for bad in ([0.5, 1.5], [None, 1], [[1], [2]], [True, False]):
        with pytest.raises(TypeError, match="classes must be integers or strings, got"):
            GaussianMixture(np.zeros((2, 3)), 1.0, classes=bad)
    with pytest.raises(ValueError, match="dimension must be >= 9, got 8"):
        GaussianMixture.ling2024(8)
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        three().sample(0, seed=0)
    with pytest.raises(TypeError, match="seed must be an integer, got None"):
        three().sample(4, seed=None)
    with pytest.raises(ValueError, match="counts must be one of 'exact', 'random', got 'some'"):
        three().sample(4, seed=0, counts="some")
    with pytest.raises(TypeError, match=r"dtype must be .*, got torch.int32"):
        three().sample(4, seed=0, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"covariance must be one of 'scalar', .* got 'round'"):
        fitted(X, LABELS, "round")

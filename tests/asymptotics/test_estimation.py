"""Estimates against U-statistics by brute force, and against known mixtures by Monte Carlo."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal import GaussianMixture
from shoal.asymptotics import (
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    MixtureStatistics,
    ScalarCovariance,
    estimate,
)

NAMES = (
    "traces",
    "input_norm_squared",
    "trace_deviations",
    "trace_products",
    "mean_products",
    "mean_distances",
    "norm_excess",
)


def skewed(*shape: int, seed: int = 0) -> Tensor:
    """Centered exponential numbers: variance 1, fourth moment 9."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(*shape, dtype=torch.float64).exponential_(generator=generator) - 1


def mean(function: Callable[..., Tensor], rows: Tensor, count: int) -> float:
    """Over all tuples of different rows."""
    values = [function(*tuple_) for tuple_ in itertools.permutations(rows, count)]
    return float(torch.stack(values).mean())


@pytest.mark.parametrize(("n", "other", "p"), [(6, 5, 3), (5, 7, 9), (6, 6, 1)])
def test_against_u_statistics(n: int, other: int, p: int) -> None:
    """The values are the symmetric unbiased estimates, on both routes to them (p = 1: by W)."""
    x = skewed(n + other, p) + 0.5
    found = estimate(x, [0] * n + [1] * other)
    groups = [math.sqrt(p) * x[:n], math.sqrt(p) * x[n:]]
    for a, y in enumerate(groups):
        trace = mean(lambda i, j: (i - j) @ (i - j) / 2, y, 2)
        square = mean(lambda i, j, k, m: ((i - j) @ (k - m)) ** 2 / 4, y, 4)
        of_trace = mean(lambda i, j, k, m: ((i - j) @ (i - j)) * ((k - m) @ (k - m)) / 4, y, 4)
        fourth = mean(lambda i, j: ((i - j) @ (i - j)) ** 2 / 2, y, 2)
        assert float(found.traces.value[a]) == pytest.approx(trace / p)
        assert float(found.trace_products.value[a, a]) == pytest.approx(square / p)
        # E‖z - z'‖⁴ / 2 = excess + 4 tr C² + 2 (tr C)²
        excess = fourth - 4 * square - 2 * of_trace
        assert float(found.norm_excess.value[a]) == pytest.approx(excess / p)
        own = mean(lambda i, j: i @ j, y, 2)
        assert float(found.mean_products.value[a, a]) == pytest.approx(own / p)
    pairs = [list(itertools.permutations(y, 2)) for y in groups]
    cross = [((i - j) @ (k - m)) ** 2 / 4 for i, j in pairs[0] for k, m in pairs[1]]
    apart = [(i - k) @ (j - m) for i, j in pairs[0] for k, m in pairs[1]]
    inner = float(groups[0].mean(0) @ groups[1].mean(0))
    for a, b in ((0, 1), (1, 0)):
        square = float(torch.stack(cross).mean())
        assert float(found.trace_products.value[a, b]) == pytest.approx(square / p)
        distance = float(torch.stack(apart).mean())
        assert float(found.mean_distances.value[a, b]) == pytest.approx(distance / p)
        assert float(found.mean_products.value[a, b]) == pytest.approx(inner / p)


@pytest.mark.parametrize("p", [2, 12])
def test_errors_against_leaving_samples_out(p: int) -> None:
    n = 14
    x, labels = skewed(2 * n, p), [0] * n + [1] * n
    whole = estimate(x, labels)
    rows = [estimate(x[keep], [labels[i] for i in keep]) for keep in leave_one_out(2 * n)]
    for name in ("traces", "norm_excess"):
        for a in (0, 1):
            values = torch.stack([getattr(r, name).value[a] for r in rows])[a * n : (a + 1) * n]
            variance = (n - 1) / n * (values - values.mean()).square().sum()
            assert float(getattr(whole, name).error[a]) == pytest.approx(math.sqrt(variance))
    spread = [float(e) ** 2 for e in whole.traces.error]
    assert float(whole.input_norm_squared.error) == pytest.approx(math.sqrt(sum(spread)) / 2)
    deviation = math.sqrt(p * sum(spread)) / 2
    assert whole.trace_deviations.error.tolist() == pytest.approx([deviation] * 2)
    input_norm = math.sqrt(float(whole.input_norm_squared.value))
    assert float(whole.input_norm.value) == pytest.approx(input_norm)
    assert float(whole.input_norm.error) == pytest.approx(math.sqrt(sum(spread)) / (4 * input_norm))


def leave_one_out(n: int) -> list[list[int]]:
    return [[j for j in range(n) if j != i] for i in range(n)]


def mixture(p: int, size: float = 0.0) -> GaussianMixture:
    generator = torch.Generator().manual_seed(p)
    variances = 2 * torch.rand(p, generator=generator, dtype=torch.float64)
    factor = torch.randn(p, 3, generator=generator, dtype=torch.float64) / math.sqrt(p)
    means = torch.zeros(2, p, dtype=torch.float64)
    means[:, 0] = torch.tensor([size, -size / 2])
    return GaussianMixture(means, [variances, LowRankCovariance(factor, 1.0)], [1, 2])


def repeated(draw: Callable[[int], tuple[Tensor, Tensor]], times: int) -> list[MixtureStatistics]:
    return [estimate(*draw(seed)) for seed in range(times)]


def stacked(runs: list[MixtureStatistics], name: str) -> tuple[Tensor, Tensor]:
    found = [getattr(run, name) for run in runs]
    return torch.stack([f.value for f in found]), torch.stack([f.error for f in found])


@pytest.mark.thorough
@pytest.mark.parametrize(("p", "n"), [(50, 30), (30, 90), (6, 240)])
def test_unbiased_for_known_mixtures(p: int, n: int) -> None:
    """By z-tests, with fewer samples of a class than dimensions and with many more."""
    times, truth = 300, mixture(p, size=4.0)
    runs = repeated(lambda seed: truth.sample(n, seed=seed), times)
    for name in NAMES:
        values, _ = stacked(runs, name)
        bias = values.mean(0) - getattr(truth.statistics, name).value
        assert (bias.abs() <= 4 * values.std(0) / math.sqrt(times)).all(), name


def test_unbiased_for_other_laws() -> None:
    times, n, p = 400, 12, 20
    scales = torch.linspace(0.5, 1.5, p, dtype=torch.float64)
    runs = repeated(
        lambda seed: (skewed(n, p, seed=seed) * scales / math.sqrt(p), torch.zeros(n).long()), times
    )
    square = float((scales**4).sum()) / p
    for name, truth in [("trace_products", square), ("norm_excess", 6 * square)]:
        values, _ = stacked(runs, name)
        spread = float(values.std()) / math.sqrt(times)
        assert abs(float(values.mean()) - truth) < 4 * spread, name


def test_the_plug_in_is_biased() -> None:
    """Why all this: at n = p the trace of the squared sample covariance is twice too large."""
    p = 400
    x, labels = GaussianMixture(torch.zeros(1, p), 1.0).sample(p, seed=0)
    fitted = GaussianMixture.fit(x, labels, covariance="full")
    plug_in = fitted.covariances[0].inner(fitted.covariances[0]) / p
    assert plug_in == pytest.approx(2, rel=0.02)
    found = fitted.statistics.trace_products
    assert abs(float(found.value) - 1) < 3 * float(found.error) < 0.05


@pytest.mark.thorough
@pytest.mark.parametrize(("p", "n"), [(60, 90), (100, 60), (8, 300)])
def test_errors_are_those_of_repetition(p: int, n: int) -> None:
    """Standard errors against the spread of repeated estimates, and their coverage.

    Their squares are exact on average but for terms in 1/n, except where the part of first order
    vanishes (products of means that are zero), where they are too large, and for the excess of few
    samples.
    """
    times, truth = 500, mixture(p, size=10.0)
    runs = repeated(lambda seed: truth.sample(n, seed=seed), times)
    for name in NAMES:
        values, errors = stacked(runs, name)
        ratio = errors.square().mean(0).sqrt() / values.std(0)
        inside = ((values - getattr(truth.statistics, name).value).abs() < 1.96 * errors).double()
        keep = values.std(0) > 0  # distances of means to themselves have neither error nor spread
        high = 1.35 if name == "norm_excess" else 1.15
        assert (ratio[keep] > 0.92).all(), (name, ratio)
        assert (ratio[keep] < high).all(), (name, ratio)
        assert (inside.mean(0)[keep] > 0.89).all(), (name, inside.mean(0))


@pytest.mark.thorough
def test_errors_of_means_that_vanish() -> None:
    """There the jackknife alone would be too large by √2."""
    times, truth = 400, mixture(60)
    runs = repeated(lambda seed: truth.sample(90, seed=seed), times)
    values, errors = stacked(runs, "mean_products")
    ratio = errors.square().mean(0).sqrt() / values.std(0)
    assert (ratio > 0.95).all()
    assert (ratio < 1.25).all()


def test_excess_of_norms_is_found() -> None:
    """Samples whose scale varies have norms that fluctuate more than a Gaussian's."""
    p, n = 200, 400
    x, labels = GaussianMixture(torch.zeros(1, p), 1.0).sample(n, seed=0)
    plain = estimate(x, labels).norm_excess
    assert abs(float(plain.value)) < 3 * float(plain.error)
    generator = torch.Generator().manual_seed(1)
    scales = 1 + 0.2 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    assert float(estimate(x * scales, labels).norm_excess.value) > 5 * float(plain.error)


def test_inputs_of_every_kind() -> None:
    x, labels = mixture(10, 3.0).sample(60, seed=0, shuffle=True)
    wanted = estimate(x, labels)
    names = np.array(["krill", "whale"])[labels.numpy()]
    kinds: list[tuple[object, object, tuple[object, ...]]] = [
        (x.numpy(), labels.numpy(), (0, 1)),
        (x, labels.tolist(), (0, 1)),
        (x, labels + 7, (7, 8)),
        (x, names, ("krill", "whale")),
        (x, names.tolist(), ("krill", "whale")),
        (x.clone().requires_grad_(), labels.to(torch.uint8), (0, 1)),
    ]
    for samples, classes, expected in kinds:
        found = estimate(samples, classes)
        assert found.classes == expected
        for name in NAMES:
            value, same = getattr(found, name).value, getattr(wanted, name).value
            torch.testing.assert_close(value, same, rtol=1e-12, atol=1e-12)
    single = estimate(x.float(), labels)
    torch.testing.assert_close(single.traces.value, wanted.traces.value, rtol=1e-6, atol=0)
    assert torch.equal(x, mixture(10, 3.0).sample(60, seed=0, shuffle=True)[0])  # untouched
    assert "±" in repr(found.input_norm)


def test_samples_that_do_not_vary() -> None:
    found = estimate(np.ones((12, 3)), [0] * 6 + [1] * 6)
    for name in (*NAMES, "input_norm"):
        value, error = getattr(found, name).value, getattr(found, name).error
        assert torch.equal(value, torch.full_like(value, 3.0 * (name == "mean_products"))), name
        assert not error.any(), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("p", [10, 80])
def test_samples_on_a_gpu(p: int) -> None:
    x, labels = mixture(p, 3.0).sample(120, seed=0)
    wanted, found = estimate(x, labels), estimate(x.cuda(), labels.cuda())
    for name in NAMES:
        torch.testing.assert_close(getattr(found, name).value, getattr(wanted, name).value)
        torch.testing.assert_close(getattr(found, name).error, getattr(wanted, name).error)
    fit = GaussianMixture.fit(x.cuda(), labels.cuda(), covariance="low-rank", rank=2)
    torch.testing.assert_close(fit.means[0], math.sqrt(p) * x[labels == 0].mean(0))


def test_fit() -> None:
    truth = mixture(10, 3.0)
    x, labels = truth.sample(90, seed=0)
    classes = np.array(["b", "a"])[labels.numpy()]
    groups = [math.sqrt(10) * x[classes == name] for name in ("a", "b")]
    wanted = estimate(x, classes)
    fits = {
        form: GaussianMixture.fit(x, classes, covariance=form)
        for form in ("scalar", "diagonal", "full", "low-rank")
    }
    for fit in fits.values():
        assert fit.classes == ("a", "b")
        assert fit.proportions.tolist() == pytest.approx([2 / 3, 1 / 3])
        torch.testing.assert_close(fit.means, torch.stack([g.mean(0) for g in groups]))
        torch.testing.assert_close(fit.trace_products, wanted.trace_products.value)
        assert fit.input_norm == pytest.approx(float(wanted.input_norm.value))
    for a, group in enumerate(groups):
        matrix = group.T.cov()
        scalar, diagonal, full, low_rank = (fit.covariances[a] for fit in fits.values())
        assert isinstance(scalar, ScalarCovariance)
        assert scalar.variance == pytest.approx(float(matrix.trace()) / 10)
        assert isinstance(diagonal, DiagonalCovariance)
        torch.testing.assert_close(diagonal.values, matrix.diagonal())
        assert isinstance(full, FullCovariance)
        torch.testing.assert_close(full.matrix, matrix)
        assert isinstance(low_rank, LowRankCovariance)
        torch.testing.assert_close(low_rank.dense(), matrix)
        some = GaussianMixture.fit(x, classes, covariance="low-rank", rank=2).covariances[a]
        torch.testing.assert_close(some.variances(), matrix.diagonal())
        values, vectors = torch.linalg.eigh(matrix)
        kept = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
        hollow = 1 - torch.eye(10, dtype=torch.float64)
        torch.testing.assert_close(some.dense() * hollow, kept * hollow)


def test_fits_of_few_samples_in_many_dimensions() -> None:
    x, labels = mixture(300).sample(30, seed=0)
    for form in ("full", "low-rank"):
        fit = GaussianMixture.fit(x, labels, covariance=form)
        again, _ = fit.sample(30, seed=1)
        span = torch.linalg.lstsq(x.T, again.T).solution
        assert (x.T @ span - again.T).abs().max() < 1e-6  # in the span of the samples


X, LABELS = np.zeros((12, 3)), [0] * 6 + [1] * 6


@pytest.mark.parametrize(
    ("x", "labels", "error", "message"),
    [
        (X, [0] * 4 + [1] * 8, ValueError, "at least 5 samples, got 4 of class 0"),
        (X, ["one"] + ["many"] * 11, ValueError, "at least 5 samples, got 1 of class 'one'"),
        (X, LABELS[1:], ValueError, "as many as samples, got 11 for 12 samples"),
        (X[0], LABELS, ValueError, r"x must have shape \(samples, dimension\), got \(3,\)"),
        (X[None], LABELS, ValueError, r"x must have shape \(samples, dimension\)"),
        (X + np.nan, LABELS, ValueError, "x must be finite"),
        (X[:0], [], ValueError, "x must not be empty"),
        (torch.zeros(12, 3).long(), LABELS, TypeError, "x must be a floating-point tensor"),
        ("x", LABELS, TypeError, "x must be a floating-point tensor or a number, got str"),
        (X + 1j, LABELS, TypeError, "x must hold real numbers, got dtype complex128"),
        (X, [0.5] * 12, TypeError, "labels must be integers or strings, got dtype float64"),
        (X, [True] * 12, TypeError, "labels must be integers or strings, got dtype bool"),
        (X, ["a", *LABELS[1:]], TypeError, "integers or strings, not both, got 0"),
        (X, [None] * 12, TypeError, "labels must be integers or strings, got dtype object"),
        (
            X,
            np.zeros((12, 1), int),
            ValueError,
            r"labels must have shape \(samples,\), got \(12, 1",
        ),
    ],
)
def test_bad_data(x: object, labels: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        estimate(x, labels)
    with pytest.raises(error, match=message):
        GaussianMixture.fit(x, labels, covariance="scalar")


def test_bad_options_of_fit() -> None:
    with pytest.raises(ValueError, match=r"covariance must be one of 'scalar', .* got 'round'"):
        GaussianMixture.fit(X, LABELS, covariance="round")
    with pytest.raises(ValueError, match=r"rank is for covariance='low-rank', got .*'full'"):
        GaussianMixture.fit(X, LABELS, covariance="full", rank=2)
    with pytest.raises(ValueError, match=r"rank must be <= 3, the smaller .*, got 4"):
        GaussianMixture.fit(X, LABELS, covariance="low-rank", rank=4)
    with pytest.raises(ValueError, match="rank must be >= 1"):
        GaussianMixture.fit(X, LABELS, covariance="low-rank", rank=0)


def test_samples_too_large_for_their_moments():
    x, labels = GaussianMixture.ling2024(20).sample(20, seed=0)
    assert bool(torch.isfinite(estimate(1e29 * x, labels).norm_excess.error).all())
    with pytest.raises(ValueError, match="x must be at most 1e"):
        estimate(1e31 * x, labels)


def test_labels_as_objects():
    x, labels = GaussianMixture.ling2024(20).sample(20, seed=0)
    names = np.array(["a", "b"], dtype=object)[labels.numpy()]
    assert estimate(x, names).classes == ("a", "b")
    names[3] = 3.0
    with pytest.raises(TypeError, match="labels must be integers or strings"):
        estimate(x, names)

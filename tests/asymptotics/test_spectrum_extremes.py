"""Mixtures at the ends of what spectra are for: scales, means, ranks, many classes, fits."""

import numpy as np
import pytest

import shoal
from shoal.asymptotics import Law

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
TANH = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)


def scaled(factor):
    """A mixture of two classes whose samples are multiplied with the root of a factor."""
    means = np.zeros((2, 60))
    means[0, 0], means[1, 8] = 6.0, 6.0
    return shoal.GaussianMixture(np.sqrt(factor) * means, [factor * 1.0, factor * 1.3])


@pytest.mark.thorough("True")
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("factor", [1e-10, 1e10])
def test_relu_scales_with_the_data(factor, center):
    # ReLU and its centered form are homogeneous, so is all that follows
    one = shoal.spectrum(RELU, scaled(1.0), n=150, center=center).ntk
    other = shoal.spectrum(RELU, scaled(factor), n=150, center=center).ntk
    assert len(one.spikes) >= 2
    for first, second in zip(one.spikes, other.spikes, strict=True):
        assert second.value == pytest.approx(factor * first.value, rel=1e-8)
        assert second.alignment == pytest.approx(first.alignment, rel=1e-6, abs=1e-10)
    strengths = [t.strength for t in one.transitions if t.edge > one.shift]
    assert [t.strength for t in other.transitions if t.edge > other.shift] == pytest.approx(
        strengths, rel=1e-7
    )


def test_saturated_activations_still_see_inner_products():
    # for large arguments Tanh is the sign, whose kernel (2/π) arcsin ρ has the slope 2/π in ρ
    ck = shoal.spectrum(TANH, shoal.GaussianMixture(np.zeros((1, 100)), 1e15), n=100).ck
    assert ck.slope * 1e15 == pytest.approx(2 / np.pi, rel=1e-3)
    assert ck.edges == pytest.approx(1 - 2 / np.pi + np.array([[0, 4]]) * 2 / np.pi, rel=1e-3)


def test_atoms_have_transitions_on_both_sides():
    cosine = shoal.DEQ(shoal.activations.Cosine(), recurrent_variance=0.2, input_variance=0.8)
    ck = shoal.spectrum(cosine, shoal.GaussianMixture(np.zeros((1, 100)), 1.0), n=200).ck
    assert sorted(t.value for t in ck.transitions if t.detached) == [s.value for s in ck.spikes]
    assert all(t.strength > 1 for t in ck.transitions)


def test_no_spike_is_lost_in_round_off():
    huge = shoal.GaussianMixture(np.full((1, 100), 1e6), 1.0)
    with (
        pytest.warns(UserWarning, match="mean of mixture has 100%"),
        pytest.raises(shoal.AccuracyError, match="1 isolated eigenvalues must lie beyond"),
    ):
        shoal.spectrum(RELU, huge, n=100)


@pytest.mark.thorough
def test_singular_covariances_that_do_not_commute():
    rng = np.random.default_rng(0)
    p, n = 40, 4000
    factors = [rng.normal(size=(p, rank)) / np.sqrt(rank) for rank in (5, 7)]
    law = Law([f @ f.T for f in factors], [n / 2, n / 2])
    assert law.atom == pytest.approx(1 - 12 / n, abs=1e-12)
    found = []
    for _ in range(20):
        x = np.hstack([f @ rng.normal(size=(f.shape[1], n // 2)) for f in factors])
        found.append(np.linalg.eigvalsh(x @ x.T / p)[-12:])
    levels = law.atom + (np.arange(12) + 0.5) / n
    assert law.quantile(levels) == pytest.approx(np.mean(found, axis=0), rel=0.02)


@pytest.mark.thorough
def test_covariances_that_miss_a_mean():
    # a mean outside the ranges: its spike is that of a fixed vector, next to the noise of C
    rng = np.random.default_rng(1)
    p, n = 60, 240
    factors = [np.vstack([np.zeros((1, 30)), rng.normal(size=(p - 1, 30))]) for _ in range(2)]
    covariances = [f @ f.T / 30 for f in factors]
    means = np.zeros((2, p))
    means[:, 0] = 5.0, -5.0
    mixture = shoal.GaussianMixture(means, covariances)
    linear = shoal.FullyConnected([shoal.activations.Identity()])
    top = shoal.spectrum(linear, mixture, n=n).ck.spikes[-1].value
    tops = []
    for seed in range(20):
        x, _ = mixture.sample(n, seed=seed)
        tops.append(float(np.linalg.eigvalsh(x.numpy().T @ x.numpy())[-1]))
    assert top == pytest.approx(np.mean(tops), rel=0.02)


def test_many_classes():
    # of full rank: the rank of X is not searched over the 2^30 sets of classes
    covariances = [1 + 0.001 * a for a in range(30)]
    ck = shoal.spectrum(RELU, shoal.GaussianMixture(np.zeros((30, 40)), covariances), n=60).ck
    assert [atom.mass for atom in ck.atoms] == pytest.approx([1 / 3])


def test_quantile_of_level_zero_is_the_lowest_edge():
    ck = shoal.spectrum(RELU, shoal.GaussianMixture(np.zeros((1, 100)), 1.0), n=50).ck
    assert ck.quantile([0.0, 1.0]) == pytest.approx(ck.edges[0], rel=1e-12)
    with pytest.raises(ValueError, match="levels must lie between 0 and 1, got some from 2 to 2"):
        ck.quantile(2.0)


def test_biased_fits_warn():
    x, labels = shoal.GaussianMixture(np.zeros((1, 100)), 1.0).sample(120, seed=0)
    fitted = shoal.GaussianMixture.fit(x, labels, covariance="full")
    with pytest.warns(UserWarning, match=r"tr C²/p = 1\.\d+, but that of the data is 1\.0"):
        wide = shoal.spectrum(RELU, fitted, n=120).ck
    simple = shoal.GaussianMixture.fit(x, labels, covariance="scalar")
    right = shoal.spectrum(RELU, simple, n=120).ck  # without a warning
    assert wide.edges.max() > 1.5 * right.edges.max()


def test_classes_of_different_norms_warn():
    with pytest.warns(UserWarning, match="squared norms of the classes of mixture vary by 50%"):
        shoal.spectrum(RELU, shoal.GaussianMixture(np.zeros((2, 50)), [1.0, 3.0]), n=50)


def test_zero_covariances():
    with pytest.raises(ValueError, match="mixture must not have covariances that are all zero"):
        shoal.spectrum(RELU, shoal.GaussianMixture(np.ones((1, 10)), 0.0), n=10)

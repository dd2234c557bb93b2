"""Limiting spectra of kernels: spikes in closed form, sampled equivalents, exact kernels."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import shoal
from shoal import GaussianMixture
from shoal.asymptotics import Spectrum, plain

Array = NDArray[np.float64]
LINEAR = shoal.FullyConnected([shoal.activations.Identity()])
RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def mixture(dimension: int, scale: float = 1.0) -> GaussianMixture:
    """Three classes with different commuting covariances and means."""
    means = np.zeros((3, dimension))
    means[[0, 1, 2], [0, 1, 2]] = np.array([4, -3, 2]) * scale
    ramp = np.linspace(0.5, 1.5, dimension)
    return GaussianMixture(means, [ramp, 1.05 * ramp[::-1].copy(), 1.1], [0.5, 0.3, 0.2])


def sampled_equivalents(
    architecture: shoal.Architecture, mix: GaussianMixture, n: int, seed: int, center: bool
) -> tuple[Array, Array]:
    """The equivalents of CK and NTK, built from samples entry by entry."""
    x, labels = mix.sample(n, seed)
    # p E[xxᵀ] in each class: what norms and squared inner products expect, the means included
    moments = [
        covariance.dense() + torch.outer(mean, mean)
        for covariance, mean in zip(mix.covariances, mix.means, strict=True)
    ]
    shares = mix.proportions.tolist()
    square = float(sum(w * s.trace() for w, s in zip(shares, moments, strict=True))) / mix.dimension
    products = np.array([[float((s * t).sum()) for s in moments] for t in moments])
    c = shoal.coefficients(architecture, input_norm=square**0.5, center=center)
    gram = (x @ x.T).numpy()
    chi = np.diag(gram) - square
    pairs = products[np.ix_(labels.numpy(), labels.numpy())] / mix.dimension**2
    kernels = []
    for diagonal, first, norms, second, offset, slope, bend in (
        (c.gamma2, c.alpha1, c.alpha2, c.alpha3, c.ck_offset, c.ck_slope, c.ck_bend),
        (c.kappa2, c.beta1, c.beta2, c.beta3, c.ntk_offset, c.ntk_slope, c.ntk_bend),
    ):
        kernel = first * gram + norms * np.outer(chi, chi) + second * pairs + offset
        kernel += slope * (chi[:, None] + chi) + bend / 2 * (chi[:, None] ** 2 + chi**2)
        kernel += (diagonal - offset - square * first) * np.eye(n)
        kernels.append(kernel)
    return kernels[0], kernels[1]


def distance(spectrum: Spectrum, eigenvalues: Array) -> float:
    """Kolmogorov and Smirnov's, from both sides of every jump, atoms allowed for."""
    n, margin = len(eigenvalues), 1e-9
    above = np.arange(1, n + 1) / n - spectrum.cdf(eigenvalues + margin)
    below = spectrum.cdf(eigenvalues - margin) - np.arange(n) / n
    return float(max(above.max(), below.max()))


@pytest.mark.parametrize("ratio", [0.5, 2.0])
@pytest.mark.parametrize("square", [0.2, 0.9, 1.5, 4.0])
def test_one_mean_against_the_closed_form(ratio: float, square: float) -> None:
    """XᵀX with X = Z + μ1ᵀ/√p: θ = ‖μ‖² n/p detaches (1 + θ)(c + θ)/θ if θ² > c."""
    p = 400
    mean = np.zeros((1, p))
    mean[0, 3] = np.sqrt(square)
    spectrum = shoal.spectrum(LINEAR, GaussianMixture(mean, 1.0), n=round(ratio * p)).ck
    theta = square * ratio
    top = spectrum.transitions[0]
    assert top.edge == pytest.approx((1 + np.sqrt(ratio)) ** 2)
    assert (top.strength > 1) == top.detached == (theta**2 > ratio)
    if theta**2 <= ratio:
        assert spectrum.spikes == ()
        return
    (spike,) = spectrum.spikes
    assert spike.value == pytest.approx((1 + theta) * (ratio + theta) / theta, rel=1e-10)
    assert spike.value == top.value
    alignment = (theta**2 - ratio) / (theta * (theta + ratio))
    assert spike.alignment == pytest.approx([alignment], rel=1e-8)


def test_the_transition_is_where_the_strength_is_one() -> None:
    p, ratio = 300, 2.0
    mean = np.zeros((1, p))
    mean[0, 0] = np.sqrt(np.sqrt(ratio) / ratio)
    top = shoal.spectrum(LINEAR, GaussianMixture(mean, 1.0), n=600).ck.transitions[0]
    assert top.strength == pytest.approx(1, abs=1e-6)


def test_the_linear_network_is_the_gram_matrix() -> None:
    mix = GaussianMixture(np.zeros((1, 50)), np.linspace(1, 2, 50))
    ck, ntk = shoal.spectrum(LINEAR, mix, n=80)
    assert (ck.slope, ck.shift) == pytest.approx((1, 0), abs=1e-12)
    assert ntk.edges == pytest.approx(2 * ck.edges)  # two layers are trained
    assert ck.atoms[0].mass == pytest.approx(3 / 8)
    assert ck.mass == pytest.approx(1, abs=1e-9)
    readout = shoal.spectrum(LINEAR, mix, n=80, trainable={"readout"}).ntk
    assert readout.edges == pytest.approx(ck.edges)


@pytest.mark.thorough("1000", "ReLU")
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n", [300, 1000])
@pytest.mark.parametrize(
    "architecture",
    [RELU, shoal.FullyConnected([shoal.activations.Cosine()])],
    ids=["ReLU", "cosine"],
)
def test_sampled_equivalents(architecture: shoal.Architecture, n: int, center: bool) -> None:
    mix = mixture(500)
    spectra = shoal.spectrum(architecture, mix, n=n, center=center)
    samples = [sampled_equivalents(architecture, mix, n, seed, center) for seed in range(4)]
    for kind, spectrum in enumerate(spectra):
        all_eigenvalues = [np.linalg.eigvalsh(kernels[kind]) for kernels in samples]
        # isolated eigenvalues and a few of the edges are all that may differ
        assert distance(spectrum, all_eigenvalues[0]) < 15 / n
        mean = np.mean(all_eigenvalues, axis=0)
        error = np.std(all_eigenvalues, axis=0, ddof=1) / np.sqrt(len(samples))
        for spike in spectrum.spikes:
            nearest = np.argmin(np.abs(mean - spike.value))
            assert abs(mean[nearest] - spike.value) < 0.02 * spike.value + 2 * error[nearest]
        # and there are no others above
        upper = spectrum.edges[-1, 1] if len(spectrum.edges) else spectrum.shift
        count = sum(spike.value > upper for spike in spectrum.spikes)
        assert mean[-count - 1] < 1.03 * upper


@pytest.mark.thorough
def test_alignment_of_sampled_eigenvectors() -> None:
    mix, n = mixture(500, 1.5), 800
    spectrum = shoal.spectrum(RELU, mix, n=n).ck
    top = spectrum.spikes[-1]
    alignments = []
    for seed in range(4):
        vector = np.linalg.eigh(sampled_equivalents(RELU, mix, n, seed, True)[0])[1][:, -1]
        labels = mix.sample(n, seed)[1].numpy()
        alignments.append([vector[labels == a].sum() ** 2 / (labels == a).sum() for a in range(3)])
    assert np.mean(alignments, axis=0) == pytest.approx(top.alignment, abs=0.03)
    assert 0 < sum(top.alignment) < 1


def test_exact_kernel() -> None:
    """The matrix of the centered DEQ itself, not its equivalent."""
    mix, n = mixture(800), 600
    spectrum = shoal.spectrum(RELU, mix, n=n).ck
    x, _ = mix.sample(n, 0)
    norm = float(x.square().sum(1).mean().sqrt())
    eigenvalues = plain.sampled_eigenvalues(RELU, mix, n=n, norm=norm)[0].numpy()
    assert distance(spectrum, eigenvalues) < 15 / n
    assert eigenvalues[-1] == pytest.approx(spectrum.spikes[-1].value, rel=0.05)


def test_covariances_without_common_eigenvectors_are_refused() -> None:
    full = np.array([[1.0, 0.5], [0.5, 1.0]])
    mix = GaussianMixture(np.zeros((2, 2)), [full, [1.0, 2.0]])
    with pytest.raises(ValueError, match="covariances must have common eigenvectors"):
        shoal.spectrum(LINEAR, mix, n=10)


def test_points_in_points_out() -> None:
    spectrum = shoal.spectrum(LINEAR, GaussianMixture(np.zeros((1, 40)), 1.0), n=20).ck
    grid = np.linspace(0, 3, 12).reshape(3, 4)
    tensor = spectrum.density(torch.tensor(grid, dtype=torch.float32))
    assert tensor.dtype == torch.float32
    assert tensor.numpy() == pytest.approx(spectrum.density(grid), rel=1e-5)
    lower, upper = spectrum.edges[0]
    assert spectrum.density([lower, upper]).tolist() == [0, 0]
    assert spectrum.cdf([lower, upper]) == pytest.approx([0, 1], abs=1e-13)
    middle = spectrum.quantile(np.array([0.5]))
    assert spectrum.cdf(middle) == pytest.approx([0.5])
    z = 1 + 0.5j
    eigenvalues = spectrum.quantile((np.arange(4000) + 0.5) / 4000)
    assert complex(spectrum.stieltjes(z)) == pytest.approx(np.mean(1 / (eigenvalues - z)), rel=1e-5)


def test_representation() -> None:
    spectrum = shoal.spectrum(LINEAR, GaussianMixture(np.eye(1, 40), 1.0), n=80).ck
    assert repr(spectrum).splitlines()[1] == "  bulk    [0.171573, 5.82843] with mass 0.5"
    assert "atom" in repr(spectrum)
    assert "spike   6" in repr(spectrum)


def test_bad_input() -> None:
    mix = GaussianMixture(np.zeros((1, 40)), 1.0)
    with pytest.raises(TypeError, match="mixture must be a GaussianMixture"):
        shoal.spectrum(LINEAR, np.zeros((1, 40)), n=10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n must be >= 1"):
        shoal.spectrum(LINEAR, mix, n=0)
    with pytest.raises(TypeError, match="n must be an integer"):
        shoal.spectrum(LINEAR, mix, n=1.5)  # type: ignore[arg-type]
    spectrum = shoal.spectrum(LINEAR, mix, n=10).ck
    with pytest.raises(ValueError, match="grid must be finite"):
        spectrum.density([np.nan])
    with pytest.raises(TypeError, match="grid must be real numbers"):
        spectrum.cdf("x")
    with pytest.raises(ValueError, match="levels must lie between"):
        spectrum.quantile([1.5])
    with pytest.raises(ValueError, match="off the real axis"):
        spectrum.stieltjes(1.0)


# Mixtures at the ends of what spectra are for

TANH = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)


def scaled(factor: float) -> GaussianMixture:
    """A mixture of two classes whose samples are multiplied with the root of a factor."""
    means = np.zeros((2, 60))
    means[0, 0], means[1, 8] = 6.0, 6.0
    return GaussianMixture(np.sqrt(factor) * means, [factor * 1.0, factor * 1.3])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("factor", [1e-10, 1e10])
def test_relu_scales_with_the_data(factor: float, center: bool) -> None:
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


def test_saturated_activations_still_see_inner_products() -> None:
    # for large arguments Tanh is the sign, whose kernel (2/π) arcsin ρ has the slope 2/π in ρ
    ck = shoal.spectrum(TANH, GaussianMixture(np.zeros((1, 100)), 1e15), n=100).ck
    assert ck.slope * 1e15 == pytest.approx(2 / np.pi, rel=1e-3)
    assert ck.edges == pytest.approx(1 - 2 / np.pi + np.array([[0, 4]]) * 2 / np.pi, rel=1e-3)


def test_atoms_have_transitions_on_both_sides() -> None:
    cosine = shoal.DEQ(shoal.activations.Cosine(), recurrent_variance=0.2, input_variance=0.8)
    ck = shoal.spectrum(cosine, GaussianMixture(np.zeros((1, 100)), 1.0), n=200).ck
    assert sorted(t.value for t in ck.transitions if t.detached) == [s.value for s in ck.spikes]
    assert all(t.strength > 1 for t in ck.transitions)


def test_no_spike_is_lost_in_round_off() -> None:
    huge = GaussianMixture(np.full((1, 100), 1e6), 1.0)
    with (
        pytest.warns(UserWarning, match="mean of mixture has 100%"),
        pytest.raises(shoal.AccuracyError, match="1 isolated eigenvalues must lie beyond"),
    ):
        shoal.spectrum(RELU, huge, n=100)


def test_covariances_that_miss_a_mean() -> None:
    # a mean outside the range: its spike is that of a fixed vector, next to the noise of C
    rng = np.random.default_rng(1)
    p, n = 60, 240
    factor = np.vstack([np.zeros((1, 30)), rng.normal(size=(p - 1, 30))])
    means = np.zeros((2, p))
    means[:, 0] = 5.0, -5.0
    mix = GaussianMixture(means, factor @ factor.T / 30)
    top = shoal.spectrum(LINEAR, mix, n=n).ck.spikes[-1].value
    tops = []
    for seed in range(20):
        x, _ = mix.sample(n, seed=seed)
        tops.append(float(np.linalg.eigvalsh(x.numpy().T @ x.numpy())[-1]))
    assert top == pytest.approx(np.mean(tops), rel=0.02)


def test_many_classes() -> None:
    # of full rank: the rank of X is not searched over the 2^30 sets of classes
    covariances = [1 + 0.001 * a for a in range(30)]
    ck = shoal.spectrum(RELU, GaussianMixture(np.zeros((30, 40)), covariances), n=60).ck
    assert [atom.mass for atom in ck.atoms] == pytest.approx([1 / 3])


def test_quantile_of_level_zero_is_the_lowest_edge() -> None:
    ck = shoal.spectrum(RELU, GaussianMixture(np.zeros((1, 100)), 1.0), n=50).ck
    assert ck.quantile([0.0, 1.0]) == pytest.approx(ck.edges[0], rel=1e-12)
    with pytest.raises(ValueError, match="levels must lie between 0 and 1, got some from 2 to 2"):
        ck.quantile(2.0)


def test_biased_fits_warn() -> None:
    x, labels = GaussianMixture(np.zeros((1, 100)), 1.0).sample(120, seed=0)
    fitted = GaussianMixture.fit(x, labels, covariance="full")
    with pytest.warns(UserWarning, match=r"tr C²/p = 1\.\d+, but the data have 1\.0"):
        wide = shoal.spectrum(RELU, fitted, n=120).ck
    simple = GaussianMixture.fit(x, labels, covariance="scalar")
    right = shoal.spectrum(RELU, simple, n=120).ck  # without a warning
    assert wide.edges.max() > 1.5 * right.edges.max()


def test_classes_of_different_norms_warn() -> None:
    with pytest.warns(UserWarning, match="squared norms of the classes of mixture vary by 50%"):
        shoal.spectrum(RELU, GaussianMixture(np.zeros((2, 50)), [1.0, 3.0]), n=50)


def test_zero_covariances() -> None:
    with pytest.raises(ValueError, match="mixture must not have covariances that are all zero"):
        shoal.spectrum(RELU, GaussianMixture(np.ones((1, 10)), 0.0), n=10)

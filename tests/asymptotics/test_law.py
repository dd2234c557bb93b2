"""The limiting law against closed forms, moments, polynomials and random matrices."""

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.asymptotics import Law

Array = NDArray[np.float64]
RATIOS = [0.05, 0.5, 0.9, 1.0, 1.1, 2.0, 20.0]  # n/p


def law_of(*covariances: Array, counts: list[float]) -> Law:
    return Law(covariances, np.array(counts, float))


def mass(law: Law) -> float:
    """The density's, by quadrature in the angle between the edges of each bulk."""
    total, angles = law.atom, (np.arange(2000) + 0.5) * np.pi / 2000
    for lower, upper in law.support:
        x = lower + (upper - lower) * np.sin(angles / 2) ** 2
        if 0 < 8 * lower < upper:  # in the logarithm
            x = lower * (upper / lower) ** (np.sin(angles / 2) ** 2)
            width = x * np.log(upper / lower)
        else:
            width = np.full_like(x, upper - lower)
        total += (law.density(x) * width * np.sin(angles) / 2).sum() * np.pi / 2000
    return float(total)


@pytest.mark.parametrize("ratio", RATIOS)
def test_marchenko_pastur(ratio: float) -> None:
    law = law_of(np.full(200, 1.7), counts=[200 * ratio])
    lower, upper = 1.7 * (1 - np.sqrt(ratio)) ** 2, 1.7 * (1 + np.sqrt(ratio)) ** 2
    assert law.support == pytest.approx(np.array([[lower, upper]]), rel=1e-12, abs=1e-14)
    assert law.atom == pytest.approx(max(0.0, 1 - 1 / ratio), abs=1e-14)
    x = np.linspace(lower, upper, 202)[1:-1]
    expected = np.sqrt((upper - x) * (x - lower)) / (2 * np.pi * 1.7 * ratio * x)
    assert law.density(x) == pytest.approx(expected, rel=1e-10)
    assert mass(law) == pytest.approx(1, abs=1e-6)
    assert law.density(np.array([lower - 0.1, upper + 0.1])).tolist() == [0, 0]


@pytest.mark.parametrize("ratio", RATIOS)
def test_marchenko_pastur_stieltjes(ratio: float) -> None:
    law = law_of(np.ones(50), counts=[50 * ratio])
    z = np.array([0.3 + 0.2j, 1.0 + 1e-3j, -2 + 1j, 0.7 - 0.4j])
    # with δ = m of XXᵀ: z δ² + (z + 1 − c)δ + 1 = 0, and u = −1/(z(1 + δ))
    for point, value in zip(z, law.stieltjes(z), strict=True):
        roots = np.roots([point, point + 1 - ratio, 1])
        candidates = -1 / (point * (1 + roots))
        assert abs(candidates - value).min() < 1e-12
        assert value.imag * point.imag > 0


@pytest.mark.parametrize("ratio", [0.3, 2.0, 3.0, 9.0, 40.0])
def test_two_atoms_against_the_cubic(ratio: float) -> None:
    """C has eigenvalues 1 and 4, half each: x(v)(v − c)(v − 4c) = … is cubic in v."""
    law = law_of(np.repeat([1.0, 4.0], 60), counts=[120 * ratio])
    c = ratio
    poly = np.polynomial.Polynomial
    first, second, v = poly([-c, 1]), poly([-4 * c, 1]), poly([0, 1])
    free = v * first * second + 0.5 * v * second + 2.0 * v * first  # minus x·first·second
    x = np.linspace(0, 1.2 * law.support[-1, 1], 400)[1:]
    expected = np.array(
        [max((-1 / r).imag for r in (free - t * first * second).roots()) / np.pi for t in x]
    )
    assert law.density(x) == pytest.approx(np.maximum(expected, 0), abs=1e-7)
    positive = expected > 1e-9
    assert len(law.support) == np.count_nonzero(positive[1:] & ~positive[:-1]) + positive[0]
    # the edges are the zeros of the discriminant of the cubic in v, as a polynomial in x
    edges = law.support.reshape(-1)
    nodes = np.linspace(0.5 * edges[0], 1.1 * edges[-1], 5)
    values = [_discriminant((free - t * first * second).coef) for t in nodes]
    roots = np.roots(np.polyfit(nodes, values, 4))
    for edge in edges:
        assert abs(roots - edge).min() < 1e-6 * edge


def _discriminant(coefficients: Array) -> float:
    d, c, b, a = coefficients
    return float(18 * a * b * c * d - 4 * b**3 * d + b**2 * c**2 - 4 * a * c**3 - 27 * (a * d) ** 2)


def rotated(values: Array, seed: int) -> Array:
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values),) * 2))[0]
    return np.asarray((basis * values) @ basis.T)


@pytest.mark.parametrize("ratio", [0.4, 2.5])
def test_random_matrices(ratio: float) -> None:
    p = 500
    rng = np.random.default_rng(0)
    values = [np.linspace(0.2, 2, p), np.linspace(1, 3, p)[::-1] ** 2, np.full(p, 0.5)]
    counts = [round(share * ratio * p) for share in (0.5, 0.3, 0.2)]
    law = law_of(*values, counts=[float(count) for count in counts])
    distances = []
    for _ in range(3):
        columns = []
        for k, count in enumerate(counts):
            root = np.sqrt(values[k])[:, None]
            columns.append(root * rng.standard_normal((p, count)) / np.sqrt(p))
        x = np.hstack(columns)
        eigenvalues = np.sort(np.linalg.eigvalsh(x.T @ x if sum(counts) <= p else x @ x.T))
        zeros = sum(counts) - len(eigenvalues)
        empirical = (zeros + np.arange(1, len(eigenvalues) + 1)) / sum(counts)
        distances.append(np.abs(empirical - law.cdf(eigenvalues)).max())
    assert max(distances) < 4 / sum(counts)  # rigid eigenvalues: far below 1/√n


def test_cdf_density_and_quantile_belong_together() -> None:
    law = law_of(np.repeat([1.0, 9.0, 0.0], [40, 20, 20]), counts=[300.0])
    assert law.atom == pytest.approx(1 - 60 / 300)
    x = np.linspace(law.support[0, 0], law.support[-1, 1], 2001)[1:-1]
    step = 1e-6
    slope = (law.cdf(x + step) - law.cdf(x - step)) / (2 * step)
    assert slope == pytest.approx(law.density(x), abs=1e-5)
    levels = np.linspace(0.81, 0.99, 19)
    assert law.cdf(law.quantile(levels)) == pytest.approx(levels, abs=1e-10)
    assert law.quantile(np.array([0.0, 0.5])).tolist() == [0, 0]
    # exact separation: the masses of bulks are those of the eigenvalues of C
    assert np.diff(law.cdf(law.support), axis=1) == pytest.approx(np.array([[40], [20]]) / 300)


@pytest.mark.thorough("20.0")
@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 2.0, 20.0])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(1.0, 101.0),
        np.geomspace(1e-2, 1e2, 300),
        np.repeat([0.0, 1.0, 1e4], 40),
        1 + 1e-3 * np.arange(100.0),
    ],
    ids=["100 atoms", "300 over four decades", "zeros", "close"],
)
def test_one_covariance_has_mass_one(values: Array, ratio: float) -> None:
    law = law_of(values, counts=[ratio * len(values)])
    assert mass(law) == pytest.approx(1, abs=1e-4)
    assert (np.diff(law.support.reshape(-1)) > 0).all()
    # exact separation: whole numbers of eigenvalues
    shares = np.diff(law.cdf(law.support), axis=1)[:, 0] * ratio * len(values)
    hard = int(law.support[0, 0] == 0)  # its mass is not one of separation
    assert shares[hard:] == pytest.approx(np.round(shares[hard:]), abs=1e-4)


@pytest.mark.thorough("20.0")
@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 2.0, 20.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_several_covariances_have_mass_one(classes: int, ratio: float) -> None:
    rng = np.random.default_rng(classes)
    covariances = [10 ** rng.uniform(-1.5, 1.5, 40) for _ in range(classes)]
    covariances[0][:5] = 0
    counts = rng.dirichlet(np.ones(classes)) * ratio * 40
    law = law_of(*covariances, counts=list(counts))
    assert mass(law) == pytest.approx(1, abs=1e-4)
    assert len(law.support) >= 1


def test_narrow_gap_and_tiny_bulk_are_found() -> None:
    # a hundredth of the directions far above, and the ratio at which the gap is about to close
    few = law_of(np.repeat([1.0, 50.0], [990, 10]), counts=[1000.0])
    assert len(few.support) == 2
    assert np.diff(few.cdf(few.support), axis=1)[1] == pytest.approx(0.01, abs=1e-8)
    # two classes whose common law is that of one
    same = law_of(np.repeat([1.0, 50.0], [990, 10]), 1.000001 * np.repeat([1.0, 50.0], [990, 10]),
                  counts=[400.0, 600.0])  # fmt: skip
    assert same.support == pytest.approx(few.support, rel=1e-5)
    gaps = []
    for value in np.linspace(1.5, 4.0, 6):
        pair = [np.repeat([1.0, value], 20), 1.0000001 * np.repeat([1.0, value], 20)]
        single = law_of(pair[0], counts=[200.0])
        double = law_of(*pair, counts=[80.0, 120.0])
        assert double.support == pytest.approx(single.support, rel=1e-5)
        gaps.append(len(single.support))
    assert set(gaps) == {1, 2}


def test_no_variance_is_an_atom() -> None:
    law = law_of(np.zeros(10), counts=[20.0])
    assert (law.atom, len(law.support)) == (1.0, 0)


@pytest.mark.parametrize(
    ("covariances", "counts", "message"),
    [
        ([], [], "covariances must"),
        ([np.ones(3)], [1.0, 2.0], "counts must"),
        ([np.ones(3)], [0.0], "counts must"),
        ([np.ones(3)], [np.inf], "counts must"),
        ([np.ones(3), np.ones(4)], [1.0, 2.0], "covariances must"),
        ([np.ones((3, 2))], [1.0], "covariances must"),
        ([np.array([1.0, np.nan])], [1.0], "covariances must"),
        ([np.array([1.0, -1.0])], [1.0], "covariances must"),
        ([np.array([[1.0, 2.0], [2.0, 1.0]])], [1.0], "covariances must"),
        ([np.array([[1.0, 0.5], [0.0, 1.0]])], [1.0], "covariances must be symmetric"),
        ([np.ones(3), np.zeros(3)], [1.0, 2.0], "covariances must overlap"),
        ([np.array([1.0, 0.0]), np.array([0.0, 1.0])], [1.0, 2.0], "covariances must overlap"),
        ([rotated(np.arange(1.0, 4.0), 0), np.arange(1.0, 4.0)], [1.0, 2.0], "common eigenvectors"),
    ],
)
def test_bad_input(covariances: list[Array], counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        law_of(*covariances, counts=counts)

"""Equivalents against exact kernels: errors that shrink as the theorems say."""

import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from shoal.asymptotics.plain import equivalent_entries

ERF = shoal.DEQ(shoal.activations.Erf(), recurrent_variance=0.2, input_variance=0.8)
RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def mixture(p: int) -> shoal.GaussianMixture:
    """Two classes that differ in mean, in trace and in shape."""
    generator = torch.Generator().manual_seed(1)
    means = torch.zeros(2, p, dtype=torch.float64)
    means[0, 0] = means[1, 1] = 2.0
    columns = torch.randn(p, p // 4, dtype=torch.float64, generator=generator)
    shape = 0.3 * 4 / p * columns @ columns.T + (0.7 + 1 / math.sqrt(p)) * torch.eye(p)
    return shoal.GaussianMixture(means, [1.0, shape], [0.4, 0.6])


def errors(architecture: shoal.Architecture, p: int, **options: object) -> list[float]:
    x, labels = mixture(p).sample(4 * p // 5, seed=p)
    if options.pop("exact", False):
        options["mixture"] = mixture(p)
    eq = shoal.equivalent(architecture, x, labels, **options)
    exact = shoal.kernel(eq.coefficients.architecture, x, trainable=options.get("trainable"))
    return [
        float(torch.linalg.matrix_norm(op.to_dense() - k, 2) / torch.linalg.matrix_norm(k, 2))
        for op, k in zip((eq.ck, eq.ntk), exact, strict=True)
    ]


@pytest.mark.thorough("architecture6", "architecture1-", "architecture10")
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        (ERF, {}),
        (RELU, {}),
        (ERF, {"trainable": {"readout", "recurrent"}}),
        (RELU, {"center": False}),
        (shoal.ResNet(shoal.activations.Softplus(), 3), {}),
        (shoal.ImplicitNetwork(gamma=0.5), {"center": False}),
    ],
)
def test_the_error_shrinks_as_the_theorem_says(
    architecture: shoal.Architecture, options: dict[str, object]
) -> None:
    small, large = (errors(architecture, p, **options) for p in (160, 640))
    for before, after in zip(small, large, strict=True):
        assert after < 0.08
        assert after < before / 4**0.4  # n^(-1/2) is a half, for four times as many


def test_what_the_classes_change_is_of_low_rank_and_needed() -> None:
    # with labels, the squares' part follows the classes: the error must not grow
    x, labels = mixture(300).sample(240, seed=0)
    with_labels, without = shoal.equivalent(RELU, x, labels), shoal.equivalent(RELU, x)
    assert with_labels.error()[0] < without.error()[0]
    assert torch.linalg.matrix_rank(with_labels.ck.to_dense() - without.ck.to_dense()) <= 2


def test_the_measured_error_is_that_of_the_matrices() -> None:
    x, labels = mixture(160).sample(128, seed=0)
    eq = shoal.equivalent(ERF, x, labels)
    k = shoal.kernel(eq.coefficients.architecture, x)
    for found, op, exact in zip(eq.error(), (eq.ck, eq.ntk), k, strict=True):
        size = torch.linalg.matrix_norm(exact, 2)
        expected = torch.linalg.matrix_norm(op.to_dense() - exact, 2) / size
        assert found == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("center", [True, False])
def test_entries_are_those_of_the_formula(center: bool) -> None:
    x, labels = mixture(200).sample(30, seed=0)
    eq = shoal.equivalent(RELU, x, labels, center=center)
    c = eq.coefficients
    for operator, k in ((eq.ck, c.ck), (eq.ntk, c.ntk)):
        wanted = equivalent_entries(k, c.input_norm, x, labels.tolist())
        torch.testing.assert_close(operator.to_dense(), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("center", [True, False])
def test_new_inputs(center: bool) -> None:
    x, labels = mixture(300).sample(260, seed=0)
    old, new = slice(0, 260, 2), slice(1, 260, 2)
    eq = shoal.equivalent(RELU, x[old], labels[old], center=center)
    exact = shoal.kernel(eq.coefficients.architecture, x[new], x[old])
    for known in (None, labels[new]):
        for op, k in zip(eq.cross(x[new], known), exact, strict=True):
            size = torch.linalg.matrix_norm(k, 2)
            assert torch.linalg.matrix_norm(op.to_dense() - k, 2) < 0.05 * size
    # old inputs with their labels: the matrix itself, off the diagonal
    again = eq.cross(x[old], labels[old]).ck.to_dense()
    same = eq.ck.to_dense()
    torch.testing.assert_close(again.fill_diagonal_(0.0), same.fill_diagonal_(0.0))


def test_kernel_ridge_regression_predicts_as_the_exact_kernel_does() -> None:
    x, labels = mixture(400).sample(600, seed=0)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    x, y = x[order], (2.0 * labels[order] - 1.0).double()
    eq = shoal.equivalent(RELU, x[:500])
    exact = shoal.kernel(eq.coefficients.architecture, x)
    weights = eq.ck.solve(y[:500], shift=0.1)
    found = eq.cross(x[500:]).ck @ weights
    matrix = exact.ck[:500, :500] + 0.1 * torch.eye(500, dtype=torch.float64)
    expected = exact.ck[500:, :500] @ torch.linalg.solve(matrix, y[:500])
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_arrays_dtypes_and_values() -> None:
    x, labels = mixture(60).sample(80, seed=0)
    eq = shoal.equivalent(ERF, x, labels)
    arrays = shoal.equivalent(ERF, x.numpy(), labels.numpy())
    assert isinstance(arrays.ck.to_dense(), np.ndarray)
    assert isinstance(arrays.cross(x.numpy()).ntk.to_dense(), np.ndarray)
    np.testing.assert_array_equal(arrays.ntk.eigvalsh(), eq.ntk.eigvalsh().numpy())
    names = [("left", "right")[int(a)] for a in labels]
    torch.testing.assert_close(shoal.equivalent(ERF, x, names).ck.to_dense(), eq.ck.to_dense())
    single = shoal.equivalent(ERF, x.float(), labels).ck.to_dense()
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), eq.ck.to_dense(), rtol=1e-5, atol=1e-6)
    copy = pickle.loads(pickle.dumps(eq))
    torch.testing.assert_close(copy.ck.to_dense(), eq.ck.to_dense())


def test_what_does_not_fit_the_theory_is_said() -> None:
    x, labels = mixture(100).sample(80, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shoal.equivalent(ERF, x, labels)
    scales = torch.linspace(0.5, 2.0, 80, dtype=torch.float64)[:, None]
    with pytest.warns(UserWarning, match=r"squared norms of x vary by \d+%"):
        shoal.equivalent(ERF, x * scales, labels)
    with pytest.warns(UserWarning, match=r"mean of x has \d+%"):
        shoal.equivalent(ERF, x + 0.2, labels)
    with pytest.warns(UserWarning, match="norms of x are expected to be about 2, but their root"):
        shoal.equivalent(ERF, x, labels, input_norm=2.0)
    with pytest.warns(
        UserWarning, match=r"expected to be about 1\.0\d*, but their root mean square"
    ):
        shoal.equivalent(ERF, 1.2 * x, labels, mixture=mixture(100))


def data() -> tuple[Tensor, Tensor]:
    return mixture(60).sample(50, seed=0)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"labels": torch.zeros(49, dtype=torch.int64)}, ValueError, "got 49 for 50 samples"),
        ({"labels": torch.zeros(50)}, TypeError, "labels must be integers or strings"),
        ({"labels": torch.arange(50)}, ValueError, "at least 2 samples, got 1 of class 0"),
        ({"x": torch.ones(1, 60).double(), "labels": None}, ValueError, "2 samples, got 1 of"),
        ({"x": torch.zeros(50, 60).half()}, TypeError, "x must be float32 or float64"),
        ({"input_norm": -1.0}, ValueError, "input_norm must be > 0"),
        ({"trainable": {"all"}}, ValueError, "trainable"),
        ({"mixture": 3}, TypeError, "mixture must be a GaussianMixture, got int"),
        ({"mixture": mixture(70)}, ValueError, "dimension of x, 60, got 70"),
        ({"labels": None, "mixture": mixture(60)}, ValueError, "labels are needed"),
        ({"x": torch.zeros(50, 60).double()}, ValueError, "x must not be zero"),
        ({"x": torch.ones(50).double()}, ValueError, "shape"),
        ({"x": torch.full((50, 60), torch.nan).double()}, ValueError, "finite"),
    ],
)
def test_bad_input(change: dict[str, object], error: type[Exception], text: str) -> None:
    x, labels = data()
    arguments = {"x": x, "labels": labels, **change}
    with pytest.raises(error, match=text):
        shoal.equivalent(ERF, **arguments)


def test_bad_input_to_methods() -> None:
    x, labels = data()
    eq = shoal.equivalent(ERF, x, labels)
    with pytest.raises(ValueError, match=r"shape \(inputs, 60\)"):
        eq.cross(x[:, :5])
    with pytest.raises(ValueError, match="got 50 for 3 samples"):
        eq.cross(x[:3], labels)
    with pytest.raises(ValueError, match="count must be >= 1"):
        eq.error(0)
    with pytest.raises(ValueError, match=r"^x must be finite"):
        eq.cross(x * float("nan"))
    with pytest.raises(ValueError, match=r"^other must have 50 rows"):
        eq.ck.solve(torch.ones(49))
    with pytest.raises(TypeError, match="seed must be an integer"):
        eq.error(10, seed="0")


def test_one_sample_of_a_mixture() -> None:
    mix = shoal.GaussianMixture(np.zeros((1, 2000)), 1.0)
    x, _ = mix.sample(1, seed=0)
    eq = shoal.equivalent(RELU, x, mixture=mix)
    exact = shoal.kernel(eq.coefficients.architecture, x).ck
    # the squared norm of one sample has a relative deviation of √(2/p)
    assert float(eq.ck.to_dense()) == pytest.approx(float(exact), rel=3 * math.sqrt(2 / 2000))


def test_duplicates_have_an_honest_answer() -> None:
    x, labels = mixture(60).sample(50, seed=0)
    twice, both = torch.cat([x, x]), torch.cat([labels, labels])
    eq = shoal.equivalent(ERF, twice, both)
    torch.testing.assert_close(
        eq.ck.eigvalsh(), torch.linalg.eigvalsh(eq.ck.to_dense()), rtol=0, atol=1e-11
    )
    assert eq.error().ck > 0.05  # kernels of copies are not those of independent samples


# Norms at the ends of their range


@pytest.mark.parametrize("input_norm", [1e-6, 1e8])
def test_coefficients_of_relu_scale(input_norm: float) -> None:
    one = shoal.coefficients(RELU, input_norm=1.0)
    other = shoal.coefficients(RELU, input_norm=input_norm)
    powers = {"gamma2": 2, "kappa2": 2, "alpha1": 0, "alpha4": 0, "beta1": 0}
    powers |= dict.fromkeys(("alpha2", "alpha3", "beta2", "beta3"), -2)
    for name, power in powers.items():
        expected = getattr(one, name) * input_norm**power
        assert getattr(other, name) == pytest.approx(expected, rel=1e-9), name


@pytest.mark.parametrize("input_norm", [1e-300, 1e-8, 1e9])
@pytest.mark.parametrize("function", [shoal.centered, shoal.coefficients])
def test_norms_out_of_range(function, input_norm: float) -> None:
    with pytest.raises(ValueError, match=r"input_norm must be [<>]= 1e"):
        function(RELU, input_norm=input_norm)


def test_layers_whose_arguments_vanish() -> None:
    deep = shoal.FullyConnected([shoal.activations.ReLU()] * 45)
    with pytest.raises(shoal.AccuracyError, match=r"activations\[\d+\] cannot be centered"):
        shoal.coefficients(deep, input_norm=1.0)

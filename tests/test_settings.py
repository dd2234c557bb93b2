"""Results do not depend on what the caller has set in PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor

import shoal

DEQ = shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8)
RELU = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)


class Bump(shoal.Activation):
    """One that only autograd differentiates."""

    def function(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + 0.1 * torch.sin(3 * x)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def one_by_one() -> Iterator[None]:
    """TF32 as set for one back end, of which the older functions of PyTorch refuse to speak."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


# a default device that any tensor without one would notice, on a machine without a GPU too
SETTINGS: list[Callable[[], AbstractContextManager[object]]] = [
    torch.inference_mode,
    torch.no_grad,
    partial(torch.autocast, "cpu", torch.bfloat16),
    partial(torch.device, "meta"),
    partial(default_dtype, torch.float16),
    partial(float32_products, "medium"),
    one_by_one,
]


def normals(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").div_(shape[-1] ** 0.5)


def data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = normals(count, 12, seed=seed)
    return x, x[:, 0].sign() * x[:, 1].cos()


def kernels(architecture: shoal.Architecture, dtype: torch.dtype) -> list[Tensor]:
    x = normals(6, 12, dtype=dtype)
    operator = shoal.kernel_operator(architecture, x)
    return [
        *shoal.kernel(architecture, x),
        *shoal.kernel(architecture, x, x[:2]),
        *shoal.kernel(architecture, x[:2], diag=True),
        operator.ntk @ x[:, :2],
        operator.ck.solve(x[:, 0], shift=0.1),
    ]


def high_dimension() -> list[Tensor]:
    mixture = shoal.GaussianMixture(normals(2, 400) / 10, [1.0, 1.1], [0.5, 0.5])
    x, labels = mixture.sample(50, seed=0)
    c = shoal.coefficients(RELU, input_norm=1.0)
    numbers = [c.alpha1, c.alpha2, c.beta3, c.gamma2]
    eq = shoal.equivalent(RELU, x, labels)
    rho = shoal.spectrum(RELU, mixture, n=50)
    numbers += [s.value for s in rho.ck.spikes] + rho.ntk.edges.flatten().tolist()
    numbers += list(eq.error(20))
    return [
        torch.tensor(numbers, dtype=torch.float64, device="cpu"),
        eq.ck.to_dense(),
        eq.ntk @ x[:, 0],
        eq.ck.solve(x[:, 0]),
        eq.ck.eigvalsh(),
        eq.cross(x[:3]).ntk.to_dense(),
    ]


def regression() -> list[Tensor]:
    (x, y), (new, _) = data(30), data(4, seed=1)
    fits: list[shoal.learning.KernelRegression] = [
        shoal.kernel_regression(RELU, x, y, ridge=0.1, method=method)
        for method in (
            shoal.learning.Cholesky(),
            shoal.learning.ConjugateGradients(shoal.learning.Nystrom(10)),
        )
    ]
    flow = shoal.gradient_flow(RELU, x, y, new, [0.0, 1.0])
    return [
        *(f.coefficients for f in fits),
        fits[0].predict(new),
        fits[0].variance(new),
        flow.loss,
        flow.test_mean,
        flow.test_std,
    ]


def networks() -> list[Tensor]:
    net = shoal.build(DEQ, in_features=12, width=16, dtype=torch.float64, device="cpu")
    kernels = shoal.empirical_kernel(net, normals(4, 12))
    return [*(p.detach() for p in net.parameters()), *kernels]


def gradients() -> list[Tensor]:
    """Nothing is to be seen in inference mode, and the gradient of a matrix elsewhere."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        x = normals(20, 12, dtype=torch.float32).requires_grad_()
        v = torch.tensor(0.2, dtype=torch.float64, device="cpu", requires_grad=True)
        both = shoal.kernel(RELU, x, variances={"recurrent_variance": v})
        (both.ck.sum() + both.ntk.square().sum()).backward()
        assert x.grad is not None
        assert v.grad is not None
        return [x.grad, v.grad]


CALCULATIONS: dict[str, tuple[Callable[[], list[Tensor]], float]] = {
    "kernels": (partial(kernels, DEQ, torch.float64), 1e-12),
    "kernels in single precision": (partial(kernels, RELU, torch.float32), 1e-5),
    "high dimension": (high_dimension, 1e-10),
    "regression": (regression, 1e-9),
    "networks": (networks, 1e-10),
    "gradients": (gradients, 1e-5),
}


@pytest.mark.thorough("high dimension", "regression", "single precision", "gradients")
@pytest.mark.parametrize("name", CALCULATIONS)
def test_settings_do_not_matter(name: str) -> None:
    calculate, tolerance = CALCULATIONS[name]
    expected = calculate()
    shoal.core.clear_caches()
    with ExitStack() as stack:
        for setting in SETTINGS:
            stack.enter_context(setting())
        found = calculate()
    shoal.core.clear_caches()
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        assert float((left - right).abs().max()) <= tolerance * float(right.abs().max())


def test_tensors_of_inference_mode_are_welcome() -> None:
    with torch.inference_mode():
        x = normals(20, 12)
        fit = shoal.kernel_regression(RELU, x, x[:, 0], ridge=0.1)
        found = [*shoal.kernel(RELU, x), fit.coefficients, shoal.gaussian.hermite(Bump(), 1.0, 2)]
        found += [
            shoal.kernel_operator(RELU, x).ck @ x,
            shoal.kernel_function(RELU)(1.0, 1.0, 0.5).ck,
        ]
    assert not any(result.is_inference() for result in found)
    v = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    shoal.kernel(RELU, x, variances={"recurrent_variance": v}).ck.sum().backward()
    assert v.grad is not None
    torch.testing.assert_close(shoal.kernel(RELU, x).ck, shoal.kernel(RELU, normals(20, 12)).ck)
    weight = torch.ones(20, dtype=torch.float64, requires_grad=True)
    (weight * fit.predict(x)).sum().backward()  # which autograd keeps
    torch.testing.assert_close(weight.grad, fit.predict(normals(20, 12)))


def test_a_network_of_inference_mode_can_be_trained(tmp_path) -> None:
    with torch.inference_mode():
        net = shoal.build(DEQ, in_features=12, width=16)
        shoal.save(net, tmp_path / "net")
        same = shoal.load(tmp_path / "net")
    for network in (net, same):
        network(normals(3, 12, dtype=torch.float32)).sum().backward()
        assert all(p.grad is not None for p in network.parameters())


def test_build_keeps_to_the_default_dtype_and_device() -> None:
    with torch.device("meta"), default_dtype(torch.float64):
        net = shoal.build(DEQ, in_features=12, width=16)
    assert {(p.device.type, p.dtype) for p in net.parameters()} == {("meta", torch.float64)}


def relaid(x: Tensor, layout: str) -> Tensor:
    """The same numbers, elsewhere in memory."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "strided":
        wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
        wide[..., ::2] = x
        return wide[..., ::2]
    flat = x.new_zeros(x.numel() + 1)
    flat[1:] = x.flatten()
    return flat[1:].view(x.shape)  # at an odd offset


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset"])
@pytest.mark.parametrize("batch", [(), (2, 1)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.float64, 1e-11)])
def test_layouts_do_not_matter(
    layout: str, batch: tuple[int, ...], dtype: torch.dtype, error: float
) -> None:
    x = normals(*batch, 6, 9)
    x = torch.cat([x, -x], dim=-2)  # of mean zero and one norm, as equivalents assume
    x = torch.nn.functional.normalize(x, dim=-1).to(dtype)

    def results(x: Tensor) -> list[Tensor]:
        rows = x[(0,) * len(batch)]
        fit = shoal.kernel_regression(RELU, rows, rows[:, 0], ridge=0.5)
        return [
            *shoal.kernel(RELU, x),
            *shoal.kernel(RELU, x, x[..., :2, :]),
            *shoal.kernel(RELU, x, x.flip(-2), diag=True),
            shoal.kernel_operator(RELU, rows).ntk @ rows,
            shoal.equivalent(RELU, rows).ck.to_dense(),
            fit.coefficients,
        ]

    for found, wanted in zip(results(relaid(x, layout)), results(x.double()), strict=True):
        assert found.dtype == dtype
        assert float((found.double() - wanted).abs().max()) <= error * float(wanted.abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_for_duals_alone(dtype: torch.dtype) -> None:
    x = normals(6, 3).square().to(dtype)
    with pytest.raises(TypeError, match=r"must be float32 or float64, got torch\."):
        shoal.kernel(RELU, x)
    a, b, c = (x + 0.5)[:, 0], (x + 0.5)[:, 1], 0.4 * x[:, 2]
    found = shoal.gaussian.dual(shoal.activations.Erf(), a, b, c)
    assert found.dtype == dtype
    wide = shoal.gaussian.dual(shoal.activations.Erf(), a.double(), b.double(), c.double())
    torch.testing.assert_close(found.double(), wide, rtol=1e-2, atol=1e-2)

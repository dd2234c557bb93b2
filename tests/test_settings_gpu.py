"""Results on a GPU do not depend on what the caller has set in PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import shoal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEQ = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)


@contextmanager
def tf32() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def tf32_of_one_back_end() -> Iterator[None]:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS = {
    "tf32": tf32,
    "tf32 of one back end": tf32_of_one_back_end,
    "autocast": lambda: torch.autocast("cuda", torch.float16),
    "default device": default_device,
    "device": lambda: torch.device("cuda"),
    "inference mode": torch.inference_mode,
}


def inputs(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 40, generator=generator, dtype=torch.float64, device="cpu") / 40**0.5
    return x.to("cuda", dtype)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("phi", [shoal.activations.ReLU(), shoal.activations.Tanh()], ids=repr)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 3e-6)])
def test_matrices_and_operators(phi, setting, dtype, error):
    deq = shoal.DEQ(phi, 0.2, 0.8)
    x, expected = inputs(dtype), shoal.kernel(deq, inputs(torch.float64))
    with SETTINGS[setting]():
        found = shoal.kernel(deq, x)
        product = shoal.kernel_operator(deq, x).ntk @ x
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == dtype
        assert left.is_cuda
        assert float((left.double() - right).abs().max()) <= error * float(right.max())
    right = expected.ntk @ inputs(torch.float64)
    assert float((product.double() - right).abs().max()) <= 10 * error * float(right.abs().max())


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients(setting):
    """The backward pass runs in threads of PyTorch, with the settings of its own call."""
    found = []
    for chosen in (None, setting):
        x = inputs(torch.float32).requires_grad_()
        loss = shoal.kernel(DEQ, x).ntk.square().mean()
        if chosen is None or chosen == "inference mode":
            loss.backward()
        else:
            with SETTINGS[chosen]():
                loss.backward()
        found.append(x.grad)
    assert float((found[0] - found[1]).abs().max()) <= 1e-5 * float(found[0].abs().max())


@pytest.mark.parametrize("setting", SETTINGS)
def test_equivalents_and_regression(setting):
    x = inputs(torch.float32)
    y = x[:, 0].sign()

    def compute() -> list[Tensor]:
        method = shoal.learning.ConjugateGradients(shoal.learning.Nystrom(50))
        fit = shoal.kernel_regression(DEQ, x, y, ridge=0.1, method=method)
        eq = shoal.equivalent(DEQ, torch.nn.functional.normalize(x))
        flow = shoal.gradient_flow(DEQ, x, y, x[:5], [0.0, 1.0])
        return [fit.coefficients, fit.predict(x[:5]), eq.ck @ y, eq.ntk.to_dense(), flow.test_mean]

    expected = compute()
    with SETTINGS[setting]():
        found = compute()
    for left, right in zip(found, expected, strict=True):
        assert left.is_cuda
        assert float((left - right).abs().max()) <= 1e-5 * float(right.abs().max())

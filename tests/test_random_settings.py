"""Random combinations of dtypes, devices, layouts and settings give the float64 answer."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

import shoal

COUNT = 200
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ERRORS = {torch.float32: 2e-6, torch.float64: 1e-11}  # of the largest entry
DEQ = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)
NETWORK = shoal.FullyConnected([shoal.activations.Erf()])
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@dataclass(frozen=True)
class Combination:
    """One caller: inputs of a dtype, device and layout, and settings of PyTorch."""

    function: str
    dtype: torch.dtype
    device: str
    batch: tuple[int, ...]
    layout: str
    autocast: torch.dtype | None
    default_dtype: torch.dtype
    default_device: str
    threads: int
    precision: str
    inference: bool

    @classmethod
    def draw(cls, source: random.Random) -> "Combination":
        return cls(
            source.choice(sorted(FUNCTIONS)),
            source.choices(DTYPES, [1, 1, 4, 4])[0],
            source.choice(DEVICES),
            source.choice([(), (2,), (2, 1)]),
            source.choice(["contiguous", "transposed", "strided", "offset"]),
            source.choice([None, torch.bfloat16, torch.float16]),
            source.choice(DTYPES),
            source.choice(["cpu", "meta", *DEVICES]),
            source.randint(1, 3),
            source.choice(["highest", "high", "medium"]),
            source.random() < 0.3,
        )

    @contextmanager
    def settings(self) -> Iterator[None]:
        before = (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
        )
        contexts: list[AbstractContextManager[object]] = [torch.device(self.default_device)]
        if self.autocast is not None:
            contexts += [torch.autocast(kind, self.autocast) for kind in DEVICES]
        if self.inference:
            contexts.append(torch.inference_mode())
        torch.set_default_dtype(self.default_dtype)
        torch.set_num_threads(self.threads)
        torch.set_float32_matmul_precision(self.precision)
        try:
            with ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context)
                yield
        finally:
            torch.set_default_dtype(before[0])
            torch.set_num_threads(before[1])
            torch.set_float32_matmul_precision(before[2])

    def laid_out(self, x: Tensor) -> Tensor:
        """The same numbers, elsewhere in memory."""
        x = x.to(self.device)
        if self.layout == "transposed":
            return x.mT.contiguous().mT
        if self.layout == "strided":
            wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
            wide[..., ::2] = x
            return wide[..., ::2]
        if self.layout == "offset":
            flat = x.new_zeros(x.numel() + 1)
            flat[1:] = x.flatten()
            return flat[1:].view(x.shape)
        return x


def inputs(batch: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*batch, 6, 9, generator=generator, dtype=torch.float64)
    x = torch.cat([x, -x], dim=-2)  # of mean zero and of one norm, as equivalents want it
    return (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).to(dtype)


def _products(x: Tensor) -> list[Tensor]:
    operators = shoal.kernel_operator(DEQ, x[(0,) * (x.dim() - 2)])
    return [k @ x[(0,) * (x.dim() - 2)] for k in operators]


def _equivalents(x: Tensor) -> list[Tensor]:
    x = x[(0,) * (x.dim() - 2)]
    equivalent = shoal.equivalent(DEQ, x)
    return [equivalent.ck.to_dense(), equivalent.ntk @ x]


def _regression(x: Tensor) -> list[Tensor]:
    x = x[(0,) * (x.dim() - 2)]
    fit = shoal.kernel_regression(DEQ, x, x[:, 0], ridge=0.5)
    return [fit.coefficients, fit.predict(x[:3])]


def _duals(x: Tensor) -> list[Tensor]:
    a, b, c = x[..., 0] * x[..., 0] + 0.5, x[..., 1] * x[..., 1] + 0.5, 0.4 * x[..., 2]
    f = shoal.kernel_function(DEQ)
    return [shoal.gaussian.dual(shoal.activations.Erf(), a, b, c), f(a, b, c).ntk]


FUNCTIONS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "kernel": lambda x: list(shoal.kernel(DEQ, x)),
    "network": lambda x: list(shoal.kernel(NETWORK, x, x[..., :2, :])),
    "diagonal": lambda x: list(shoal.kernel(DEQ, x, x.flip(-2), diag=True)),
    "products": _products,
    "equivalents": _equivalents,
    "regression": _regression,
    "duals": _duals,
}
HALF = {"duals": 2e-2}  # what takes half precision, computes in float64 and rounds the result


@cache
def answers(function: str, batch: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """In float64, without any settings."""
    return FUNCTIONS[function](inputs(batch, dtype).double())


def check(case: Combination) -> None:
    x = inputs(case.batch, case.dtype)
    function = FUNCTIONS[case.function]
    with torch.inference_mode(case.inference):
        given = case.laid_out(x)
    with case.settings():
        if case.dtype not in ERRORS and case.function not in HALF:
            with pytest.raises(TypeError, match=r"must be float32 or float64, got torch\."):
                function(given)
            return
        found = function(given)
    tolerance = ERRORS.get(case.dtype) or HALF[case.function]
    expected = answers(case.function, case.batch, case.dtype)
    for left, right in zip(found, expected, strict=True):
        assert left.device.type == case.device, case
        assert left.dtype == case.dtype, case
        error = (left.cpu().double() - right).abs().max() / right.abs().max()
        assert float(error) <= tolerance, (case, float(error))


@pytest.mark.thorough("0", "2", "3")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.filterwarnings("ignore:the squared norms of x vary:UserWarning")
def test_random_combinations(part: int) -> None:
    source = random.Random(part)
    for _ in range(COUNT // 4):
        check(Combination.draw(source))

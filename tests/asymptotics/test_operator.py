"""Operators against dense matrices, in all regimes of samples and features."""

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.asymptotics import Basis, CrossOperator, EquivalentOperator
from shoal.core.exceptions import AccuracyError

# fewer samples than features, as many, a few more than features (but not than columns), many more
SHAPES = [(7, 20), (20, 20), (22, 20), (23, 20), (24, 20), (60, 20), (5, 1), (1, 3)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def made(
    n: int, p: int, *, shift: float = 1.7, indefinite: bool = True, dtype: torch.dtype | None = None
) -> tuple[EquivalentOperator, Tensor]:
    """An operator, and its matrix from the definition."""
    x, columns, core = normal(n, p), normal(n, 3, seed=1), normal(3, 3, seed=2)
    core = core + core.T if indefinite else core @ core.T
    if dtype is not None:  # compare float32 with the matrix of what float32 holds
        x, columns = x.to(dtype), columns.to(dtype)
    dense = 0.6 * x.double() @ x.double().T + columns.double() @ core @ columns.double().T
    dense += shift * torch.eye(n, dtype=torch.float64)
    return EquivalentOperator(Basis(x, columns), scale=0.6, core=core, shift=shift), dense


@pytest.mark.parametrize(("n", "p"), SHAPES)
@pytest.mark.parametrize("indefinite", [True, False])
def test_products_eigenvalues_and_solutions_are_those_of_the_matrix(
    n: int, p: int, indefinite: bool
) -> None:
    operator, dense = made(n, p, indefinite=indefinite)
    b = normal(n, 4, seed=3)
    torch.testing.assert_close(operator.to_dense(), dense, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(operator @ b, dense @ b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.diagonal(), dense.diagonal(), rtol=1e-13, atol=1e-13)
    atol = 1e-13 * float(torch.linalg.matrix_norm(dense, 2))
    torch.testing.assert_close(
        operator.eigvalsh(), torch.linalg.eigvalsh(dense), rtol=0.0, atol=atol
    )
    for shift in (0.0, 0.35):
        shifted = dense + shift * torch.eye(n, dtype=torch.float64)
        expected = torch.linalg.solve(shifted, b)
        size = float(torch.linalg.cond(shifted)) * 1e-14
        torch.testing.assert_close(operator.solve(b, shift=shift), expected, rtol=0.0, atol=size)
        torch.testing.assert_close(operator.solve(b[:, 0], shift=shift), expected[:, 0])


@pytest.mark.parametrize(("n", "p"), SHAPES)
@pytest.mark.parametrize("eigenvalues_first", [True, False])
def test_the_determinant_is_that_of_the_matrix(n: int, p: int, eigenvalues_first: bool) -> None:
    operator, dense = made(n, p, indefinite=False)
    if eigenvalues_first:
        operator.eigvalsh()
    for shift in (0.0, 0.35):
        shifted = dense + shift * torch.eye(n, dtype=torch.float64)
        expected = torch.linalg.slogdet(shifted).logabsdet
        torch.testing.assert_close(operator.logdet(shift=shift), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [15, 40])
def test_a_negative_shift_is_solved_and_has_no_determinant(n: int) -> None:
    operator, dense = made(n, 6, shift=-0.8)
    b = normal(n, seed=3)
    torch.testing.assert_close(operator.solve(b), torch.linalg.solve(dense, b))
    least = -float(torch.linalg.eigvalsh(dense)[0])
    with pytest.raises(ValueError, match=f"add a shift above {least:.3g}"):
        operator.logdet()
    shifted = dense + 1.001 * least * torch.eye(n, dtype=torch.float64)
    torch.testing.assert_close(operator.logdet(shift=1.001 * least), torch.logdet(shifted))


def test_columns_that_depend_on_each_other() -> None:
    # constant pixels and a column of ones that classes sum to: B has not full rank
    x = torch.cat((normal(50, 5), torch.zeros(50, 3, dtype=torch.float64)), dim=1)
    classes = torch.eye(2, dtype=torch.float64)[torch.arange(50) % 2]
    columns = torch.cat((torch.ones(50, 1, dtype=torch.float64), classes), dim=1)
    core = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
    operator = EquivalentOperator(Basis(x, columns), scale=1.0, core=core, shift=0.1)
    dense = operator.to_dense()
    torch.testing.assert_close(
        operator.eigvalsh(), torch.linalg.eigvalsh(dense), rtol=0.0, atol=1e-12
    )
    b = normal(50, seed=3)
    torch.testing.assert_close(dense @ operator.solve(b), b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [8, 40])
def test_a_singular_matrix_is_not_solved(n: int) -> None:
    columns = torch.zeros(n, 1, dtype=torch.float64)
    core = torch.ones(1, 1, dtype=torch.float64)
    x = normal(n, 12)
    x[1] = x[0]
    operator = EquivalentOperator(Basis(x, columns), scale=1.0, core=core, shift=0.0)
    with pytest.raises(AccuracyError, match="singular"):
        operator.solve(normal(n, seed=3))
    with pytest.raises(ValueError, match="positive definite"):
        operator.logdet()
    assert operator.solve(normal(n, seed=3), shift=0.1).shape == (n,)


def test_a_solution_worse_than_asked_is_not_returned() -> None:
    operator, _ = made(40, 6, shift=1e-13, indefinite=False)
    with pytest.raises(AccuracyError, match="relative residual"):
        operator.solve(normal(40, seed=3), rtol=1e-12)


@pytest.mark.parametrize(("n", "p"), SHAPES)
def test_float32_loses_only_its_own_digits(n: int, p: int) -> None:
    operator, dense = made(n, p, indefinite=False, dtype=torch.float32)
    b = normal(n, 2, seed=3).float()
    results = operator @ b, operator.solve(b), operator.eigvalsh(), operator.logdet()
    assert all(result.dtype == torch.float32 for result in results)
    scale = float(torch.linalg.matrix_norm(dense, 2))
    torch.testing.assert_close(results[0].double(), dense @ b.double(), rtol=0, atol=1e-6 * scale)
    expected = torch.linalg.solve(dense, b.double())
    torch.testing.assert_close(results[1].double(), expected, rtol=1e-7, atol=1e-7)
    expected = torch.linalg.eigvalsh(dense)
    torch.testing.assert_close(results[2].double(), expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(results[3].double(), torch.logdet(dense), rtol=1e-6, atol=0)


def test_float32_solves_what_float32_alone_could_not() -> None:
    # condition 1e8: the residual is met in float64, before rounding
    x, columns = normal(80, 5).float(), torch.ones(80, 1)
    core = torch.full((1, 1), 1e4, dtype=torch.float64)
    operator = EquivalentOperator(Basis(x, columns), scale=1.0, core=core, shift=1e-2)
    b = normal(80, seed=3).float()
    dense = x.double() @ x.double().T + 1e4 + 1e-2 * torch.eye(80, dtype=torch.float64)
    expected = torch.linalg.solve(dense, b.double())
    torch.testing.assert_close(operator.solve(b).double(), expected, rtol=1e-6, atol=1e-4)


def test_arrays_give_arrays() -> None:
    tensors, _ = made(30, 5)
    arrays = EquivalentOperator(
        tensors.basis, scale=tensors.scale, core=tensors.core, shift=1.7, arrays=True
    )
    b = normal(30, seed=3)
    for result, expected in [
        (arrays @ b.numpy(), tensors @ b),
        (arrays.solve(b.numpy()), tensors.solve(b)),
        (arrays.eigvalsh(), tensors.eigvalsh()),
        (arrays.to_dense(), tensors.to_dense()),
        (arrays.diagonal(), tensors.diagonal()),
    ]:
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, expected.numpy())


def test_between_new_inputs_and_old() -> None:
    operator, _ = made(30, 5)
    left = Basis(normal(4, 5, seed=5), normal(4, 3, seed=6))
    cross = CrossOperator(left, operator.basis, scale=0.6, core=operator.core)
    old = operator.basis
    dense = 0.6 * left.inputs @ old.inputs.T + left.columns @ operator.core @ old.columns.T
    b = normal(30, 2, seed=3)
    assert cross.shape == (4, 30)
    assert repr(cross) == "CrossOperator(shape=(4, 30), dtype=torch.float64)"
    torch.testing.assert_close(cross.to_dense(), dense)
    torch.testing.assert_close(cross @ b, dense @ b)
    np.testing.assert_allclose(cross @ b[:, 0].numpy(), (dense @ b[:, 0]).numpy())


@pytest.mark.parametrize(
    ("b", "text"),
    [
        (torch.ones(29, dtype=torch.float64), r"30 rows.*got shape \(29,\)"),
        (torch.ones(30, 2, 2, dtype=torch.float64), "at most two dimensions"),
        (torch.full((30,), torch.nan, dtype=torch.float64), "finite"),
    ],
)
def test_bad_factors(b: Tensor, text: str) -> None:
    operator, _ = made(30, 5)
    with pytest.raises(ValueError, match=text):
        operator @ b
    with pytest.raises(ValueError, match=text):
        operator.solve(b)


def test_bad_arguments() -> None:
    operator, _ = made(30, 5)
    b = normal(30)
    with pytest.raises(ValueError, match="rtol must be > 0"):
        operator.solve(b, rtol=0.0)
    with pytest.raises(ValueError, match="shift must be finite"):
        operator.logdet(shift=float("inf"))
    with pytest.raises(TypeError, match="other must be"):
        operator @ "b"
    core = normal(3, 3)
    with pytest.raises(ValueError, match="symmetric"):
        EquivalentOperator(operator.basis, scale=1.0, core=core, shift=1.0)
    with pytest.raises(ValueError, match=r"shape \(3, 3\), got \(2, 2\)"):
        EquivalentOperator(operator.basis, scale=1.0, core=core[:2, :2] * 0, shift=1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("n", "p"), [(7, 20), (60, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_gives_the_same(n: int, p: int, dtype: torch.dtype) -> None:
    cpu, _ = made(n, p, dtype=dtype)
    basis = Basis(cpu.basis.inputs.cuda(), cpu.basis.columns.cuda())
    gpu = EquivalentOperator(basis, scale=cpu.scale, core=cpu.core.cuda(), shift=cpu.shift)
    b = normal(n, 2, seed=3).to(dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    for found, expected in [
        (gpu @ b.cuda(), cpu @ b),
        (gpu.solve(b.cuda()), cpu.solve(b)),
        (gpu.eigvalsh(), cpu.eigvalsh()),
        (gpu.to_dense(), cpu.to_dense()),
        (gpu.logdet(shift=50.0), cpu.logdet(shift=50.0)),
    ]:
        assert found.device.type == "cuda"
        torch.testing.assert_close(found.cpu(), expected, **tolerance)

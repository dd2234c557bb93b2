"""Equivalents as operators of the ``linear_operator`` package, on which GPyTorch stands."""

import warnings
from typing import Any

import torch
from torch import Tensor

from shoal.asymptotics.equivalent_operator import Basis, EquivalentOperator
from shoal.core.settings import in_standard_settings

with warnings.catch_warnings():
    # raised by its import, with Python 3.11 and recent versions of torch
    warnings.filterwarnings("ignore", r"`torch\.jit\.script`", DeprecationWarning)
    try:
        from linear_operator import LinearOperator
        from linear_operator.operators import ConstantDiagLinearOperator, MatmulLinearOperator
    except ImportError as error:
        raise ImportError(
            "EquivalentOperator.linear_operator() needs the package linear_operator, which is not "
            "installed: pip install 'shoal[gpytorch]'"
        ) from error


class EquivalentLinearOperator(LinearOperator):  # type: ignore[misc]
    r"""$\alpha X X^T + U S U^T + \delta I$ as a ``LinearOperator``.

    Solves and determinants are exact, by one factorization of $[X, U]$; a constant factor and a
    constant diagonal, such as GPyTorch's scale and noise, keep it so and reuse the factorization.
    All arguments may require gradients, to first order.

    Args:
        inputs: $X$, of shape (n, p).
        columns: $U$, of shape (n, r).
        core: $S$, of shape (r, r); its symmetric part counts.
        scale: $\alpha$, of shape ().
        shift: $\delta$, of shape ().
    """

    def __init__(
        self, inputs: Tensor, columns: Tensor, core: Tensor, scale: Tensor, shift: Tensor
    ) -> None:
        if inputs.dim() != 2:
            raise ValueError(
                f"inputs must have shape (samples, features), got {tuple(inputs.shape)}: "
                "batches of equivalents are not supported"
            )
        super().__init__(inputs, columns, core, scale, shift)
        self.inputs, self.columns = inputs, columns
        self.scale, self.diagonal_shift = scale, shift
        self._basis = Basis(inputs.detach(), columns.detach())
        self._made: EquivalentOperator | None = None

    @classmethod
    def of(cls, operator: EquivalentOperator) -> "EquivalentLinearOperator":
        """An equivalent as a ``LinearOperator``, sharing its factorization."""
        basis = operator.basis
        numbers = (
            operator.core.to(basis.inputs),
            basis.inputs.new_tensor(operator.scale),
            basis.inputs.new_tensor(operator.shift),
        )
        result = cls(basis.inputs, basis.columns, *numbers)
        result._basis, result._made = basis, operator
        return result

    def _with(self, core: Tensor, scale: Tensor, shift: Tensor) -> "EquivalentLinearOperator":
        result = type(self)(self.inputs, self.columns, core, scale, shift)
        result._basis = self._basis
        return result

    @property
    def core(self) -> Tensor:
        """The symmetric part of S."""
        core: Tensor = self._args[2]  # not kept: gradients may be asked for later
        return (core + core.mT) / 2

    @property
    def plain(self) -> EquivalentOperator:
        """The matrix without gradients."""
        if self._made is None:
            self._made = EquivalentOperator(
                self._basis,
                scale=float(self.scale.detach()),
                core=self.core.detach(),
                shift=float(self.diagonal_shift.detach()),
            )
        return self._made

    def _size(self) -> torch.Size:
        return torch.Size((len(self.inputs), len(self.inputs)))

    def _transpose_nonbatch(self) -> "EquivalentLinearOperator":
        return self

    @in_standard_settings
    def _matmul(self, rhs: Tensor) -> Tensor:
        linear = self.scale * (self.inputs @ (self.inputs.T @ rhs))
        low = self.columns @ (self.core @ (self.columns.T @ rhs))
        return linear + low + self.diagonal_shift * rhs

    @in_standard_settings
    def _diagonal(self) -> Tensor:
        low = ((self.columns @ self.core) * self.columns).sum(-1)
        return self.scale * self.inputs.square().sum(-1) + low + self.diagonal_shift

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Blocks on the diagonal keep the form, and blocks off it are of low rank."""
        if isinstance(row_index, slice) and isinstance(col_index, slice):
            rows, cols = (range(len(self.inputs))[index] for index in (row_index, col_index))
            if rows == cols:
                parts = (self.core, self.scale, self.diagonal_shift)
                return type(self)(self.inputs[row_index], self.columns[row_index], *parts)
            if not set(rows) & set(cols):
                left, right = self._factors()
                return MatmulLinearOperator(left[row_index], right[col_index].mT)
        return super()._getitem(row_index, col_index, *batch_indices)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *_: Tensor) -> Tensor:
        """Entries one by one."""
        x, u = self.inputs, self.columns
        linear = self.scale * (x[row_index] * x[col_index]).sum(-1)
        low = ((u[row_index] @ self.core) * u[col_index]).sum(-1)
        return linear + low + self.diagonal_shift * (row_index == col_index)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Two matrices of p + r columns, whose product is all but the constant diagonal."""
        x, u = self.inputs, self.columns
        left = torch.cat((self.scale * x, u @ self.core), dim=1)
        return left, torch.cat((x, u), dim=1)

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:  # noqa: ARG002
        """A batch of one, left to ``linear_operator``, which repeats it for larger batches."""
        left, right = (factor.unsqueeze(0) for factor in self._factors())
        return MatmulLinearOperator(left, right.mT).add_diagonal(self.diagonal_shift)

    def _mul_constant(self, other: Any) -> LinearOperator:
        if isinstance(other, Tensor) and other.numel() != 1:
            return super()._mul_constant(other)
        factor = other.reshape(()) if isinstance(other, Tensor) else other
        return self._with(factor * self.core, factor * self.scale, factor * self.diagonal_shift)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        """A constant diagonal keeps the form; any other is left to ``linear_operator``."""
        if diag.numel() != 1:
            return super().add_diagonal(diag)
        return self._with(self.core, self.scale, self.diagonal_shift + diag.reshape(()))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, ConstantDiagLinearOperator) and other.diag_values.numel() == 1:
            return self.add_diagonal(other.diag_values)
        return super().__add__(other)

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        """The inverse times ``right_tensor``; ``left_tensor`` times that if it is given."""
        is_vector = right_tensor.dim() == 1
        right = right_tensor[:, None] if is_vector else right_tensor
        columns = right.movedim(-2, 0)  # those of all batches side by side
        flat: Tensor = _Solve.apply(self, columns.flatten(1), *self._args)  # type: ignore[no-untyped-call]
        solution = flat.view(columns.shape).movedim(0, -2)
        solution = solution[:, 0] if is_vector else solution
        return solution if left_tensor is None else left_tensor @ solution

    def _solve(self, rhs: Tensor, *_: Any, **__: Any) -> Tensor:
        result: Tensor = self.plain.solve(rhs)
        return result

    def logdet(self) -> Tensor:
        """The logarithm of the determinant of a positive definite matrix."""
        result: Tensor = _LogDeterminant.apply(self, *self._args)  # type: ignore[no-untyped-call]
        return result

    def inv_quad_logdet(
        self,
        inv_quad_rhs: Tensor | None = None,
        logdet: bool | None = False,
        reduce_inv_quad: bool | None = True,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The quadratic form of the inverse, and the logarithm of the determinant."""
        quadratic = None
        if inv_quad_rhs is not None:
            right = inv_quad_rhs[:, None] if inv_quad_rhs.dim() == 1 else inv_quad_rhs
            quadratic = (right * self.solve(right)).sum(-2)
            quadratic = quadratic.sum(-1) if reduce_inv_quad else quadratic
        return quadratic, self.logdet() if logdet else None


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: EquivalentLinearOperator, right: Tensor, *_: Tensor) -> Tensor:
        result: Tensor = operator.plain.solve(right)
        ctx.operator = operator
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @in_standard_settings
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (solution,) = ctx.saved_tensors
        left = ctx.operator.plain.solve(grad)
        grads: list[Tensor | None] = [None] * 5
        if any(ctx.needs_input_grad[2:]):
            grads = list(ctx.operator._bilinear_derivative(left, -solution))
        return None, left, *grads


class _LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: EquivalentLinearOperator, *_: Tensor) -> Tensor:
        ctx.operator = operator
        result: Tensor = operator.plain.logdet()
        return result

    @staticmethod
    @in_standard_settings
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Each is the derivative of the matrix against its inverse."""
        operator, needed = ctx.operator, ctx.needs_input_grad[1:]
        plain: EquivalentOperator = operator.plain
        x, columns = plain.basis.inputs, plain.basis.columns
        grads: list[Tensor | None] = [None] * 5
        if needed[0] or needed[3]:
            image = plain.solve(x)
            grads[0] = 2 * grad * plain.scale * image
            grads[3] = grad * (x * image).sum()
        if needed[1] or needed[2]:
            image = plain.solve(columns)
            grads[1] = 2 * grad * image @ plain.core.to(image)
            grads[2] = grad * columns.T @ image
        if needed[4]:
            grads[4] = grad * (1 / plain._eigenvalues).sum().to(grad)
        return None, *grads

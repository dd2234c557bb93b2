r"""Cells that have one equilibrium whatever their parameters: monotone operator networks.

Let $W = (1 - m) I - A^\top A + B - B^\top$ (Winston and Kolter 2020). Then
$\langle v, (I - W) v \rangle \ge m \|v\|^2$: the linear map $M = I - W$ is strongly monotone. A
function $\varphi$ of one variable is the proximal operator of a convex $h$ if and only if it
nowhere decreases and has slopes of at most one. Then $z = \varphi(Wz + u)$ says that
$0 \in Mz - u + \partial h(z)$, which has one solution, as both terms are monotone, one strongly.

Forward-backward splitting finds it by $z \leftarrow \mathrm{prox}_{\alpha h}(z - \alpha(Mz - u))$.
Proximal operators do not expand, so it contracts at the rate $\|I - \alpha M\|$. With
$P = mI + A^\top A$, $S = B - B^\top$, $p = m + \|A\|^2$ and $s = \|S\|$ we have
$\|Mv\|^2 \le (1+t)\|Pv\|^2 + (1 + 1/t)\|Sv\|^2$ and $\|Pv\|^2 \le p \langle v, Pv \rangle$; with
$t = s/\sqrt{pm}$ this gives $\|I - \alpha M\|^2 \le 1 - 2\alpha m + \alpha^2 (\sqrt{pm} + s)^2$ as
long as $\alpha (1+t) p \le 2$, which is least, and allowed, for $\alpha = m / (\sqrt{pm} + s)^2$.

The operator $\mathrm{prox}_{\alpha h}$ is $\varphi$ itself for all $\alpha$ if $\varphi$ is the
projection on an interval (ReLU, HardTanh, the identity). Otherwise it maps $v$ to $\varphi(w)$,
where $\alpha w + (1 - \alpha) \varphi(w) = v$: an equation for each entry, whose slope lies
between $\alpha$ and one. At the equilibrium $w = Wz + u$, where Newton's method begins.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.core import ConvergenceError
from shoal.core.checks import real, room, size
from shoal.core.torch_internals import apply, is_transformed
from shoal.equilibrium.recurrent.layer import Layer
from shoal.networks.contraction.norms import operator_norm_bounds

_TIGHTNESS = 0.1  # of the norms that give the step size: five products of matrices


class MonotoneCell(nn.Module):
    r"""A cell whose equilibrium exists and is unique for all values of its parameters.

    The equilibrium is that of $z = \varphi(Wz + Ux + b)$ with
    $W = (1 - m) I - A^\top A + B - B^\top$, a monotone operator network (Winston and Kolter 2020).
    The cell is one step of forward-backward splitting,
    $z \mapsto \mathrm{prox}_\alpha((1 - \alpha) z + \alpha (Wz + Ux + b))$, whose fixed point is
    the same; for ReLU, HardTanh and the identity $\mathrm{prox}_\alpha$ is $\varphi$. The step size
    $\alpha$ is computed from certified norms so that the cell is a contraction. Use it as
    ``shoal.Equilibrium(shoal.MonotoneCell(...))``, with any optimizer.

    A call costs three products with matrices of shape (width, width), and norms are bounded when
    parameters have changed, for some twelve products of such matrices in float64. Other activations
    than projections also need a few evaluations of $\varphi$ for each entry. Large parameters are
    safe but slow: the rate is $\sqrt{1 - m^2/(\sqrt{pm} + s)^2}$ with $p = m + \|A\|^2$ and
    $s = \|B - B^\top\|$. ``GainConstraint(cell, weights=["symmetric", "skew"])`` bounds it.

    Args:
        in_features: The size of an input.
        width: The size of the state.
        activation: $\varphi$, as a value or by its name, such as ``"relu"`` or ``"leakyrelu:0.1"``.
            It must nowhere decrease and have slopes of at most one, as ReLU, LeakyReLU, HardTanh,
            Tanh, Sigmoid, Softplus, ELU and Identity do; at a grid of points that is checked.
        margin: $m$, above 0. A larger one makes fewer steps suffice, and leaves fewer functions.

    Attributes:
        symmetric: $A$.
        skew: $B$.
        input: $U$ and $b$.

    Example:
        >>> import torch, shoal
        >>> cell = shoal.MonotoneCell(3, 8)
        >>> with torch.no_grad():
        ...     _ = cell.skew.mul_(5)
        >>> layer = shoal.Equilibrium(cell)
        >>> x = torch.randn(5, 3)
        >>> z = layer(torch.zeros(5, 8), x)
        >>> torch.allclose(z, torch.relu(z @ cell.weight.T + cell.input(x)), atol=1e-3)
        True
        >>> cell.rate < 1
        True
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        activation: Activation | str = "relu",
        *,
        margin: float = 1.0,
    ) -> None:
        super().__init__()
        in_features, width = size("in_features", in_features), size("width", width)
        room("width", width, max(width, in_features))
        self.activation = _proximal(as_activation("activation", activation))
        self.is_projection = _is_projection(self.activation)
        self.margin = real("margin", margin, above=0)
        bound = 1 / math.sqrt(width)
        self.symmetric = nn.Parameter(torch.empty(width, width).uniform_(-bound, bound))
        # small: it makes the certified rate worse than what the symmetric part does
        self.skew = nn.Parameter(torch.empty(width, width).uniform_(-bound / 10, bound / 10))
        self.input = nn.Linear(in_features, width)
        self._known: tuple[tuple[int, ...], tuple[float, float]] | None = None

    def extra_repr(self) -> str:
        """The activation and the margin."""
        return f"activation={self.activation!r}, margin={self.margin}"

    @property
    def weight(self) -> Tensor:
        """$W$, differentiable."""
        one = torch.eye(len(self.skew), dtype=self.skew.dtype, device=self.skew.device)
        a = self.symmetric
        return (1 - self.margin) * one - a.t() @ a + self.skew - self.skew.t()

    @property
    def step_size(self) -> float:
        r"""$\alpha$."""
        found: float = _step_size(self.margin, *self._norms())
        return found

    @property
    def rate(self) -> float:
        """A certified bound of the factor by which each call brings two states closer."""
        # with that step size, the square of the rate is 1 - αm
        return math.sqrt(1 - self.step_size * self.margin)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """One step.

        Args:
            z: The state, of shape (samples, width).
            x: The input, of shape (samples, in_features).
        """
        step = self._step(z, x)
        a, skew = self.symmetric, self.skew
        pull = self.margin * z + (z @ a.t()) @ a - z @ (skew.t() - skew) - self.input(x)
        inner = z - step * pull
        if not self.is_projection:  # at the equilibrium it is Wz + Ux + b
            inner = apply(_ScaledPreactivation, inner, step, (z - pull).detach(), self.activation)
        return self.activation.function(inner)

    def _step(self, z: Tensor, x: Tensor) -> Tensor:
        """The step size as a tensor; by larger norms where transforms hide what tensors hold."""
        a, b = self.symmetric, self.skew
        if not is_transformed(z, x, a, b):
            return z.new_tensor(_step_size(self.margin, *self._norms()))
        if self._known is not None and self._known[0][:2] == (id(a), id(b)):
            return z.new_tensor(_step_size(self.margin, *self._known[1]))
        parts = a.detach(), b.detach() - b.detach().t()
        found: Tensor = _step_size(self.margin, *(part.square().sum().sqrt() for part in parts))
        return found

    @torch.no_grad()
    def _norms(self) -> tuple[float, float]:
        r"""Certified bounds of $\|A\|$ and $\|B - B^\top\|$, kept until the parameters change."""
        a, b = self.symmetric, self.skew
        key = id(a), id(b), a._version, b._version, a.data_ptr(), b.data_ptr()
        if self._known is None or self._known[0] != key:
            bounds = [operator_norm_bounds(w, tightness=_TIGHTNESS).upper for w in (a, b - b.t())]
            self._known = key, (bounds[0], bounds[1])
        return self._known[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the norms, which belong to parameters at other places."""
        return {**self.__dict__, "_known": None}


def _step_size(margin: float, symmetric: Any, skew: Any) -> Any:
    """The best step size for these bounds of norms, numbers or tensors."""
    return margin / ((margin * (margin + symmetric**2)) ** 0.5 + skew) ** 2


def _grid() -> Tensor:
    """Points near zero and far away, none of them a kink."""
    return torch.linspace(-7, 7, 1401, dtype=torch.float64).add(1e-4).sinh()


def _proximal(activation: Activation) -> Activation:
    """The activation if it is a proximal operator, or say why not."""
    least = float(activation.derivative(_grid()).min())
    steepest = max(activation.lipschitz, float(activation.derivative(_grid()).max()))
    if least < -1e-12 or steepest > 1 + 1e-9:
        raise ValueError(
            "activation must nowhere decrease and have slopes of at most one, got "
            f"{activation!r} with slopes from {least:.3g} to {steepest:.3g}"
        )
    return activation


def _is_projection(activation: Activation) -> bool:
    """Whether it is the projection on an interval: what it returns it leaves alone."""
    once = activation(_grid())
    return bool((activation(once) - once).abs().le(1e-14 * once.abs()).all())


class _ScaledPreactivation(torch.autograd.Function):
    r"""The $w$ with $\alpha w + (1 - \alpha) \varphi(w) = v$, entry by entry.

    The step size counts as constant: equilibria do not depend on it.
    """

    @staticmethod
    def forward(v: Tensor, step: Tensor, guess: Tensor, activation: Activation) -> Tensor:
        return _scaled_preactivation(v, step, guess, activation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])
        ctx.save_for_forward(output, inputs[1])
        ctx.activation = inputs[3]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        w, step = ctx.saved_tensors
        return g / _slope(w, step, ctx.activation), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        w, step = ctx.saved_tensors
        return tangent / _slope(w, step, ctx.activation)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        v, step, guess, activation = arguments
        v, guess = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in ((v, in_dims[0]), (guess, in_dims[2]))
        )
        if in_dims[1] is not None:
            step = step.reshape(-1, *(1,) * (v.dim() - 1))
        return apply(_ScaledPreactivation, v, step, guess, activation), 0


def _slope(w: Tensor, step: Tensor, activation: Activation) -> Tensor:
    r"""$\alpha + (1 - \alpha) \varphi'(w)$."""
    return step + (1 - step) * Layer(activation, 1.0).slope(w)


def _scaled_preactivation(v: Tensor, step: Tensor, guess: Tensor, activation: Activation) -> Tensor:
    """Newton's method inside a bracket, which is halved where that would be slow.

    Args:
        v: The right-hand side.
        step: The step size.
        guess: Where to start: near an equilibrium a step or two lead from its preactivation.
        activation: The activation.
    """
    function = activation.function
    away = v - (1 - step) * function(torch.zeros_like(v))
    least, most = step.clamp(max=1.0), step.clamp(min=1.0)  # slopes of the left-hand side
    low, high = torch.minimum(away / most, away / least), torch.maximum(away / most, away / least)
    w, last = guess.clamp(low, high), torch.full_like(v, math.inf)
    for _ in range(200):
        first, second = step * w, (1 - step) * function(w)
        residual, slope = first + second - v, _slope(w, step, activation)
        # what rounding leaves of the residual
        noise = 2 * torch.finfo(v.dtype).eps * (first.abs() + second.abs() + v.abs())
        new = w - residual / slope
        moved = (new - w).abs()
        found = ~(moved * slope > noise)
        if bool(found.all()):
            return new
        low, high = torch.where(residual < 0, w, low), torch.where(residual > 0, w, high)
        # an end of the bracket may be the solution, but for rounding
        new = torch.where(found | (moved <= last / 2), new.clamp(low, high), (low + high) / 2)
        last, w = (new - w).abs(), new
    raise ConvergenceError(f"the proximal operator of {activation!r} was not found in 200 steps")

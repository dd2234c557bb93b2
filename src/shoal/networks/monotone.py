r"""Cells that have one equilibrium whatever their parameters: monotone operator networks.

Let $W = (1 - m) I - A^\top A + B - B^\top$ (Winston and Kolter 2020). Then
$\langle v, (I - W) v \rangle \ge m \|v\|^2$: the linear map $M = I - W$ is strongly monotone. A
function $\varphi$ of one variable is the proximal operator of a convex $h$ if and only if it
nowhere decreases and has slopes of at most one. Then $z = \varphi(Wz + u)$ says that
$0 \in Mz - u + \partial h(z)$, which has one solution, as both terms are monotone, one strongly.

Peaceman-Rachford splitting finds it. It applies two reflections in turn: $2\varphi - I$, which does
not expand, and $2V - I$ with $V = (I + \alpha M)^{-1}$, which contracts, after a translation by the
input. Written for $z$ itself it is $z \leftarrow z + 2V(\varphi(z - \alpha(Mz - u)) - z)$: the
residual times a matrix. Therefore the equilibrium does not depend on $V$ or $\alpha$, and both
count as constants where it is differentiated. The step contracts $\|(I + \alpha M) z\|$ at the
rate $\|2V - I\|$. For $v = (I + \alpha M) y$, $\|y\| = 1$ and $q = \langle y, My \rangle$ we have

$$\frac{\|(2V - I) v\|^2}{\|v\|^2} = \frac{\|(I - \alpha M) y\|^2}{\|(I + \alpha M) y\|^2}
= 1 - \frac{4\alpha q}{1 + 2\alpha q + \alpha^2 \|My\|^2}.$$

With $P = mI + A^\top A$, $S = B - B^\top$, $p = m + \|A\|^2$ and $s = \|S\|$, first $q \ge m$,
and second $\|My\| \le \|Py\| + s \le \sqrt{pq} + s$, as $\|Py\|^2 \le p \langle y, Py \rangle$.
With this bound the fraction on the right grows with $q$, so that it is least for $q = m$.

The function $\varphi$ takes the place of the proximal operator of $\alpha h$, which it is for
$\alpha = 1$, and for all $\alpha$ if it is the projection on an interval (ReLU, HardTanh, the
identity).
"""

import math

import torch
from torch import Tensor, nn

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.core.checks import real, room, size
from shoal.equilibrium import PreparedCell
from shoal.numerics.norms import operator_norm_bounds


class MonotoneCell(PreparedCell):
    r"""A cell whose equilibrium exists and is unique for all values of its parameters.

    The equilibrium is that of $z = \varphi(Wz + Ux + b)$ with
    $W = (1 - m) I - A^\top A + B - B^\top$, a monotone operator network (Winston and Kolter 2020).
    The cell is one step of Peaceman-Rachford splitting, $z \mapsto z + 2(I + \alpha
    M)^{-1}(\varphi(z - \alpha(Mz - Ux - b)) - z)$ with $M = I - W$, which has the same fixed point.
    Its iteration contracts for all parameters. Use it as
    ``shoal.Equilibrium(shoal.MonotoneCell(...))``, with any optimizer.

    A step costs two products with matrices of shape (width, width). Once per solve, it also
    computes a product with the inputs, the matrix $W$ and an inverse. Large parameters are safe but
    slow: the rate is at most $\sqrt{1 - 4\alpha m/(1 + 2\alpha m + \alpha^2 (\sqrt{pm} + s)^2)}$
    with $p = m + \|A\|^2$ and $s = \|B - B^\top\|$.
    ``GainConstraint(cell, weights=["symmetric", "skew"])`` bounds it.

    Args:
        in_features: Size of an input.
        width: Size of the state.
        activation: $\varphi$, as a value or by its name, such as ``"relu"`` or ``"leakyrelu:0.1"``.
            It must be nondecreasing with slopes of at most one, as ReLU, LeakyReLU, HardTanh, Tanh,
            Sigmoid, Softplus, ELU and Identity are. This is checked at a grid of points.
        margin: $m$, above 0. A larger margin speeds up convergence and restricts the functions
            more.

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
        # small: it costs more of the certified rate than the symmetric part
        self.skew = nn.Parameter(torch.empty(width, width).uniform_(-bound / 10, bound / 10))
        self.input = nn.Linear(in_features, width)

    def extra_repr(self) -> str:
        """The activation and the margin."""
        return f"activation={self.activation!r}, margin={self.margin}"

    @property
    def weight(self) -> Tensor:
        """$W$, differentiable."""
        a = self.symmetric
        return (1 - self.margin) * _identity(a) - a.t() @ a + self.skew - self.skew.t()

    @property
    def step_size(self) -> float:
        r"""$\alpha$: one, but for projections, where norms choose it."""
        return float(self._constants()[0])

    @property
    @torch.no_grad()
    def rate(self) -> float:
        r"""A certified bound of the factor by which each call brings two states closer.

        Their distance is measured as $\|(I + \alpha M)(z - z')\|$.
        """
        skew = self.skew - self.skew.t()
        a, s = (operator_norm_bounds(w, tightness=0.1).upper for w in (self.symmetric, skew))
        m, step = self.margin, self.step_size
        largest = math.sqrt((m + a**2) * m) + s
        return math.sqrt(1 - 4 * step * m / (1 + 2 * step * m + (step * largest) ** 2))

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""$\alpha(Ux + b)$, $I - \alpha M$ and $2(I + \alpha M)^{-1}$; the last is a constant.

        Args:
            x: The input, of shape (samples, in_features).
        """
        step, preconditioner = self._constants()
        return step * self.input(x), _mixed(self.weight, step), preconditioner

    def step(
        self, z: Tensor, injection: Tensor, recurrent: Tensor, preconditioner: Tensor
    ) -> Tensor:
        """One step.

        Args:
            z: The state, of shape (samples, width).
            injection: The term of the input, from ``prepare``.
            recurrent: The matrix that multiplies the state, from ``prepare``.
            preconditioner: The matrix that multiplies the residual, from ``prepare``.
        """
        residual = self.activation.function(injection + z @ recurrent.t()) - z
        return z + residual @ preconditioner.t()

    def _constants(self) -> tuple[Tensor, Tensor]:
        r"""$\alpha$ and $2(I + \alpha M)^{-1}$."""
        with torch.no_grad(), torch.autocast(self.skew.device.type, enabled=False):
            weight = self.weight.detach()
            step = weight.new_ones(())
            if self.is_projection:  # of the order of the best one, 1 / (√(pm) + s)
                step = math.sqrt(len(weight)) / (_identity(weight) - weight).norm()
            exact = torch.promote_types(weight.dtype, torch.float32)  # the least that inverts
            inverse = torch.linalg.inv((2 * _identity(weight) - _mixed(weight, step)).to(exact))
            return step, 2 * inverse.to(weight.dtype)


def _identity(weight: Tensor) -> Tensor:
    """The unit matrix."""
    return torch.eye(len(weight), dtype=weight.dtype, device=weight.device)


def _mixed(weight: Tensor, step: Tensor) -> Tensor:
    r"""$(1 - \alpha) I + \alpha W$."""
    return (1 - step) * _identity(weight) + step * weight


def _grid() -> Tensor:
    """Points near zero and far away, none of them a kink."""
    return torch.linspace(-7, 7, 1401, dtype=torch.float64).add(1e-4).sinh()


def _proximal(activation: Activation) -> Activation:
    """Return an activation that is a proximal operator, or raise."""
    least = float(activation.derivative(_grid()).min())
    steepest = max(activation.lipschitz, float(activation.derivative(_grid()).max()))
    if least < -1e-12 or steepest > 1 + 1e-9:
        raise ValueError(
            f"activation must be nondecreasing with slopes of at most one, got {activation!r} "
            f"with slopes from {least:.3g} to {steepest:.3g}"
        )
    return activation


def _is_projection(activation: Activation) -> bool:
    """Whether it is the projection on an interval: applied twice, it is the same."""
    once = activation(_grid())
    return bool((activation(once) - once).abs().le(1e-14 * once.abs()).all())

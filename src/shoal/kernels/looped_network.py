r"""Kernels of loops with a fixed number of iterations, tied weights and a residual stream.

For two inputs let $S_{kl} = \lim h_k \cdot h'_l / m$ be the covariance of their states after $k$
and $l$ iterations, and $\Theta_{kl}$ the covariance of the tangents of these states, summed over
the weights that are trained. With $Q_{kl} = \mathbb{E}[\varphi(u_k)\varphi(u'_l)]$ and $T_{kl} =
\mathbb{E}[\varphi'(u_k)\varphi'(u'_l)]$, both at the normalized covariance of $S_{kl}$, an
iteration adds $\varepsilon\sigma_a W\varphi(u_k)$ to a state, and to its tangent

$\varepsilon\sigma_a\,(dW\,\varphi(u_k) + W\varphi'(u_k)\,dh_k/r_k), \qquad r_k^2 = S_{kk}$

(or $r_k = 1$ without normalization; the part of the normalization's Jacobian along $h_k$ vanishes
in the limit). The stream adds these up, with the weights $L_{kj} = \alpha^{k-1-j}$ for $j < k$ and
$c_k = \alpha c_{k-1} + \gamma$, $c_0 = 1$, of the embedding. So both tables solve one recursion,

$S = cc^\top s + L Q L^\top \varepsilon^2\sigma_a^2, \qquad
\Theta = cc^\top t + L\,(w Q + T \circ \Theta / rr'^\top)\,L^\top \varepsilon^2\sigma_a^2,$

where $s$ is the covariance of the embeddings, $t$ the part of it whose weights are trained, and
$w$ is 1 if the recurrent weights are trained, else 0. Without ties, states of different iterations
are not connected by $W$: $Q$ and $T$ are zero off their diagonals.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoal.architectures import LoopedNetwork
from shoal.core.exceptions import AccuracyError
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import within_bound
from shoal.gaussian.moments import slope_square
from shoal.kernels.angles import Angles, NoAngleError
from shoal.kernels.function import KernelFunction, calculus_kernels
from shoal.kernels.pairs import Pairs, SingleInputs, mean_squares
from shoal.kernels.recursions import NetworkKernels

_RANGE = 1e-140, 1e140  # variances whose products neither vanish nor overflow
_BLOCK = 1 << 20  # entries of a table that are formed together

Moments = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""$Q$ and $T/rr'$ at iterations $(n, 0), ..., (n, n), (0, n), ..., (n - 1, n)$, given $S$ there."""


@calculus_kernels.register
def looped_kernels(
    architecture: LoopedNetwork, calculus: Any, function: KernelFunction
) -> NetworkKernels[Any]:
    """Both kernels, by a recursion over pairs of iterations."""
    stream = _Stream(architecture, function)
    if isinstance(calculus, Angles):
        raise NoAngleError  # states have several variances at once
    if isinstance(calculus, SingleInputs):
        return NetworkKernels(*stream.inputs(calculus.squared_norms)[1], calculus)
    assert isinstance(calculus, Pairs)
    return NetworkKernels(*stream.pairs(calculus), calculus)


class _Stream:
    """The recursion of an architecture, with tensors for its variances where these are given."""

    def __init__(self, architecture: LoopedNetwork, function: KernelFunction) -> None:
        self.phi, self.steps = architecture.activation, architecture.steps
        self.tied, self.decay = architecture.tied, architecture.state_scale
        self.normalized = architecture.normalization is not None
        tensors = dict(function.variances)
        spread, self.input, self.bias = (
            tensors.get(name, getattr(architecture, name))
            for name in ("recurrent_variance", "input_variance", "bias_variance")
        )
        self.gain = architecture.step_scale**2 * spread
        groups = ("readout", "recurrent", "input", "bias")
        self.trained = {group: float(group in function.trainable) for group in groups}
        shares = [1.0]
        for _ in range(self.steps):
            shares.append(self.decay * shares[-1] + architecture.recall)
        self.shares = torch.tensor(shares, dtype=torch.float64)  # c
        k, j = torch.meshgrid(torch.arange(self.steps + 1), torch.arange(self.steps), indexing="ij")
        powers = torch.tensor(self.decay, dtype=torch.float64) ** (k - 1 - j).relu()
        self.sums = torch.where(j < k, powers, 0.0)  # L

    def inputs(self, square: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Inputs with themselves, given their squared norms.

        Returns:
            The variances of their states after 0, 1, ..., N iterations, shape (N + 1, ...), and
            both kernels.
        """
        variances: list[Tensor] = []

        def moments(n: int, covariance: Tensor) -> tuple[Tensor, Tensor]:
            variance = covariance[n if self.tied else 0]
            self._check_variance(variance, n)
            variances.append(variance)
            argument = torch.ones_like(variance) if self.normalized else variance
            if square.requires_grad:
                value, slope = (
                    mean_squares(self.phi, argument)[0],
                    slope_square(self.phi, argument),
                )
            else:
                value, slope = (
                    d(self.phi, argument, argument, argument) for d in (dual, dual_derivative)
                )
            value, slope = value[None], (slope / variance if self.normalized else slope)[None]
            if n == 0 or not self.tied:
                return value, slope
            cross = self._duals(variance, torch.stack(variances[:-1]), covariance[:n])
            q, t = (torch.cat([o, e, o]) for o, e in zip(cross, (value, slope), strict=True))
            return q, t

        final = self._final_covariance(square, moments)
        self._check_variance(final[0], self.steps)
        variances.append(final[0])
        return torch.stack(variances), self._output(final, final[0], final[0])

    def pairs(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Both kernels of pairs of inputs."""
        variances, kernels = self.inputs(pairs.singles.squared_norms)
        first, second = (
            torch.stack(each) for each in zip(*map(pairs.side_values, variances), strict=True)
        )
        product = pairs.products
        if pairs.differentiable or self.steps * product.numel() <= _BLOCK:
            result = self._pair_kernels(first, second, product)
        else:
            shape, step = product.shape, max(1, _BLOCK // self.steps)
            sides = (v.expand(len(v), *shape).reshape(len(v), -1) for v in (first, second))
            blocks = zip(
                *(v.split(step, -1) for v in sides), product.reshape(-1).split(step), strict=True
            )
            parts = [self._pair_kernels(*block) for block in blocks]
            cks, ntks = zip(*parts, strict=True)
            result = torch.cat(cks).view(shape), torch.cat(ntks).view(shape)
        if pairs.same is not None:  # an input and itself, to the last bit
            self_kernels = (pairs.side_values(each)[0] for each in kernels)
            ck, ntk = (
                torch.where(pairs.same, a, f) for a, f in zip(self_kernels, result, strict=True)
            )
            return ck, ntk
        return result

    def _pair_kernels(
        self, first: Tensor, second: Tensor, product: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both kernels of pairs, given the variances of all states of both inputs."""

        def moments(n: int, covariance: Tensor) -> tuple[Tensor, Tensor]:
            if not self.tied:
                return self._duals(first[n], second[n], covariance)
            a = torch.cat([first[n].expand_as(first[: n + 1]), first[:n]])
            b = torch.cat([second[: n + 1], second[n].expand_as(second[:n])])
            return self._duals(a, b, covariance)

        return self._output(self._final_covariance(product, moments), first[-1], second[-1])

    def _check_variance(self, variance: Tensor, steps: int) -> None:
        """Refuse states that are zero, or so small or large that normalizing them loses digits."""
        least, most = (float(end) for end in torch.aminmax(variance.detach()))
        if not self.normalized or (_RANGE[0] < least and most < _RANGE[1]):
            return
        if least == 0:
            raise ValueError(
                "inputs must not be zero for a LoopedNetwork with normalization, unless it has "
                f"biases: the state is zero after {steps} iterations and cannot be normalized"
            )
        raise AccuracyError(
            f"the state of the LoopedNetwork has variances from {least:.2g} to {most:.2g} after "
            f"{steps} iterations, beyond what can be normalized: scale inputs, steps or state_scale"
        )

    def _duals(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """$Q$ and $T/rr'$ at variances and covariances of states."""
        if not self.normalized:
            c = within_bound(a, b, c)
            return dual(self.phi, a, b, c), dual_derivative(self.phi, a, b, c)
        size, one = a.sqrt() * b.sqrt(), c.new_ones(())
        cosine = within_bound(one, one, c / size)
        return dual(self.phi, one, one, cosine), dual_derivative(self.phi, one, one, cosine) / size

    def _final_covariance(self, product: Tensor, moments: Moments) -> Tensor:
        r"""$S_{NN}$ and $\Theta_{NN}$ of inputs with some inner products. shape: (2, ...)."""
        inner, bias = self.input * product, self.bias + 0.0 * product
        part = self.trained["input"] * inner + self.trained["bias"] * bias
        embedded, recurrent = torch.stack([inner + bias, part]), self.trained["recurrent"]
        shares = self.shares.to(product).view(-1, *[1] * product.ndim)
        row = embedded.new_zeros(2, 1, *product.shape)  # at (n, 0), ..., (n, n)
        column = row[:, :0]  # at (0, n), ..., (n - 1, n)
        for n in range(self.steps):
            added = torch.cat([row, column], 1) if self.tied else row
            around = torch.cat([shares[: n + 1], shares[:n]]) if self.tied else shares[n : n + 1]
            covariance, tangent = embedded[:, None] * (shares[n] * around) + added
            _check_finite(covariance, n)
            value, slope = moments(n, covariance)
            moved = self.gain * torch.stack([value, recurrent * value + slope * tangent])
            if self.tied:
                row, column = self._advance(n, row, column, moved)
            else:
                row = self.decay**2 * row + moved
        final = shares[-1] ** 2 * embedded + row[:, -1]
        _check_finite(final, self.steps)
        return final

    def _advance(self, n: int, row: Tensor, column: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """The next row and column of $L Q L^T$, given those of $Q$ at $n$."""
        below, corner, right = moved.split([n, 1, n], 1)
        sums, product = self.sums[: n + 2, : n + 1].to(moved), "lj,fj...->fl..."
        after = torch.einsum(product, sums[:-1], torch.cat([right, corner], 1))
        before = torch.einsum(product, sums, torch.cat([below, corner], 1))
        column = self.decay * torch.cat([column, row[:, -1:]], 1) + after
        row = self.decay * torch.cat([row, column[:, -1:]], 1) + before
        return row, column

    def _output(self, final: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """CK and NTK, given the covariances at the end and both variances."""
        ck, tangent = final / (first.sqrt() * second.sqrt()) if self.normalized else final
        return ck, tangent + self.trained["readout"] * ck


def _check_finite(covariance: Tensor, steps: int) -> None:
    if not bool(covariance.detach().isfinite().all()):
        raise AccuracyError(f"the state of the LoopedNetwork overflows after {steps} iterations")

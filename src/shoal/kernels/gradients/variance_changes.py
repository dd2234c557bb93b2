r"""How entries of a kernel matrix move with variances, as they would with norms and cosines.

Variances need no surface of their own. A loop of one layer sees its inputs as $\alpha = \sigma_b^2
a$, $\beta = \sigma_b^2 b$, $\gamma = \sigma_b^2 c$, and a change of $\sigma_a^2$ moves its fixed
points as a change of these by the conjugate kernels $G_{ii}$, $G_{jj}$, $G_{ij}$ does, so that

$\partial_{\sigma_a^2} \kappa = G_{ii}\,\partial_\alpha \kappa + G_{jj}\,\partial_\beta \kappa
+ G_{ij}\,\partial_\gamma \kappa$,

up to the places where $\sigma_a^2$ and $c$ stand in the NTK themselves, beside $G$ and $M =
\partial_\gamma G$: it is $w_r G + M (w_a G + w_b c + w_0)$ with the shares $w$ of the groups. A
bias is added to all three.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.architectures import ImplicitNetwork, Weights
from shoal.kernels.backends import Adjoint, DifferentiableBlock, Entries
from shoal.kernels.function import KernelFunction


def variances_from_inputs(function: KernelFunction, names: tuple[str, ...]) -> bool:
    """Whether :func:`variance_changes` knows them: those of a loop of one layer with inputs."""
    if isinstance(function.architecture, ImplicitNetwork):
        return False
    layers = function.architecture.layers(function.width)
    readout, injection = layers.readout, layers.injection
    if readout is not None and (readout.variance != 1 or readout.field in names):
        return False
    seen = injection is not None and injection.variance > 0 and not layers.gated
    return bool(seen) and len(layers.cells) == 1


class Change(NamedTuple):
    """How entries move with a variance: as norms and cosines would, and the NTK besides.

    Attributes:
        rows: Change of the logarithms of the rows' norms. shape: (n,)
        columns: That of the columns' norms. shape: (m,)
        cosine: That of the cosines. shape: (n, m); ``None`` if they stay
        ntk: What is added to the NTK. shape: (n, m); ``None`` if it does not count
    """

    rows: Tensor
    columns: Tensor
    cosine: Tensor | None
    ntk: Tensor | None

    def of_entries(self, entries: Entries) -> Tensor:
        """The change of both kernels, entry by entry. shape: (2, n, m)."""
        rows, columns = self.rows.to(entries.ck)[:, None], self.columns.to(entries.ck)
        change = entries.in_left * rows + entries.in_right * columns
        if self.cosine is not None:
            change += entries.in_cosine * self.cosine
        if self.ntk is not None:
            change[1] += self.ntk
        return change

    def of_sum(self, adjoint: Adjoint, upstream: Tensor) -> Tensor:
        """The change of a sum of entries, given its gradients in these and in what moves."""
        total = adjoint.left @ self.rows + adjoint.right @ self.columns
        if self.cosine is not None:
            total += (adjoint.cosine * self.cosine).sum(dtype=torch.float64)
        if self.ntk is not None:
            total += (upstream[1] * self.ntk).sum(dtype=torch.float64)
        return total


def variance_changes(
    function: KernelFunction,
    names: tuple[str, ...],
    block: DifferentiableBlock,
    ck: Tensor,
    in_cosine: Tensor | None,
) -> Iterator[tuple[int, Change]]:
    """What moves with each variance of a loop, some of them in several ways.

    Args:
        function: The kernels.
        names: Of the variances.
        block: Part of a matrix.
        ck: Its conjugate kernel. shape: (n, m)
        in_cosine: The derivative of that in the cosines; ``None`` if the NTK does not count.

    Yields:
        Numbers of names, and changes.
    """
    layers = function.architecture.layers(function.width)
    (cell,), injection = layers.cells, layers.injection
    assert injection is not None
    recurrent, inputs, bias = (
        _Share.of(weights, function) for weights in (cell.weights, injection, cell.bias)
    )
    spread = float(injection.variance)
    squares = [spread * side.norm**2 for side in (block.rows, block.columns)]  # α and β
    scale = (squares[0].sqrt()[:, None] * squares[1].sqrt()).to(ck)
    product, through = scale * block.cosine, None if in_cosine is None else in_cosine / scale

    def moved(owns: Sequence[Tensor], pair: Tensor, growth: float) -> Change:
        """If α, β and γ grow by these: norms and cosines move with them, but c does not."""
        rows, columns = (own / (2 * s) for own, s in zip(owns, squares, strict=True))
        turn = pair / scale - block.cosine * (rows.to(ck)[:, None] + columns.to(ck))
        extra = None if through is None else (growth - inputs.value / spread) * pair * through
        return Change(rows, columns, turn, extra)

    def in_recurrent() -> Change:
        change = moved((block.rows.own, block.columns.own), ck, recurrent.growth)
        if through is None or change.ntk is None:
            return change
        shares = recurrent.value * ck + inputs.value / spread * product + bias.value
        return change._replace(ntk=change.ntk + shares * through**2)

    def in_injection() -> Change:
        rows, columns = (torch.full_like(s, 1 / (2 * spread)) for s in squares)
        share = (inputs.growth - inputs.value / spread) / spread
        return Change(rows, columns, None, None if through is None else share * product * through)

    def in_bias() -> Change:
        return moved([torch.ones_like(s) for s in squares], torch.ones_like(ck), bias.growth)

    ways = ((cell.weights, in_recurrent), (injection, in_injection), (cell.bias, in_bias))
    for number, name in enumerate(names):
        for weights, way in ways:
            if weights is not None and weights.field == name:
                yield number, way()


class _Share(NamedTuple):
    """How much weights count in the NTK, and how fast that grows with their variance."""

    value: float
    growth: float

    @classmethod
    def of(cls, weights: Weights | None, function: KernelFunction) -> "_Share":
        """None at all if they are not there, or not trained."""
        if weights is None or weights.group not in function.trainable:
            return cls(0.0, 0.0)
        return cls(float(weights.share), float(weights.tangent is None))

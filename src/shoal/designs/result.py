"""The result of a design."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import DEQ, Architecture, ImplicitNetwork
from shoal.core.figures import Figure, empty_figure
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction, kernel
from shoal.kernels.arguments import as_tensor, checked_samples

_REACH = 4.0  # in units of input_norm
_WAY = {"moments": "by moments", "sphere": "on the sphere"}
_COLORS = ("#0072B2", "#D55E00", "#009E73")


class Gap(NamedTuple):
    """The distance of two kernel matrices.

    Attributes:
        absolute: The spectral norm of their difference.
        relative: This over the spectral norm of the original's matrix.
    """

    absolute: float
    relative: float


@dataclass(frozen=True, repr=False)
class Design:
    """An explicit network designed to have the kernel of another one, both infinitely wide.

    Attributes:
        architecture: The designed network, for ``build``, ``kernel`` and everything else.
        function: The kernel function that was matched; its architecture is centered if ``method``
            is ``"moments"``.
        which: The matched kernel, ``"ck"`` or ``"ntk"``.
        method: ``"moments"`` or ``"sphere"``.
        input_norm: The norm of the inputs.
        target: The numbers to be matched, by name.
        obtained: The designed network's values of these numbers.
        residual: The largest remaining difference. For ``"moments"``: the difference of a
            coefficient, relative to it, or to 1e-4 of the diagonal if that is more. For
            ``"sphere"``: the difference of kernels of inputs whose angle has a cosine of at most
            0.95 in size, relative to the diagonal.
        errors: Other differences, by name, relative to the diagonal; for ``"moments"`` a bound of
            the relative error of the kernel matrix, for as many isotropic inputs as dimensions,
            many of both. It leaves out the terms that vanish with the dimension: at p = 1000 norms
            that vary may add as much and more, see :meth:`gap`.
        feasible: Whether a network of the wanted kind has the target's numbers. If not, this is the
            nearest one.
        explanation: A summary in sentences.
        family: The kind of network, for ``"moments"``.
        alternatives: Other networks of this kind that have the target's numbers.
    """

    architecture: Architecture
    function: KernelFunction
    which: str
    method: str
    input_norm: float
    target: Mapping[str, float] = field(hash=False)
    obtained: Mapping[str, float] = field(hash=False)
    residual: float
    errors: Mapping[str, float] = field(hash=False)
    feasible: bool
    explanation: str
    family: str = ""
    alternatives: tuple["Design", ...] = ()

    @property
    def original(self) -> Architecture:
        """The network whose kernel was matched."""
        return self.function.architecture

    @property
    def trainable(self) -> frozenset[str]:
        """Groups of the original's parameters that contribute to the matched NTK."""
        return self.function.trainable

    def __repr__(self) -> str:
        family = f", family={self.family!r}" if self.family else ""
        return (
            f"Design({self.architecture!r}, which={self.which!r}, method={self.method!r}{family}, "
            f"residual={self.residual:.1e}, feasible={self.feasible})"
        )

    def __str__(self) -> str:
        """The explanation, and the numbers as a table."""
        rows = [f"{'':24} {'target':>14} {'obtained':>14}"]
        rows += [f"{k:24} {v:14.8g} {self.obtained[k]:14.8g}" for k, v in self.target.items()]
        return "\n".join([self.explanation, *rows])

    @in_standard_settings
    def kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The matched kernel of the original and of the designed network on inputs.

        Args:
            x: Inputs, of shape (n, p): a tensor, or a NumPy array, and then so are the kernels.
        """
        checked_samples("x", as_tensor(x, "x"))
        both = kernel(self.function, x), kernel(self.architecture, x)
        first, second = (k.ck if self.which == "ck" else k.ntk for k in both)
        return first, second

    @in_standard_settings
    def gap(self, x: Tensor) -> Gap:
        r"""How far the kernel matrices of both networks are apart, by their exact kernels.

        Args:
            x: Inputs, of shape (n, p): a tensor, or a NumPy array.

        Example:
            >>> import shoal
            >>> x, _ = shoal.GaussianMixture.ling2024(400).sample(200, seed=0)
            >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
            >>> shoal.design(deq, input_norm=1.0, which="ck").gap(x).relative < 0.02
            True
        """
        inputs = checked_samples("x", as_tensor(x, "x"), batches=False).detach()
        original, designed = self.kernels(inputs)
        size, difference = (
            float(torch.linalg.eigvalsh(matrix).abs().max())
            for matrix in (original, original - designed)
        )
        return Gap(difference, difference / size if size else 0.0)

    def plot(self) -> Figure:
        """The activations of both networks (Ling 2024, Figure 2, left); the original's are dashed.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        figure = empty_figure(5.6, 4.2)
        axes = figure.subplots()
        x = torch.linspace(-_REACH, _REACH, 801, dtype=torch.float64) * self.input_norm
        for name, sigma in layer_activations(self.original):
            axes.plot(x, sigma(x), "--", color="#444444", label=name)
        designed = layer_activations(self.architecture)
        for (name, sigma), color in zip(designed, _COLORS, strict=False):
            axes.plot(x, sigma(x), color=color, label=f"designed, {name}")
        axes.set(xlabel="x", title=f"{self.which.upper()} design {_WAY[self.method]}")
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.legend(frameon=False)
        return figure


def layer_activations(architecture: Architecture) -> list[tuple[str, Activation]]:
    """The activations of a network, with the names of its layers."""
    if isinstance(architecture, ImplicitNetwork):
        return []
    cells = architecture.layers().cells
    if isinstance(architecture, DEQ) and len(cells) == 1:
        return [("DEQ", cells[0].activation)]
    return [(f"layer {i}", cell.activation) for i, cell in enumerate(cells, start=1)]

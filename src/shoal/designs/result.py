"""What a design is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import DEQ, Architecture, ImageArchitecture, ImplicitNetwork
from shoal.core.figures import Figure, empty_figure
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction, Kernels, kernel
from shoal.kernels.arguments import as_tensor, checked_samples
from shoal.networks import Network, empirical_kernel

_REACH = 4.0  # in units of input_norm
_WAY = {"moments": "by moments", "sphere": "on the sphere", "patches": "of images"}
_COLORS = ("#0072B2", "#D55E00", "#009E73")
_INPUTS = 32  # random ones, at which the kernels of a network are measured


class Gap(NamedTuple):
    """How far two kernel matrices are apart.

    Attributes:
        absolute: The spectral norm of their difference.
        relative: This over the spectral norm of the original's matrix.
    """

    absolute: float
    relative: float


class NetworkGap(NamedTuple):
    """How far a network's own kernels are from the limits of its architecture at infinite width.

    Attributes:
        ck: The spectral norm of the difference of the CK matrices, relative to the limit's.
        ntk: The same of the NTK.
    """

    ck: float
    ntk: float

    def __str__(self) -> str:
        return (
            f"The given network's own kernels, at {_INPUTS} random inputs of this norm, are "
            f"{self.ck:.2%} (CK) and {self.ntk:.2%} (NTK) away from these limits, in spectral "
            "norm: so far the design is from the network, whatever it has in common with the limit."
        )


@dataclass(frozen=True, repr=False)
class Design:
    """An explicit network designed to have the kernel of another one, both infinitely wide.

    Attributes:
        architecture: The designed network, for ``build``, ``kernel`` and all else.
        original: The network whose kernel was matched; centered if ``method`` is ``"moments"``.
        which: Which kernel was matched, ``"ck"`` or ``"ntk"``.
        method: ``"moments"``, ``"sphere"`` or ``"patches"``.
        input_norm: The norm of the inputs.
        trainable: The groups of the original's parameters that the wanted NTK counts.
        width: As for ``kernel_function``.
        target: The numbers that were to be matched, by name.
        obtained: What the designed network has instead of them.
        residual: The largest difference that is left. For ``"moments"``: of a coefficient, relative
            to it, or to 1e-4 of the diagonal if that is more. For ``"sphere"``: between the kernels
            of inputs whose angle has a cosine of at most 0.95 in size, relative to the diagonal.
            For ``"patches"``: between the kernels of images with random cosines, likewise.
        errors: Differences in other places, by name, relative to the diagonal; for ``"moments"``
            a bound of the relative error of the kernel matrix, for as many isotropic inputs as
            dimensions, many of both. It leaves out what vanishes with the dimension: at p = 1000
            norms that vary may add as much and more, see :meth:`gap`.
        feasible: Whether a network of the wanted kind has the target's numbers. If not, this is the
            nearest one.
        explanation: All of this in words.
        family: The kind of network, for ``"moments"``.
        alternatives: Other networks of this kind that have the target's numbers.
        network: Where a network was given, how far its own kernels are from those of its
            architecture at infinite width, of which all else speaks.
    """

    architecture: Architecture
    original: Architecture
    which: str
    method: str
    input_norm: float
    trainable: frozenset[str]
    width: int | None
    target: Mapping[str, float] = field(hash=False)
    obtained: Mapping[str, float] = field(hash=False)
    residual: float
    errors: Mapping[str, float] = field(hash=False)
    feasible: bool
    explanation: str
    family: str = ""
    alternatives: tuple["Design", ...] = ()
    network: NetworkGap | None = None

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
        first = kernel(self.original, x, trainable=self.trainable, width=self.width)
        return self._matched(first), self._matched(kernel(self.architecture, x))

    @in_standard_settings
    def gap(self, x: Tensor) -> Gap:
        r"""How far the kernel matrices of both networks are apart, by their exact kernels.

        Args:
            x: Inputs, of shape (n, p), or images: a tensor, or a NumPy array.

        Example:
            >>> import shoal
            >>> x, _ = shoal.GaussianMixture.ling2024(400).sample(200, seed=0)
            >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
            >>> shoal.design(deq, input_norm=1.0, which="ck").gap(x).relative < 0.02
            True
        """
        images = isinstance(self.original, ImageArchitecture)
        inputs = checked_samples("x", as_tensor(x, "x"), batches=images).detach()
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

    def _matched(self, kernels: Kernels) -> Tensor:
        return kernels.ck if self.which == "ck" else kernels.ntk


def network_gap(network: Network[Any], input_norm: float, function: KernelFunction) -> NetworkGap:
    """Compare the kernels of a network as it is with the limits of its architecture.

    Args:
        network: A network made by ``build``, trained or not.
        input_norm: The norm of the inputs, whose directions are random.
        function: The kernels of its architecture at infinite width.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_INPUTS, network.spec.in_features, generator=generator, dtype=torch.float64)
    x = input_norm * torch.nn.functional.normalize(x)
    own = next(network.parameters())
    found = empirical_kernel(network, x.to(own), trainable=function.trainable, process_group=None)
    limit = kernel(function, x)
    gaps = []
    for finite, wanted in zip(found, limit, strict=True):
        difference = finite.detach().cpu().double() - wanted
        sizes = [torch.linalg.eigvalsh(m).abs().max() for m in (difference, wanted)]
        gaps.append(float(sizes[0] / sizes[1]))
    return NetworkGap(*gaps)


def layer_activations(architecture: Architecture) -> list[tuple[str, Activation]]:
    """The activations of a network, with the names of its layers."""
    if isinstance(architecture, ImplicitNetwork):
        return []
    cells = architecture.layers().cells
    if isinstance(architecture, DEQ) and len(cells) == 1:
        return [("DEQ", cells[0].activation)]
    return [(f"layer {i}", cell.activation) for i, cell in enumerate(cells, start=1)]

"""How wide must a network be to be certified, and to be trained?"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from shoal.architectures import Architecture, ConvResNet
from shoal.architectures.base import ImplicitArchitecture
from shoal.certificates.certify import certify
from shoal.core import checks
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import as_tensor, checked_image_samples, checked_samples
from shoal.learning.problem import checked_labels
from shoal.networks import Network, build, empirical_kernel
from shoal.training import TrainingError, train

_NEGLIGIBLE = 1e-9  # a share of the NTK below this is rounding
_STEPS = 200  # of gradient descent


@dataclass(frozen=True)
class RequiredWidth:
    """The widths from which networks are certified, and from which they train.

    Attributes:
        certified: The smallest power of two from which on, up to ``largest_width``, all networks
            are certified by :func:`shoal.certify`; ``None`` if one of the widest is not.
        empirical: The same for gradient descent that keeps the promises of the theorems.
        largest_width: The largest width allowed.
        seeds: The number of networks of each width.
    """

    certified: int | None
    empirical: int | None
    largest_width: int
    seeds: int

    def __str__(self) -> str:
        rows = {"certified": self.certified, "trains": self.empirical}
        return "\n".join(
            f"{name:<10} {width or f'above {self.largest_width}'}" for name, width in rows.items()
        )


@in_standard_settings
def required_width(
    architecture: Architecture,
    x: Tensor,
    y: Tensor,
    *,
    readout_scale: float = 1.0,
    largest_width: int = 256,
    seeds: int = 8,
) -> RequiredWidth:
    r"""Measure how wide a network must be for gradient descent to train it.

    Networks of all powers of two up to the largest width are certified and trained, the widest
    first, until one of them fails.

    Args:
        architecture: An architecture that :func:`shoal.certify` has a theorem for.
        x: The training inputs, of shape (n, in_features); images for a ``ConvResNet``.
        y: The labels, of shape (n,) or (n, outputs).
        readout_scale: The factor of the readout at initialization, as for ``build``.
        largest_width: The largest width to try.
        seeds: The number of networks of each width; all must succeed.

    Returns:
        The two widths.

    Raises:
        TypeError: If an argument has the wrong type, or no theorem is known for the architecture.
        ValueError: If an argument is out of range.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> y = torch.tensor([0.1, -0.1]).double()
        >>> shoal.certificates.required_width(
        ...     shoal.ImplicitNetwork(0.1), x, y, readout_scale=0.0, largest_width=64, seeds=3
        ... )
        RequiredWidth(certified=32, empirical=32, largest_width=64, seeds=3)
    """
    if not isinstance(architecture, Architecture):
        kind = type(architecture).__name__
        hint = ": take its .architecture" if isinstance(architecture, Network) else ""
        raise TypeError(f"architecture must be an architecture such as a DEQ, got a {kind}{hint}")
    scale = checks.real("readout_scale", readout_scale)
    largest = checks.integer("largest_width", largest_width, at_least=2)
    seeds = checks.integer("seeds", seeds, at_least=1)
    inputs = _inputs(architecture, as_tensor(x, "x")).detach().double().cpu()
    labels = checked_labels("y", y, len(inputs)).detach().double().cpu()
    labels = labels[:, None] if labels.dim() == 1 else labels
    implicit = isinstance(architecture, ImplicitArchitecture)
    options: dict[str, Any] = {"on_failure": "status"} if implicit else {}
    if inputs.dim() > 2:
        options["pixel_axes"] = inputs.dim() - 2

    def network(width: int, seed: int) -> Network[Any]:
        return build(
            architecture,
            in_features=inputs.shape[1],
            width=width,
            out_features=labels.shape[1],
            seed=seed,
            dtype=torch.float64,
            readout_scale=scale,
            **options,
        )

    def smallest(succeeds: Callable[[Network[Any]], bool]) -> int | None:
        widths = [2**exponent for exponent in range(largest.bit_length() - 1, 0, -1)]
        passed = takewhile(
            lambda width: all(succeeds(network(width, seed)) for seed in range(seeds)), widths
        )
        return min(passed, default=None)

    return RequiredWidth(
        certified=smallest(lambda net: certify(net, inputs, labels).holds),
        empirical=smallest(lambda net: trains(net, inputs, labels)),
        largest_width=largest,
        seeds=seeds,
    )


def _inputs(architecture: Architecture, x: object) -> Tensor:
    if isinstance(architecture, ConvResNet):
        return checked_image_samples("x", x, architecture)
    inputs = checked_samples("x", x)
    if inputs.dim() != 2:
        raise ValueError(f"x must have shape (samples, features), got {tuple(inputs.shape)}")
    return inputs


def trains(net: Network[Any], x: Tensor, y: Tensor, *, steps: int = _STEPS) -> bool:
    """Train a network, and return whether it kept all promises of the theorems.

    The step size is one over the largest eigenvalue of the NTK at the start.

    Args:
        net: The network; its weights change.
        x: Inputs in its dtype.
        y: Labels, of shape (samples, outputs).
        steps: The number of steps.
    """
    layers = [group for group in net.groups if group.startswith("layer")]
    readouts = [group for group in net.groups if group in ("readout", "skip")] or layers[-1:]
    whole = empirical_kernel(net, x).ntk.detach()
    share = empirical_kernel(net, x, trainable=readouts).ntk.detach()
    least, largest = torch.linalg.eigvalsh(share)[0], torch.linalg.eigvalsh(whole)[-1]
    if not bool(least > _NEGLIGIBLE * largest):
        return False
    try:
        train(net, x, y, steps=steps, step_size="auto", on_violation="raise")
    except TrainingError:
        return False
    return True

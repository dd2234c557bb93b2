"""What is to be learned: a network with its inputs and labels."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from torch import Tensor

from shoal.activations.description import description
from shoal.core.checks import float_tensor
from shoal.core.files import checksum
from shoal.kernels.arguments import as_tensor
from shoal.learning.problem import checked_labels
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.module_inputs import ModuleInputs


class Problem(NamedTuple):
    """A network, and what it is trained on.

    Attributes:
        net: The network.
        x: Inputs, in its dtype.
        y: Labels, in its dtype, of shape (samples, outputs).
    """

    net: Network[Any]
    x: Tensor
    y: Tensor

    @classmethod
    def checked(cls, net: object, x: object, y: object) -> Self:
        """Take a network and its data as arguments, or say what is wrong with them."""
        if not isinstance(net, Network):
            raise TypeError(f"net must be a network made by shoal.build, got {type(net).__name__}")
        inputs = net.check_input(as_tensor(x, "x")).detach()
        labels = checked_labels("y", y, len(inputs)).detach()
        labels = float_tensor(f"y in {inputs.dtype}", labels.to(inputs))  # which may overflow
        labels = labels[:, None] if labels.dim() == 1 else labels
        if labels.shape[1] != net.spec.out_features:
            raise ValueError(
                "y must have shape (n,) or (n, outputs), with one column for each of the "
                f"network's {net.spec.out_features} outputs, got {tuple(labels.shape)}"
            )
        return cls(net, inputs, labels)

    def fingerprint(self) -> dict[str, str]:
        """Checksums of all that a certificate is about, and what is trained by which method.

        Numbers count, not their dtype: those of a network in float32 are the same in float64.
        """
        groups = self.net.groups.items()
        method: dict[str, str] = {}
        if isinstance(self.net, EquilibriumNetwork):
            options = self.net.options
            method["gradient method"] = description(options.gradient)
            method["solver"] = description(options.solver)
        return {
            **method,
            "architecture": description(self.net.architecture),
            "weights": _checksum(self.net.state_dict()),
            "trained groups": " ".join(sorted(n for n, p in groups if p.requires_grad)),
            "x": _checksum({"x": self.x}),
            "y": _checksum({"y": self.y}),
        }


def foreign_data(x: object, y: object) -> tuple[ModuleInputs, Tensor]:
    """Inputs and labels of a module of any kind, one for each sample."""
    inputs, targets = ModuleInputs.checked("x", x), as_tensor(y, "y")
    if not isinstance(targets, Tensor):
        raise TypeError(f"y must be a tensor or an array, got {type(targets).__name__}")
    if targets.is_floating_point():
        float_tensor("y", targets)
    if targets.shape[:1] != (len(inputs),):
        raise ValueError(
            f"y must have the same samples as x in its first dimension, {len(inputs)}, got shape "
            f"{tuple(targets.shape)}"
        )
    return inputs, targets.detach()


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    shapes = {name: repr(tuple(tensor.shape)) for name, tensor in tensors.items()}
    return checksum(shapes, {n: t.detach().double().cpu() for n, t in tensors.items()})

"""Activations by name: ``tanh``, or with arguments ``leakyrelu:0.1``."""

import dataclasses

from shoal.activations.affine import Affine
from shoal.activations.base import Activation
from shoal.activations.piecewise_polynomial import PiecewisePolynomial

__all__ = ["known_activations", "parse_activation"]


def known_activations() -> dict[str, type[Activation]]:
    """The activations that a name and a few numbers can mean, by their names in small letters."""
    from shoal import activations  # the package that holds this module

    found = (getattr(activations, name) for name in activations.__all__)
    return {
        value.__name__.lower(): value
        for value in found
        if isinstance(value, type)
        and issubclass(value, Activation)
        and value not in (Activation, Affine, PiecewisePolynomial)
    }


def parse_activation(text: str, *, argument: str = "activation") -> Activation:
    """The activation of a name, with numbers after a colon where it takes some.

    Args:
        text: The name in letters of any size, and the numbers.
        argument: What errors call it.

    Raises:
        ValueError: If the name is unknown, or the numbers do not suit it.

    Example:
        >>> parse_activation("tanh"), parse_activation("leakyrelu:0.1")
        (Tanh(), LeakyReLU(slope=0.1))
        >>> parse_activation("hermite:0,1,0.5")
        Hermite(coefficients=(0.0, 1.0, 0.5), scale=1.0)
    """
    name, colon, rest = text.partition(":")
    kinds = known_activations()
    kind = kinds.get(name.strip().lower())
    if kind is None:
        raise ValueError(f"{argument} must be one of {', '.join(sorted(kinds))}, got {name!r}")
    try:
        numbers = tuple(float(part) for part in rest.split(",")) if colon else ()
    except ValueError:
        raise ValueError(
            f"{argument} must have numbers after its colon, as in leakyrelu:0.1, got {text!r}"
        ) from None
    fields = [field.name for field in dataclasses.fields(kind)]
    try:
        return kind(numbers) if "coefficients" in fields and numbers else kind(*numbers)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        takes = ", ".join(fields) if fields else "no numbers"
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise ValueError(f"{argument} {name} takes {takes}, got {text!r}{reason}") from None

"""Activations that are finite Hermite series."""

from shoal.activations import Activation, Affine, Hermite

__all__ = ["as_series"]


def as_series(phi: Activation) -> Hermite | None:
    """The activation as a Hermite series, if it is one up to scale and shift."""
    if isinstance(phi, Hermite):
        return phi
    if isinstance(phi, Affine):
        inner = as_series(phi.activation)
        if inner is not None:
            first, *rest = (phi.scale * s for s in inner.coefficients)
            return Hermite((first + phi.shift, *rest), inner.scale)
    return None

r"""Closed forms of means and duals, as far as activations know them."""

import torch
from torch import Tensor

from shoal.activations import Activation, ClosedForm
from shoal.activations.base import is_ours
from shoal.activations.consistency import innermost
from shoal.core.caches import cached
from shoal.gaussian.mixed import mixed_dual
from shoal.gaussian.smoothing import smoothed

_VARIANCES = (0.4, 1.0, 2.3)
_COSINES = (-0.8, 0.0, 0.3, 0.95)
_AGREEMENT = 1e-8  # relative to the mean squares


def closed_form(phi: Activation) -> ClosedForm | None:
    """The closed form of an activation, or ``None``; that of a user is checked first."""
    inner = innermost(phi)
    if not is_ours(type(inner)):
        _check(inner)
    return phi.closed_form()


def closed_dual(form: ClosedForm, order: int, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    r"""$D_{jj}$, j = ``order``."""
    return form.derivative_dual(a, b, c) if order else form.dual(a, b, c)


@cached
def _check(phi: Activation) -> None:
    """Compare the closed form of a user with quadrature, once."""
    given: object = phi.closed_form()
    if given is None:
        return
    if not isinstance(given, ClosedForm):
        raise TypeError(f"closed_form of {phi!r} must return a ClosedForm or None, got {given!r}")
    v = torch.tensor(_VARIANCES, dtype=torch.float64)
    a, b, cosine = (
        t.flatten()
        for t in torch.meshgrid(v, v, torch.tensor(_COSINES, dtype=torch.float64), indexing="ij")
    )
    c = cosine * a.sqrt() * b.sqrt()
    integrals = [mixed_dual(phi, order, order, a, b, c) for order in (0, 1)]
    duals = [closed_dual(given, order, a, b, c) for order in (0, 1)]
    pairs = zip(
        ("mean", "dual", "derivative_dual"),
        [given.mean(v), *duals],
        [smoothed(phi, torch.zeros_like(v), v), *integrals],
        strict=True,
    )
    for name, found, exact in pairs:
        scale = 1 + float(exact.abs().max())
        difference = float((found - exact).abs().max())
        if not difference <= _AGREEMENT * scale:
            raise ValueError(
                f"{name} of the closed_form of {phi!r} must be that of the function, and differs "
                f"from its integral by {difference:.3g} at variances from 0.4 to 2.3"
            )

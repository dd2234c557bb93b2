"""Gaussian expectations that activations know in closed form; these need tensors alone."""

from shoal.activations.closed_forms.base import AffineForm, ClosedForm
from shoal.activations.closed_forms.elementary import (
    ArcCosineForm,
    CosineForm,
    ErfForm,
    GELUForm,
    IdentityForm,
    SineForm,
    SinusoidForm,
)
from shoal.activations.closed_forms.piecewise_linear import PiecewiseLinear

__all__ = [
    "AffineForm",
    "ArcCosineForm",
    "ClosedForm",
    "CosineForm",
    "ErfForm",
    "GELUForm",
    "IdentityForm",
    "PiecewiseLinear",
    "SineForm",
    "SinusoidForm",
]

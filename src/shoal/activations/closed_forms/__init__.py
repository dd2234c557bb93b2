"""Gaussian expectations that activations know in closed form; these need tensors alone."""

from shoal.activations.closed_forms.base import AffineForm, ClosedForm
from shoal.activations.closed_forms.elementary import (
    ArcCosineForm,
    ErfForm,
    GELUForm,
    SinusoidForm,
)

__all__ = [
    "AffineForm",
    "ArcCosineForm",
    "ClosedForm",
    "ErfForm",
    "GELUForm",
    "SinusoidForm",
]

"""The section on high dimension: the equivalents of the kernels, and how far they are from them."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

import shoal
from shoal.pages.figures import COLORS
from shoal.pages.findings import Findings, Row
from shoal.report.kernels import draw_eigenvalues
from shoal.report.section import Section, Subject, of_each, of_kernels

_ROUNDING = 1e-15
_FAR = 0.2  # of a kernel: its equivalent is another one
_NUMBERS = (
    *("tau", "shift", "gamma2", "alpha1", "alpha2", "alpha3", "alpha4"),
    *("kappa2", "beta1", "beta2", "beta3"),
)
_STYLES = ((COLORS[1], "-"), (COLORS[2], "--"))


def _find(subject: Subject) -> Findings:
    equivalent = shoal.equivalent(subject.architecture, subject.x)
    c = equivalent.coefficients
    exact = shoal.kernel(c.architecture, subject.x)
    errors = [
        _size(k - e.to_dense()) / _size(k)
        for k, e in zip(exact, (equivalent.ck, equivalent.ntk), strict=True)
    ]
    spread = equivalent.statistics.norm_spread
    told = tuple(_contradicted(errors))
    away = of_kernels(errors[0], errors[1], ".2g")
    rows = (
        Row("shift of the activation", f"{c.shift:.4g}", "centers it; all below is centered"),
        Row("on inner products", _both(c.alpha1, c.beta1), "α1, β1"),
        Row("on norms", _both(c.alpha2, c.beta2), "α2, β2"),
        Row("on squared inner products", _both(c.alpha3, c.beta3), "α3, β3"),
        Row("spread of squared norms", f"{spread:.2g}", "relative; the theory wants it small"),
        Row(
            "error of the equivalents",
            away,
            "in spectral norm, relative to the kernel",
            contradicted=bool(told),
        ),
    )
    numbers = {name: getattr(c, name) for name in _NUMBERS}
    numbers |= {"norm_spread": spread, "ck_error": errors[0], "ntk_error": errors[1]}
    spectra = {
        "NTK, centered": torch.linalg.eigvalsh(exact.ntk),
        "its equivalent": equivalent.ntk.eigvalsh(),
    }
    return Findings(
        rows,
        numbers,
        partial(draw_eigenvalues, spectra=spectra, styles=_STYLES),
        warnings=told,
        fine=() if told else (f"The equivalents are near their kernels: {away}, relative.",),
        remedy="Use the kernel itself; inputs of one norm are nearer to the theory.",
    )


def _contradicted(errors: Sequence[float]) -> Iterator[str]:
    """A warning if an equivalent is not the kernel of these data."""
    found = dict(zip(("CK", "NTK"), errors, strict=True))
    if far := {name: f"{error:.0%}" for name, error in found.items() if not error <= _FAR}:
        yield (
            f"The equivalent is {of_each(far)} away from the kernel: these data are not in the "
            "high-dimensional regime, and the coefficients do not describe their kernel."
        )


def _both(ck: float, ntk: float) -> str:
    """Two coefficients; what is zero but for rounding is zero."""
    ck, ntk = (value if abs(value) > _ROUNDING else 0.0 for value in (ck, ntk))
    return of_kernels(ck, ntk)


def _size(matrix: Tensor) -> float:
    """The spectral norm of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(matrix.double()).abs().max())


EQUIVALENTS = Section("equivalents", "High-dimensional equivalents", _find)

"""Warnings of mixtures whose spectrum is not that of the kernels or of the data."""

import math
import warnings

from shoal.mixtures import GaussianMixture

__all__ = ["warn_of_misfits"]

_FAR = 0.25  # relative: where the expansion around one norm stops to be useful
_BIASED = 0.25  # relative difference of tr C², of which sampling errors are a few percent


def warn_of_misfits(mixture: GaussianMixture) -> None:
    """Say where a mixture is not what the theory is about, or its covariances are biased."""
    statistics = mixture.statistics
    shares, inner = mixture.proportions, statistics.mean_products.value
    norms = statistics.traces.value + inner.diagonal()
    mean = float(shares @ norms)
    spread = math.sqrt(max(0.0, float(shares @ (norms - mean).square()))) / mean
    if spread > _FAR:
        _warn(
            f"the mean squared norms of the classes of mixture vary by {spread:.0%}, and the "
            "equivalents assume that they hardly vary"
        )
    share = float(shares @ inner @ shares) / mean
    if share > _FAR:
        _warn(
            f"the mean of mixture has {share:.0%} of the mean squared norm, and the equivalents "
            "assume nearly orthogonal inputs: subtract the mean"
        )
    if mixture.estimates is not None:
        _warn_of_bias(mixture)


def _warn_of_bias(mixture: GaussianMixture) -> None:
    """Compare the fitted covariances with what is known of the true ones without bias."""
    estimated = mixture.trace_products.diagonal()
    for name, covariance, value in zip(
        mixture.classes, mixture.covariances, estimated.tolist(), strict=True
    ):
        own = covariance.inner(covariance) / mixture.dimension
        if abs(own - value) > _BIASED * max(own, value):
            _warn(
                f"the fitted covariance C of class {name!r} has tr C²/p = {own:.3g}, but that of "
                f"the data is {value:.3g}: with few samples for the dimension its eigenvalues are "
                "too far apart, and in a form that is too simple not enough; the spectrum is "
                "that of the fitted covariance"
            )
            return


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)

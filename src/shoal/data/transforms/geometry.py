"""Preprocessings of samples as vectors: their form, mean, norms and directions."""

from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.checks import real, seeded
from shoal.data.dataset import Dataset, check_dataset, float_samples

_PARALLEL = 1e-6  # the sine of the angle below which samples count as parallel
_BLOCK = 1024  # rows of the Gram matrix at a time
_ROUNDS = 20


def flatten(dataset: Dataset) -> Dataset:
    """Turn each sample into a vector; ``image_shape`` remembers what it was.

    Args:
        dataset: Of samples of any shape.

    Example:
        >>> import torch
        >>> from shoal import data
        >>> x = torch.zeros(2, 1, 4, 4)
        >>> data.flatten(data.Dataset(x, torch.zeros(2), "black", image_shape=(1, 4, 4)))
        Dataset('black', 2 samples of shape 16, float32, real targets)
    """
    return replace(check_dataset(dataset), x=dataset.x.flatten(1))


def center(dataset: Dataset, *, mean: Tensor | None = None) -> Dataset:
    """Subtract the mean sample.

    Args:
        dataset: Of floating-point samples.
        mean: What to subtract instead, of the shape of a sample: the mean of the training samples,
            if these are test samples.

    Raises:
        TypeError: If ``mean`` is no tensor.
        ValueError: If ``mean`` has another shape.

    Example:
        >>> from shoal import data
        >>> points = data.center(data.two_gaussians(10, 16, seed=0))
        >>> bool(points.x.mean(0).abs().max() < 1e-6)
        True
    """
    x = float_samples(dataset)
    if mean is None:
        mean = x.mean(0)
    elif not isinstance(mean, Tensor):
        raise TypeError(f"mean must be a tensor, got {type(mean).__name__}")
    elif mean.shape != x.shape[1:]:
        raise ValueError(f"mean must have shape {tuple(x.shape[1:])}, got {tuple(mean.shape)}")
    return replace(dataset, x=x - mean.to(x))


def scale_norm(dataset: Dataset, norm: float) -> Dataset:
    r"""Scale each sample to one Euclidean norm, such as the $\sqrt d$ of Ling 2023.

    Args:
        dataset: Of floating-point samples.
        norm: The norm, positive.

    Raises:
        ValueError: If a sample is zero or not finite, or ``norm`` not positive or too large for the
            dtype.

    Example:
        >>> from shoal import data
        >>> data.scale_norm(data.two_gaussians(3, 16, seed=0), 4.0).x.norm(dim=1).round(decimals=4)
        tensor([4., 4., 4.])
    """
    x = float_samples(dataset)
    real("norm", norm, above=0.0)
    directions, _ = _polar(dataset.name, x.flatten(1).double())
    scaled = (norm * directions).to(x.dtype)
    if not bool(scaled.isfinite().all()):
        raise ValueError(f"norm must not be too large for {x.dtype}, got {norm:g}")
    return replace(dataset, x=scaled.reshape(x.shape))


def unit_norm(dataset: Dataset) -> Dataset:
    """Scale each sample to Euclidean norm 1, as Gao 2022 assumes.

    Args:
        dataset: Of floating-point samples.

    Raises:
        ValueError: If a sample is zero or not finite.
    """
    return scale_norm(dataset, 1.0)


def perturb_parallel(dataset: Dataset, *, seed: int, scale: float = 0.01) -> Dataset:
    """Turn samples that are parallel to earlier ones, by Gaussian noise, and keep their norms.

    Gao 2022 needs samples no two of which are parallel, opposite ones included, and adds noise to
    one of each such pair. Here a pair counts as parallel if the sine of its angle is below 1e-6.
    The first of several parallel samples stays as it is; all others are turned by an angle of about
    ``scale``. Nothing changes if no two are parallel.

    Args:
        dataset: Of floating-point samples, none of them zero.
        seed: Of the noise.
        scale: The standard deviation of the noise, relative to the root mean square of a sample.

    Raises:
        ValueError: If a sample is zero or not finite, if the samples have a single entry, so that
            all are parallel, or if ``scale`` is too small to part them.

    Example:
        >>> import torch
        >>> from shoal import data
        >>> twins = data.Dataset(torch.ones(2, 3), torch.zeros(2), "twins")
        >>> parted = data.perturb_parallel(twins, seed=0).x
        >>> bool((parted[0] == 1).all()), bool((parted[1] == 1).any())
        (True, False)
    """
    x = float_samples(dataset)
    real("scale", scale, above=0.0)
    generator = seeded("seed", seed)
    rows = x.flatten(1).to(torch.float64, copy=True)  # it is written to below
    _, norms = _polar(dataset.name, rows)
    if rows.shape[1] == 1:
        raise ValueError("dataset must have samples of at least two entries: numbers are parallel")
    for _ in range(_ROUNDS):
        # what is returned is rounded to the dtype of x, so this is what must not be parallel
        directions, _ = _polar(dataset.name, rows.to(x.dtype).double())
        turned = _parallel_to_earlier(directions)
        if len(turned) == 0:
            return replace(dataset, x=rows.to(x.dtype).reshape(x.shape))
        noise = torch.randn(
            len(turned), rows.shape[1], generator=generator, dtype=torch.float64, device="cpu"
        )
        moved = rows[turned] / norms[turned] + noise.to(rows) * scale / rows.shape[1] ** 0.5
        rows[turned] = moved * (norms[turned] / moved.norm(dim=1, keepdim=True))
    raise ValueError(f"scale must be large enough to part parallel samples, got {scale:g}")


def _polar(name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of norm 1 and, as a column, what their norms were; none may be zero or not finite."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    for what, wrong in (("zero", largest == 0), ("NaN or infinite", ~largest.isfinite())):
        if bool(wrong.any()):
            first = int(torch.nonzero(wrong[:, 0])[0])
            raise ValueError(f"dataset must have no {what} sample, got one at {first} in {name!r}")
    # so that no square overflows or vanishes, and by a power of two, so that nothing is rounded
    power = largest / (2 * torch.frexp(largest).mantissa)
    scaled = rows / power
    lengths: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / lengths, power * lengths


def _parallel_to_earlier(directions: Tensor) -> Tensor:
    """The indices of unit rows that are parallel to one before them."""
    found = []
    for start in range(0, len(directions), _BLOCK):
        block = directions[start : start + _BLOCK]
        cosines = (block @ directions[: start + len(block)].T).abs()
        parallel = (1 - cosines) * (1 + cosines) < _PARALLEL**2
        found.append(parallel.tril(start - 1).any(1))
    return torch.nonzero(torch.cat(found))[:, 0]

"""A page on which a deep equilibrium model can be changed interactively.

The page computes by itself, from tables and a summary of the data in a few hundred numbers.
Spectra, training curves and learning curves depend on the data through the eigenvalues of the
inputs' second moment, and through how much of the target's variance is linear along each of its
directions; all else of the target is noise to the linear part of a kernel.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from shoal.app import output
from shoal.app.inputs import PreparedData

TESTED = 1e-6
"""The tested error of the page's kernels, relative to the diagonal."""

NUMERICS = ("series.js", "activations.js", "kernel.js", "twin.js", "spectrum.js")
"""The scripts that compute, in the order in which they stand on the page."""
SCRIPTS = (*NUMERICS, "state.js", "plot.js", "panels.js", "phase.js", "controls.js")
"""All scripts."""


@dataclass(frozen=True)
class Population:
    """A summary of inputs and targets; lengths are in units of the root mean square norm.

    Attributes:
        name: The name of the data.
        size: The dimension p.
        samples: The number of samples, or ``None`` for a model.
        values: Eigenvalues of p times the second moment, in increasing order, with mean one.
        shares: The share of the directions with each eigenvalue.
        signal: The share of the target's variance that is linear along them.
        noise: The remaining share.
        norms: Quantiles of the norms, from the least to the largest.
        target: A description of the target.
        notes: Sentences on the data.
    """

    name: str
    size: int
    samples: int | None
    values: tuple[float, ...]
    shares: tuple[float, ...]
    signal: tuple[float, ...]
    noise: float
    norms: tuple[float, ...]
    target: str
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: _rounded(value) for name, value in vars(self).items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def two_classes(size: int = 1000) -> Population:
    """Two classes of one covariance; their distance is set on the page."""
    return Population(
        name="two classes",
        size=size,
        samples=None,
        values=(1.0,),
        shares=(1.0,),
        signal=(0.0,),
        noise=1.0,
        norms=(1.0,),
        target="the class",
    )


def summarize(data: PreparedData) -> Population:
    """Summarize data with centered columns.

    The linear part of the target is estimated by regression on the principal components, less the
    share that as many random components would explain.

    Example:
        >>> import torch
        >>> from shoal.app.inputs import PreparedData
        >>> x = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
        >>> [round(value, 6) for value in summarize(PreparedData(x)).values]
        [0.2, 1.8]
    """
    x = data.x.flatten(1).double()
    n, p = x.shape
    norms = x.norm(dim=1)
    scale = float(norms.square().mean().sqrt())
    if scale == 0:
        raise ValueError(f"data must not be zero everywhere, got {data.name}")
    components, sizes, _ = torch.linalg.svd(x / scale, full_matrices=False)
    values = sizes.square() * p / n
    rank = int((values > 1e-10 * values[0]).sum())  # the other components are any vectors
    linear, noise, target = _linear_part(data, components[:, :rank])
    padded = torch.zeros(p, dtype=torch.float64)
    padded[:rank] = values[:rank]
    signal = torch.zeros_like(padded)
    signal[:rank] = linear
    if data.y is None:  # a linear function without a preferred direction
        signal = padded / padded.sum()
    grouped = _grouped(padded.flip(0), signal.flip(0))
    return Population(
        name=data.name,
        size=p,
        samples=n,
        values=grouped[0],
        shares=grouped[1],
        signal=grouped[2],
        noise=noise,
        norms=tuple((norms / scale).quantile(torch.linspace(0, 1, 41).double()).tolist()),
        target=target,
        notes=data.notes,
    )


def _linear_part(data: PreparedData, components: Tensor) -> tuple[Tensor, float, str]:
    """The part of the target's variance along each component, the rest, and its name."""
    n, rank = components.shape
    if data.y is None:
        return torch.zeros(rank, dtype=torch.float64), 0.0, "a random linear function"
    y = data.targets().double().reshape(n, -1)
    y = y - y.mean(0)
    total = y.square().sum()
    if total == 0:
        return torch.zeros(rank, dtype=torch.float64), 1.0, "a constant"
    explained = (components.T @ y).square().sum(1) / total
    unexplained = max(0.0, 1 - float(explained.sum()))
    by_chance = unexplained / max(n - rank, 1)  # share of the noise along each component
    linear = (explained - by_chance).clamp(min=0.0)
    words = f"{len(data.classes)} classes" if data.classes else "the target"
    return linear, max(0.0, 1 - float(linear.sum())), words


def _grouped(values: Tensor, signal: Tensor) -> tuple[tuple[float, ...], ...]:
    """Increasing eigenvalues: the 48 largest one by one, the others in at most 96 groups."""
    p = len(values)
    few = min(p, 48)
    cuts = torch.linspace(0, p - few, min(96, p - few) + 1).round().long().tolist()
    bounds = sorted({*cuts, *range(p - few, p + 1)})
    pieces = [slice(low, high) for low, high in pairwise(bounds)]
    return (
        tuple(float(values[piece].mean()) for piece in pieces),
        tuple((piece.stop - piece.start) / p for piece in pieces),
        tuple(float(signal[piece].sum()) for piece in pieces),
    )


def script(name: str) -> str:
    """The text of a script."""
    return (files("shoal.app") / "scripts" / name).read_text(encoding="utf-8")


def explorer_page(
    population: Population,
    *,
    activation: str = "tanh",
    recurrent_variance: float = 0.2,
    input_variance: float = 0.8,
    command: str | None = None,
) -> str:
    """The explorer as an HTML page that refers to nothing outside of itself."""
    page = output.template("explorer.html")
    from markupsafe import Markup

    tables = stored_tables()
    if activation not in tables["activations"]:
        names = ", ".join(tables["activations"])
        raise ValueError(f"activation must be one of {names}, got {activation!r}")
    start = {"activation": activation, "recurrent": recurrent_variance, "input": input_variance}
    document = {"tables": tables, "population": population.document(), "start": start}
    return page.render(
        population=population,
        command=command,
        versions=output.versions(),
        activations=list(tables["activations"]),
        error=f"{max(table['error'] for table in tables['activations'].values()):.0e}",
        tested=f"{TESTED:.0e}",
        numbers=Markup(_embedded(document)),
        scripts=[Markup(script(name)) for name in SCRIPTS],
    )


def _embedded(document: Any) -> str:
    """JSON inside a script element, which nothing in it can end."""
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def stored_tables() -> dict[str, Any]:
    """The tables of the package, which ``docs/explorer_tables.py`` computes.

    They are ``scales``, ``unit``, and ``activations`` by their names: Chebyshev series of the dual
    of the derivative, and of Hermite coefficients.
    """
    text = (files("shoal.app") / "tables.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables

"""What the high-dimensional theory needs of a mixture, with the errors of its estimates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.asymptotics.covariances import Covariance
from shoal.asymptotics.labels import Class


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """Numbers and their standard errors, of one shape; what is known has errors of zero.

    Attributes:
        value: The numbers, in float64 on the CPU.
        error: The standard error of each.

    Example:
        >>> import torch
        >>> Estimate(torch.tensor([1.0, 2.0]), torch.tensor([0.01, 0.2]))
        Estimate([1 ± 0.01, 2 ± 0.2])
    """

    value: Tensor
    error: Tensor

    def __repr__(self) -> str:
        return f"Estimate({_written(self.value.tolist(), self.error.tolist())})"


def _written(value: object, error: object) -> str:
    if isinstance(value, list) and isinstance(error, list):
        return f"[{', '.join(map(_written, value, error))}]"
    return f"{value:.4g} ± {error:.1g}"


@dataclass(frozen=True, eq=False)
class MixtureStatistics:
    r"""The numbers by which a mixture enters the theory of Ling 2024, section 3.1.

    In its convention, $\sqrt p\,x \sim N(\mu_a, C_a)$, and $C^\circ$ is the mean of the $C_a$ with
    the weights of the classes.

    Attributes:
        classes: The labels of the classes.
        dimension: $p$.
        proportions: The weights of the classes, of sum 1.
        traces: $\operatorname{tr} C_a / p$.
        input_norm_squared: $\tau_0^2 = \operatorname{tr} C^\circ / p$.
        trace_deviations: $t_a = \operatorname{tr}(C_a - C^\circ) / \sqrt p$.
        trace_products: $T_{ab} = \operatorname{tr}(C_a C_b) / p$.
        mean_products: $\mu_a^\top \mu_b / p$.
        mean_distances: $\|\mu_a - \mu_b\|^2 / p$.
        norm_excess: By how much $p \operatorname{Var} \|x - E x\|^2$ exceeds $2 T_{aa}$, its value
            for a Gaussian. Data whose norms fluctuate more than the mixture's have a positive one.
    """

    classes: tuple[Class, ...]
    dimension: int
    proportions: Tensor
    traces: Estimate
    input_norm_squared: Estimate
    trace_deviations: Estimate
    trace_products: Estimate
    mean_products: Estimate
    mean_distances: Estimate
    norm_excess: Estimate

    @property
    def input_norm(self) -> Estimate:
        r"""$\tau_0$, with its error to first order."""
        value, error = self.input_norm_squared.value.sqrt(), self.input_norm_squared.error
        # where it is zero, nothing varies
        return Estimate(value, torch.where(value > 0, error / (2 * value), error))


def known_statistics(
    classes: tuple[Class, ...],
    means: Tensor,
    covariances: tuple[Covariance, ...],
    proportions: Tensor,
) -> MixtureStatistics:
    """The statistics of a mixture whose parameters are known."""
    dimension = means.shape[1]
    traces = torch.tensor([c.trace() / dimension for c in covariances], dtype=torch.float64)
    pairs = {
        (a, b): covariances[a].inner(covariances[b]) / dimension
        for a in range(len(covariances))
        for b in range(a + 1)
    }
    products = torch.tensor(
        [[pairs[max(a, b), min(a, b)] for b in range(len(means))] for a in range(len(means))],
        dtype=torch.float64,
    )
    inner = means @ means.T / dimension
    own = inner.diagonal()
    mean_trace = proportions @ traces
    return MixtureStatistics(
        classes=classes,
        dimension=dimension,
        proportions=proportions,
        traces=_exact(traces),
        input_norm_squared=_exact(mean_trace),
        trace_deviations=_exact((traces - mean_trace) * dimension**0.5),
        trace_products=_exact(products),
        mean_products=_exact(inner),
        mean_distances=_exact((own[:, None] + own - 2 * inner).clamp_min(0.0)),
        norm_excess=_exact(torch.zeros_like(traces)),
    )


def _exact(value: Tensor) -> Estimate:
    return Estimate(value, torch.zeros_like(value))

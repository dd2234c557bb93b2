"""Kernel matrices beside their equivalents, and as the paper estimates them by one network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.architectures import DEQ
from shoal.kernels import Kernels
from shoal.lab.claims import Claim, near_printed
from shoal.networks import EquilibriumNetwork
from shoal.reproductions.ling2024.setting import (
    PAPER_GROUPS,
    Kind,
    difference_norm,
    equivalent_of,
    matrix_norm,
)

__all__ = ["Comparison", "equivalent_claim", "estimated_kernels"]


@dataclass(frozen=True)
class Comparison:
    """What is compared: spectral norms of differences, and eigenvalues.

    Args:
        kind: Which kernel.
        forms: The forms of the equivalent; the first decides where the DEQ of the estimate and of
            the eigenvalues is centered.
        width: Of the network that the kernel is estimated by.
    """

    kind: Kind
    forms: tuple[str, ...]
    width: int

    def arrays(
        self,
        deq: DEQ,
        x: Tensor,
        labels: Tensor,
        *,
        seed: int,
        mixture: shoal.GaussianMixture | None = None,
    ) -> dict[str, Any]:
        """Errors with exact and estimated kernels, the noise of the estimate, and eigenvalues.

        ``exact_FORM`` and ``estimate_FORM`` are absolute errors of equivalents, ``noise`` is the
        norm of the difference of the two kernels and ``size`` that of the exact one.
        """
        found: dict[str, Any] = {}
        exact, estimate, centered = torch.empty(0), torch.empty(0), None
        for form in self.forms:
            eq = equivalent_of(form, deq, x, labels, mixture=mixture)
            operator = getattr(eq, self.kind)
            architecture = shoal.centered(deq, tau0=eq.coefficients.tau0)
            assert isinstance(architecture, DEQ)  # centering shifts the activation alone
            matrix = exact
            if architecture != centered:
                matrix = getattr(shoal.kernel(architecture, x, trainable=PAPER_GROUPS), self.kind)
            if form == self.forms[0]:
                exact, centered = matrix, architecture
                estimate = self._estimate(architecture, x, seed)
                found["size"] = matrix_norm(exact)
                found["noise"] = matrix_norm(estimate - exact)
                found["equivalent"] = operator.eigvalsh()
            found[f"exact_{form}"] = difference_norm(matrix, operator.__matmul__)
            if architecture == centered:
                found[f"estimate_{form}"] = difference_norm(estimate, operator.__matmul__)
        found["exact"] = torch.linalg.eigvalsh(exact)
        found["estimate"] = torch.linalg.eigvalsh(estimate)
        return {key: _array(value) for key, value in found.items()}

    def _estimate(self, architecture: DEQ, x: Tensor, seed: int) -> Tensor:
        kernels = estimated_kernels(architecture, x, width=self.width, seed=seed)
        matrix: Tensor = getattr(kernels, self.kind)
        return matrix


def _array(value: Tensor | float) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else np.array(value)


def estimated_kernels(deq: DEQ, x: Tensor, *, width: int, seed: int) -> Kernels:
    r"""$G^*$ estimated by $z_i^\top z_j$, and $K^* = G^*/(1 - \sigma_a^2 \dot E^*)$ likewise.

    $\dot E^*_{ij}$, the expectation of $\varphi'(u)\varphi'(v)$, is the mean over the units. This
    is not the NTK of the finite network (:func:`shoal.empirical_kernel`), but what section 4 and
    the caption of figure 4 describe.

    Args:
        deq: The DEQ, centered.
        x: Inputs of shape (n, p).
        width: Of the network; $2^{12}$ in the paper.
        seed: Of its weights.
    """
    network = shoal.build(
        deq, in_features=x.shape[1], width=width, seed=seed, dtype=x.dtype, device=x.device
    )
    assert isinstance(network, EquilibriumNetwork)  # it is a DEQ
    with torch.no_grad():
        z = network.solve(x).value
        recurrent = network.get_parameter("recurrent")
        arguments = deq.recurrent_variance**0.5 * (z @ recurrent.T) + network.inject(x)
        slopes = deq.activations[0].derivative(arguments)
    ck = z @ z.T
    spread = deq.recurrent_variance / width * (slopes @ slopes.T)
    return Kernels(ck, ck / (1 - spread))


def equivalent_claim(
    kind: Kind,
    place: str,
    printed: Mapping[str, float],
    found: Mapping[str, float],
    ours: str,
    remark: str,
) -> Claim:
    """That equivalents are as far from a kernel as printed: Figure 5 for the CK, 6 for the NTK."""
    return Claim(
        f"Error of the {kind.upper()} equivalents: ReLU, Tanh, {place}",
        ", ".join(f"{value:.2f}" for value in printed.values()),
        ours,
        f"Ling 2024, Figure {5 if kind == 'ck' else 6}",
        near_printed(found, printed),
        remark=remark,
    )

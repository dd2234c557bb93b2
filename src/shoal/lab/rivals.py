"""A DEQ, its designs, and the networks that one might take instead."""

from torch import Tensor

import shoal
from shoal.architectures import DEQ, Architecture
from shoal.core.caches import cached

TITLES = {
    "deq": "DEQ",
    "ntk-design": "NTK design",
    "ck-design": "CK design",
    "moments": "CK design by moments",
    "naive": "the same activation, one layer",
    "naive2": "the same activation, two layers",
}


@cached
def designed(architecture: Architecture, match: str, method: str) -> shoal.Design:
    """The design for inputs of norm 1, made once.

    Args:
        architecture: What is imitated.
        match: ``"ck"`` or ``"ntk"``.
        method: ``"moments"`` or ``"sphere"``.
    """
    return shoal.design(architecture, tau0=1.0, match=match, method=method)


def rival(name: str, deq: DEQ) -> Architecture:
    """A network to be compared with a DEQ, for inputs of norm 1.

    Args:
        name: ``"deq"``: the DEQ itself. ``"ntk-design"``, ``"ck-design"``: one layer that has its
            NTK or CK on the sphere. ``"moments"``: one or two ordinary layers with the
            high-dimensional coefficients of its CK (Ling 2024, Examples 3.10 and 3.11).
            ``"naive"``, ``"naive2"``: one or two layers with its activation as it is.
        deq: The DEQ.
    """
    if name == "deq":
        return deq
    if name in ("ntk-design", "ck-design"):
        return designed(deq, name.removesuffix("-design"), "sphere").architecture
    if name == "moments":
        return designed(deq, "ck", "moments").architecture
    # without what centering made of them
    plain = (phi.activation if isinstance(phi, shoal.Affine) else phi for phi in deq.activations)
    return shoal.FullyConnected((*plain,) * (2 if name == "naive2" else 1))


def wide_kernels(name: str, deq: DEQ, x: Tensor) -> shoal.Kernels:
    r"""The kernels of a rival of infinite width, all weights being trained, for ``x`` of norm 1.

    Those of the designs on the sphere are kernels of the DEQ, which are computed much faster. One
    layer with the CK $g(c)$ has the NTK $g + c g'$; for the DEQ,
    $c g' = \sigma_b^2 c \dot E/(1 - \sigma_a^2 \dot E)$ is the share of the input weights. So the
    CK design has the NTK of the DEQ whose recurrent weights are frozen. (The CK returned for the
    NTK design is the DEQ's too, which the design does not have.)
    """
    if name == "ntk-design":
        return shoal.kernel(deq, x)
    if name == "ck-design":
        return shoal.kernel(deq, x, trainable={"readout", "input"})
    return shoal.kernel(rival(name, deq), x)

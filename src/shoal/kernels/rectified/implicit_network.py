r"""Kernels of the implicit network of Gao 2022 at infinite width.

Its feature map $\phi = m^{-1/2}\sigma(Wx + b)$ is a cell, which sees the covariance $x^\top x' +
\beta$ and has the kernel $G$ of slope $\dot G$. The equilibrium is $z = m^{-1/2}\sigma(\gamma g +
r)$ with $r = \sigma(w^\top x + b)$ and a Gaussian $g$ of covariance $P = z^\top z'$, so that $P$ is
a fixed point of $P \mapsto \Psi(\theta, \gamma^2 P)$ (see
:mod:`shoal.kernels.rectified.integrals`) times the norms of $(x, \sqrt\beta)$ and $(x',
\sqrt\beta)$, whose angle is $\theta$. With $\dot E = \Psi_q$ and $F = \Psi_\rho$ there, the CK is
$P + G$, and the NTK is a sum over the trained groups: $P$ (readout), $G$ (skip), $\gamma^2 P \dot E
/ (1 - \gamma^2\dot E)$ (recurrent), and $F / (1 - \gamma^2\dot E) + \dot G$ times $x^\top x'$
(input) or $\beta$ (bias). Without biases they are together the limit of the paper's $H$.
"""

from typing import Any

from shoal.activations import ReLU
from shoal.architectures import ImplicitNetwork
from shoal.kernels.function import KernelFunction, kernels_in
from shoal.kernels.rectified.integrals import equilibrium
from shoal.kernels.recursions import Network


@kernels_in.register
def implicit_network_kernels(
    architecture: ImplicitNetwork, calculus: Any, function: KernelFunction
) -> Network[Any]:
    """Both kernels in a calculus."""
    bias = dict(function.variances).get("bias_variance", architecture.bias_variance)
    start, _ = calculus.start(gated=False)
    seen = calculus.combine([(1.0, start)], bias)
    feature, slope = calculus.push(ReLU(), seen, mean=False)
    angle, norms = calculus.angle(seen)
    unit = equilibrium(architecture.gamma, angle)
    state, turn = norms * unit.state, architecture.gamma**2 * unit.active
    through = calculus.geometric(turn)
    entering = unit.passed * through + slope()
    shares = {
        "readout": state,
        "skip": calculus.covariance(feature),
        "recurrent": turn * through * state,
        "input": calculus.covariance(start) * entering,
        "bias": bias * entering,
    }
    ntk = sum((shares[group] for group in sorted(function.trainable)), 0.0 * state)
    return Network(state + shares["skip"], ntk, feature)

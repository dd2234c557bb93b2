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

from dataclasses import replace
from typing import Any

from shoal.activations import ReLU
from shoal.architectures import ImplicitNetwork
from shoal.kernels.calculi.jets import Jets, Taylor
from shoal.kernels.calculi.own import Variances
from shoal.kernels.calculi.power_series import Number, PowerSeries
from shoal.kernels.function import KernelFunction, kernels_in
from shoal.kernels.rectified.integrals import Equilibrium, equilibrium
from shoal.kernels.rectified.series import equilibrium_series
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
    unit, norms = _equilibrium(architecture.gamma, calculus, seen)
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
    if isinstance(feature, Variances):
        feature = replace(feature, argument=architecture.gamma**2 * state + feature.values)
    return Network(state + shares["skip"], ntk, feature)


def _equilibrium(gamma: float, calculus: Any, seen: Any) -> tuple[Equilibrium[Any], Any]:
    """The equilibrium for inputs of norm one, and its factor."""
    if isinstance(calculus, PowerSeries):
        place = float(seen.covariance.coefficients[0]) / seen.variance
        found = equilibrium_series(gamma, calculus.degree, place=place)
        return Equilibrium(*map(Number, found)), seen.variance
    if isinstance(calculus, Jets):
        cosine, norms = calculus.cosine(seen)
        rest = 1 - cosine.value
        found = equilibrium_series(gamma, 2, place=cosine.value)
        steps = (Taylor(f[0], f[1] / rest, 2 * f[2] / rest**2) for f in found)
        return Equilibrium(*map(cosine.mapped, steps)), norms
    angle, norms = calculus.angle(seen)
    return equilibrium(gamma, angle), norms

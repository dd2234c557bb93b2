"""What is known about the training of implicit networks: those there are, and random ones."""

import math

from shoal.architectures import ImplicitNetwork
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.certificate import Certificate, Conclusion
from shoal.certificates.certify import Question, certify_architecture
from shoal.certificates.equilibrium_networks import EquilibriumGeometry, measure_equilibrium
from shoal.certificates.evidence.enclosures import least_singular_value, spectral_norm
from shoal.certificates.evidence.equilibrium import NotContractingError
from shoal.certificates.evidence.rounding import down, norm_upper, up
from shoal.certificates.papers.gao2022 import ImplicitBounds, InputBounds, lemma_3_5
from shoal.certificates.refusals import not_contracting
from shoal.certificates.width import NO_ROOM, Draw, Law, random_networks
from shoal.networks.implicit_network import ImplicitNetworkModule

SHARPER = "shoal's theorem for implicit networks"


@certify_architecture.register
def certify_implicit(architecture: ImplicitNetwork, question: Question) -> Certificate:
    """The lemmas of Gao 2022, and the sharper theorem."""
    net, x, y, step_size = question
    assert isinstance(net, ImplicitNetworkModule)
    root = 1 / math.sqrt(net.spec.width)
    scales = dict.fromkeys(net.groups, 1.0) | {"recurrent": net.layer.scale}
    try:
        measured = measure_equilibrium(net, x, y, scales, rectified_scale=root)
    except NotContractingError as error:
        return not_contracting(error.gain, SHARPER)
    sharper = sharper_conclusions(EquilibriumGeometry(measured), SHARPER, step_size=step_size)
    recurrent = spectral_norm(net.recurrent)
    injected = least_singular_value(measured.injection.value.T, error=measured.injection.error)
    bounds = ImplicitBounds(
        gamma=architecture.gamma,
        width=net.spec.width,
        recurrent_norm=recurrent,
        input_weight_norm=measured.input_weight_norm,
        readout_norm=max(measured.readout_norm, measured.skip_norm),
        gram=down(injected * injected),
        error=measured.error,
        skip_trained=measured.scales["skip"] > 0,
    )
    numbers = {
        "norm of A / sqrt(m)": recurrent * root,
        "norm of W / sqrt(m)": measured.input_weight_norm * root,
        "gain of the recurrent layer": measured.equilibrium.weight_norm,
        "initial error": measured.error,
        "lambda_min(G(0))": injected * injected,
        "lambda_min of all features": measured.singular_value * measured.singular_value,
    }
    return Certificate(sharper + lemma_3_5(bounds, InputBounds(x)), numbers)


@random_networks.register
def implicit_law(architecture: ImplicitNetwork, draw: Draw) -> Law:
    """The lemmas of Gao 2022 for random weights."""
    x, y, failure, scale = draw.x, draw.y, draw.failure / 4, abs(draw.readout_scale)
    t = math.sqrt(2 * math.log(1 / failure))
    inputs = InputBounds(x)
    size = norm_upper(x)

    def law(width: int) -> tuple[Conclusion, ...]:
        root = math.sqrt(width)
        recurrent, first = 2 * root + t, root + math.sqrt(x.shape[1]) + t
        gain = architecture.gamma * recurrent / root
        mapped = first * size / root
        features = mapped / max(1 - gain, NO_ROOM) + mapped
        output = scale * features * math.sqrt(2 * y.shape[1] / failure)
        bounds = ImplicitBounds(
            gamma=architecture.gamma,
            width=width,
            recurrent_norm=recurrent,
            input_weight_norm=first,
            readout_norm=scale * root * math.sqrt(y.shape[1]),
            gram=up(inputs.least * 3 / 4),  # rounded down, it would fail at every width
            error=norm_upper(y) + output,
            skip_trained=True,
        )
        return lemma_3_5(bounds, inputs)

    return law

"""What is known about the training of implicit networks."""

from shoal.architectures import ImplicitNetwork
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.certificate import Certificate
from shoal.certificates.certify import Question, certify_architecture
from shoal.certificates.evidence.equilibrium import NotContractingError
from shoal.certificates.evidence.rounding import down
from shoal.certificates.implicit import ImplicitGeometry, measure_implicit
from shoal.certificates.papers.gao2022 import ImplicitBounds, InputBounds, lemma_3_5
from shoal.certificates.refusals import not_contracting
from shoal.networks.implicit_network import ImplicitNetworkModule

__all__ = ["certify_implicit"]

SHARPER = "shoal's theorem for implicit networks"


@certify_architecture.register
def certify_implicit(architecture: ImplicitNetwork, question: Question) -> Certificate:
    """The lemmas of Gao 2022, and the sharper theorem."""
    net, x, y, step_size = question
    assert isinstance(net, ImplicitNetworkModule)
    try:
        measured = measure_implicit(net, x, y)
    except NotContractingError as error:
        return not_contracting(error.gain, SHARPER)
    sharper = sharper_conclusions(ImplicitGeometry(measured), SHARPER, step_size=step_size)
    bounds = ImplicitBounds(
        gamma=architecture.gamma,
        width=net.spec.width,
        recurrent_norm=measured.recurrent_norm,
        input_weight_norm=measured.input_weight_norm,
        readout_norm=max(measured.readout_norms),
        gram=down(measured.skip_value * measured.skip_value),
        error=measured.error,
        skip_trained=measured.scales["skip"] > 0,
    )
    conclusions = sharper + lemma_3_5(bounds, InputBounds(x))
    numbers = {
        "norm of A / sqrt(m)": measured.recurrent_norm * measured.inverse_root,
        "norm of W / sqrt(m)": measured.input_weight_norm * measured.inverse_root,
        "gain of the recurrent layer": measured.equilibrium.weight_norm,
        "initial error": measured.error,
        "lambda_min(G(0))": measured.skip_value * measured.skip_value,
        "lambda_min of all features": measured.stacked_value * measured.stacked_value,
    }
    return Certificate(conclusions, numbers)

"""The theorems of Ling 2023 and Gao 2022, printed and corrected, against second transcriptions."""

import math

import pytest
import torch

import shoal
from certificates.networks import conclusion, data, ling2023, sphere

# Proved norms exceed computed ones by a part in 10^4, and enter in powers.
OVERESTIMATE = 5e-4


def test_theorem_1_of_ling_2023_is_evaluated_as_it_is_written() -> None:
    """Its conditions from a second, naive transcription in floating point."""
    x, y = sphere(2, 0.1)
    net = ling2023(1000, readout_scale=0.0)
    found = conclusion(shoal.certify(net, x, y), "corrected", "gradient descent")
    delta = found.promises.travel["readout"]
    with torch.no_grad():
        features, error = net.features(x), float((net(x)[:, 0] - y).norm())
    least = float(torch.linalg.svdvals(features)[-1]) ** 2
    norms = [
        float(torch.linalg.matrix_norm(net.groups[g].detach(), 2)) + delta
        for g in ("recurrent", "input", "readout")
    ]
    gap = 1 - norms[0]
    c = [norms[1] * norms[2] / gap**2, norms[2] / gap, norms[1] / gap]
    size = float(x.norm())
    c1, c2 = sum(v**2 for v in c) * size**2, (c[0] ** 2 + c[1] ** 2) * size**2
    step = found.step_size or 0
    expected = {
        "(7)": least / (4 / delta * max(c) * size * error),
        "(8)": least**1.5 / (4 * (2 + math.sqrt(2)) / norms[2] * c2 * error),
        "(9), corrected": least / (4 * c2 + 2 * step * c1**2),
        "(10)": 2 / least / step,
    }
    assert {k.name: k.margin for k in found.conditions} == pytest.approx(expected, rel=OVERESTIMATE)
    assert found.rate == pytest.approx(1 - step * least / 2, rel=1e-6)


def test_the_population_gram_matrix_is_reported() -> None:
    x, y = sphere(3, 0.1)
    net = ling2023(1000)
    numbers = shoal.certify(net, x, y).measurements
    kernel = float(torch.linalg.eigvalsh(shoal.kernel(net.architecture, x).ck)[0])
    assert numbers["lambda_*"] == pytest.approx(kernel)
    assert numbers["lambda_0 / m"] == pytest.approx(kernel, rel=5 / 1000**0.5)
    assert numbers["lambda_0 / (m lambda_* / 2)"] > 1  # Theorem 2


def test_the_repaired_lemma_of_gao_2022_is_evaluated_as_it_is_written() -> None:
    x, y = data(3, 10, norm=1.0, label=1e-5)
    width = 500
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=width,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, x, y)
    found = conclusion(certificate, "corrected", "gradient flow")
    assert found.status == "proved"
    cosines = (x @ x.T).clamp(-1, 1)
    gram = shoal.gaussian.dual(
        shoal.activations.ReLU(), torch.ones(()).double(), torch.ones(()).double(), cosines
    )
    least = float(torch.linalg.eigvalsh(gram)[0])
    norms = [
        float(torch.linalg.matrix_norm(net.groups[g].detach(), 2)) for g in ("recurrent", "input")
    ]
    root, error = math.sqrt(width), float(y.norm())
    c, size = max(norms) / root, float(torch.linalg.matrix_norm(x, 2)) ** 2
    travel = math.sqrt(3) * error / least
    margins = {k.name: k.margin for k in found.conditions}
    assert margins["W, Gram"] == pytest.approx(
        root / (192 * c * size * travel / least), rel=OVERESTIMATE
    )
    assert margins["A, norm"] == pytest.approx(root / (8 * travel / c), rel=OVERESTIMATE)
    assert margins["readouts"] == pytest.approx(root / (4 * c * travel), rel=OVERESTIMATE)
    assert margins["gamma"] == pytest.approx(1 / (4 * c) / 0.1, rel=OVERESTIMATE)
    assert found.rate == pytest.approx(least, rel=1e-6)


@pytest.mark.thorough("activation1", "activation2", "activation4", "activation5")
@pytest.mark.parametrize(
    ("activation", "covered"),
    [
        (shoal.activations.Tanh(), True),
        (shoal.activations.Affine(shoal.activations.Sigmoid(), 4.0, -2.0), True),
        (shoal.activations.Affine(shoal.activations.Sigmoid(), 1.0, -0.1), False),
        (
            shoal.activations.Affine(shoal.activations.Softplus(), 1.0, -math.log(2)),
            False,
        ),  # log 2 is no float
        (
            shoal.activations.Affine(
                shoal.activations.Affine(shoal.activations.Sigmoid(), 1.0, 1e-17), 1.0, -0.5
            ),
            False,
        ),
        (
            shoal.activations.Affine(shoal.activations.Swish(), 1 / 1.0998393194),
            False,
        ),  # its slope is 1 + 2e-11
    ],
)
def test_theorem_1_of_ling_2023_is_for_what_is_exactly_zero_at_zero(
    activation: shoal.Activation, covered: bool
) -> None:
    """Values that round to zero are not, and slopes that round to one may exceed it."""
    deq = shoal.DEQ(activation, 0.001, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=64, readout_scale=0.0, dtype=torch.float64)
    theorems = {c.theorem for c in shoal.certify(net, *sphere(2, 0.1)).conclusions}
    assert ("Ling 2023, Theorem 1" in theorems) == covered

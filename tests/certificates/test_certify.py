"""Certificates against actual runs: what is promised is kept, and refusals are deserved."""

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from certificates.networks import data, descend, ling2023, sphere
from shoal.certificates import Certificate, Conclusion


def conclusion(certificate: Certificate, form: str, dynamics: str) -> Conclusion:
    (found,) = (c for c in certificate.conclusions if (c.form, c.dynamics) == (form, dynamics))
    return found


def keep_promises(
    net: Any, x: torch.Tensor, y: torch.Tensor, found: Conclusion, steps: int
) -> None:
    """Train, and check all that was promised at every step."""
    start = {g: p.detach().clone() for g, p in net.groups.items()}
    recurrent = net.layer.scale
    assert found.step_size is not None
    assert found.rate is not None
    bound = None
    for k in range(steps):
        value = descend(net, x, y, found.step_size)
        bound = value if bound is None else bound * found.rate
        assert value <= bound * (1 + 1e-9) + 1e-25
        if k % 5:
            continue
        for group, p in net.groups.items():
            gone = float((p.detach() - start[group]).norm())
            assert gone <= found.promises.travel[group]
        gain = float(torch.linalg.matrix_norm(net.recurrent.detach(), 2)) * recurrent
        assert gain <= (found.promises.gain or 0)
        with torch.no_grad():
            features = net.features(x)
            if not isinstance(net.architecture, shoal.DEQ):
                features = torch.cat([features, net.inject(x)], 1)
            least = float(torch.linalg.svdvals(features)[-1])
        assert least >= (found.promises.singular_value or 1e9)


@pytest.mark.parametrize(
    ("width", "readout_scale", "label"), [(300, 0.0, 0.1), (500, 0.0, 1.0), (500, 0.2, 0.2)]
)
def test_a_proved_certificate_of_a_deq_is_kept(
    width: int, readout_scale: float, label: float
) -> None:
    x, y = sphere(2, label)
    net = ling2023(width, readout_scale=readout_scale)
    certificate = shoal.certify(net, x, y)
    assert certificate.holds
    assert certificate.status == "proved"
    assert certificate.first_failure is None
    assert all(condition.margin >= 1 for condition in certificate.conditions)
    keep_promises(net, x, y, certificate.gradient_descent, steps=21)


def test_a_proved_certificate_of_an_implicit_network_is_kept() -> None:
    x, y = data(2, 10, norm=1.0, label=0.1)
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=300,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    keep_promises(net, x, y, certificate.gradient_descent, steps=21)


def test_a_smooth_network_of_ordinary_size_is_certified() -> None:
    x, y = sphere(2, 1.0)
    deq = shoal.DEQ(shoal.Tanh(), 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=1000, seed=0, dtype=torch.float64)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "holds at the measured values"  # hyperbolic tangents are rounded
    keep_promises(net, x, y, certificate.gradient_descent, steps=5)


def test_several_outputs_and_the_parametrization_of_ling_2024() -> None:
    x, _ = sphere(3, 1.0)
    y = 0.05 * torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    deq = shoal.DEQ(shoal.ReLU(), 0.002, 0.2)
    net = shoal.build(
        deq, in_features=10, width=800, out_features=2, readout_scale=0.0, dtype=torch.float64
    )
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    found = certificate.gradient_descent
    first = descend(net, x, y, found.step_size or 0)
    assert descend(net, x, y, found.step_size or 0) <= (found.rate or 0) * first


def test_a_trained_readout_alone_is_least_squares() -> None:
    x, y = sphere(4, 1.0)
    net = ling2023(200, weight_variance=0.05, trainable={"readout"})
    found = shoal.certify(net, x, y).gradient_descent
    assert found.status == "proved"
    with torch.no_grad():
        values = torch.linalg.svdvals(net.features(x)).square()
    assert found.step_size == pytest.approx(0.9 / float(values[0]), rel=1e-3)
    assert found.rate == pytest.approx((1 - 0.9 * float(values[-1] / values[0])) ** 2, rel=1e-2)
    first = [descend(net, x, y, found.step_size or 0) for _ in range(5)]
    assert all(b <= (found.rate or 0) * a for a, b in pairwise(first))


def test_a_frozen_readout_is_refused() -> None:
    x, y = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(300, trainable={"recurrent", "input"}), x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert certificate.first_failure.remedy == "train the readout"


def test_a_step_ten_times_too_large_is_refused_and_diverges() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(500, readout_scale=0.0)
    good = shoal.certify(net, x, y)
    assert good.step_size is not None
    again = shoal.certify(net, x, y, step_size=good.step_size)
    assert again.step_size == good.step_size
    bad = shoal.certify(net, x, y, step_size=10 * good.step_size)
    assert not bad.holds
    assert bad.step_size is None
    assert bad.rate is None
    assert bad.first_failure is not None
    assert bad.first_failure.name == "step size"
    assert "smaller step" in bad.explanation
    losses = [descend(net, x, y, 10 * good.step_size) for _ in range(4)]
    assert losses[-1] > losses[0]


def test_recurrent_weights_that_are_too_large_are_refused() -> None:
    x, y = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(200, weight_variance=0.3), x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "contraction"
    assert certificate.first_failure.value > 1


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_parallel_inputs_are_refused(factor: float) -> None:
    x, y = sphere(3, 0.1)
    x[1] = factor * x[0]
    certificate = shoal.certify(ling2023(300, readout_scale=0.0), x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert "parallel" in certificate.first_failure.remedy
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=300,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    implicit = shoal.certify(net, x, y)
    assert not implicit.holds
    parallel = conclusion(implicit, "corrected", "gradient flow").conditions[0]
    assert parallel.name == "not parallel"
    assert not parallel.holds


def test_eq_9_of_ling_2023_fails_at_every_width() -> None:
    """Both sides grow like the width: the margin does not."""
    x, y = sphere(2, 1.0)
    margins = []
    for width in (100, 300, 900):
        certificate = shoal.certify(ling2023(width), x, y)
        printed = conclusion(certificate, "printed", "gradient descent")
        nine = next(c for c in printed.conditions if c.name == "(9)")
        assert not nine.holds
        margins.append(nine.margin)
        assert printed.status == "not established"
    assert max(margins) < 0.05
    assert margins[2] < 2 * margins[0]


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
    assert {k.name: k.margin for k in found.conditions} == pytest.approx(expected, rel=2e-3)
    assert found.rate == pytest.approx(1 - step * least / 2, rel=1e-6)


@pytest.mark.slow
def test_the_known_case_of_ling_2023_is_proved_by_its_own_conditions() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(4000, readout_scale=0.0)
    certificate = shoal.certify(net, x, y)
    found = conclusion(certificate, "corrected", "gradient descent")
    assert found.status == "proved"
    assert 1.1 < found.margin < 1.6
    assert certificate.gradient_descent.form == "sharper"
    assert (certificate.rate or 1) < (found.rate or 0)
    keep_promises(net, x, y, found, steps=3)


def test_the_lemmas_of_gao_2022_contradict_each_other() -> None:
    x, y = data(3, 10, norm=1.0, label=1.0)
    for width in (100, 1000):
        net = shoal.build(
            shoal.ImplicitNetwork(0.1), in_features=10, width=width, dtype=torch.float64
        )
        printed = conclusion(shoal.certify(net, x, y), "printed", "gradient flow")
        upper, lower = printed.conditions[-2:]
        assert upper.relation == "<="
        assert lower.relation == ">="
        assert upper.bound < lower.bound  # of the same number
        assert not (upper.holds and lower.holds)


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
        shoal.ReLU(), torch.ones(()).double(), torch.ones(()).double(), cosines
    )
    least = float(torch.linalg.eigvalsh(gram)[0])
    norms = [
        float(torch.linalg.matrix_norm(net.groups[g].detach(), 2)) for g in ("recurrent", "input")
    ]
    root, error = math.sqrt(width), float(y.norm())
    c, size = max(norms) / root, float(torch.linalg.matrix_norm(x, 2)) ** 2
    travel = math.sqrt(3) * error / least
    margins = {k.name: k.margin for k in found.conditions}
    assert margins["W, Gram"] == pytest.approx(root / (192 * c * size * travel / least), rel=2e-3)
    assert margins["A, norm"] == pytest.approx(root / (8 * travel / c), rel=2e-3)
    assert margins["readouts"] == pytest.approx(root / (4 * c * travel), rel=2e-3)
    assert margins["gamma"] == pytest.approx(1 / (4 * c) / 0.1, rel=2e-3)
    assert found.rate == pytest.approx(least, rel=1e-6)


def test_flow_and_descent_are_told_apart() -> None:
    x, y = sphere(2, 1.0)
    net = ling2023(1000)
    certificate = shoal.certify(net, x, y)
    assert certificate.gradient_flow.status == "proved"
    assert not certificate.holds
    assert "Gradient flow is (proved" in certificate.explanation
    rate = certificate.gradient_flow.rate or 0
    run = shoal.train(
        net, x, y, method="flow", steps=4, step_size=0.5 / rate, certificate=certificate
    )
    for time, value in enumerate(run.losses.tolist()):
        assert value <= math.exp(-0.5 * time) * run.losses[0] * (1 + 1e-6)


def test_the_population_gram_matrix_is_reported() -> None:
    x, y = sphere(3, 0.1)
    net = ling2023(1000)
    numbers = shoal.certify(net, x, y).measurements
    kernel = float(torch.linalg.eigvalsh(shoal.kernel(net.architecture, x).ck)[0])
    assert numbers["lambda_*"] == pytest.approx(kernel)
    assert numbers["lambda_0 / m"] == pytest.approx(kernel, rel=0.15)
    assert numbers["lambda_0 / (m lambda_* / 2)"] > 1  # Theorem 2


def test_arrays_and_single_precision() -> None:
    x, y = sphere(2, 0.1)
    single = shoal.build(
        shoal.DEQ.ling2023(0.001, 10),
        in_features=10,
        width=500,
        readout_scale=0.0,
        dtype=torch.float32,
    )
    certificate = shoal.certify(single, x.float(), y.float())
    assert certificate.status == "proved"
    same = shoal.certify(single, x.float().numpy(), y.float().numpy())
    assert same.to_dict() == certificate.to_dict()
    text = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert text["holds"] is True
    assert text["conclusions"][0]["conditions"][0]["name"] == "contraction"
    assert "proved" in str(certificate)


def test_labels_that_are_already_fitted_need_nothing() -> None:
    x, _ = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(100, readout_scale=0.0), x, torch.zeros(2).double())
    assert certificate.status == "proved"


@pytest.mark.parametrize(
    ("inputs", "labels", "failure"),
    [
        (1.0, 1e300, "remainder"),
        (1e150, 1.0, "travel"),
        (1e-150, 1.0, "remainder"),
        (0.0, 1.0, "rank"),
    ],
)
def test_extreme_numbers_get_an_answer(inputs: float, labels: float, failure: str) -> None:
    x, y = sphere(3, 1.0)
    certificate = shoal.certify(ling2023(60), inputs * x, labels * y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == failure
    assert failure in str(certificate)


def test_more_samples_than_units_have_no_rank() -> None:
    x, y = sphere(5, 0.1)
    certificate = shoal.certify(ling2023(4, readout_scale=0.0), x, y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "rank"


@pytest.mark.parametrize("groups", [{"skip"}, {"readout"}, {"readout", "input"}, {"recurrent"}])
def test_what_is_trained_counts(groups: set[str]) -> None:
    x, y = data(2, 10, norm=1.0, label=0.01)
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=200,
        readout_scale=0.0,
        trainable=groups,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, x, y)
    if groups == {"recurrent"}:
        assert certificate.first_failure is not None
        assert certificate.first_failure.name == "readout"
    else:
        assert certificate.status == "proved"
        first = descend(net, x, y, certificate.step_size or 0)
        assert descend(net, x, y, certificate.step_size or 0) <= (certificate.rate or 0) * first


@pytest.mark.parametrize("architecture", [shoal.ImplicitNetwork(0.1), shoal.DEQ.ling2023(0.001, 2)])
@pytest.mark.parametrize("number", [1e-310, 1e160, 1e300])
def test_readouts_of_any_size_get_an_honest_answer(
    architecture: shoal.DEQ | shoal.ImplicitNetwork, number: float
) -> None:
    """No step size underflows to one that is not positive, and nothing overflows."""
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    net = shoal.build(architecture, in_features=2, width=8, dtype=torch.float64)
    with torch.no_grad():
        net.get_parameter("readout").fill_(number)
    certificate = shoal.certify(net, x, y)
    for found in certificate.conclusions:
        assert found.step_size is None or found.step_size > 0
    assert number < 1 or not certificate.holds


def test_a_network_of_zeros_has_no_rank() -> None:
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    net = shoal.build(shoal.ImplicitNetwork(0.1), in_features=2, width=8, dtype=torch.float64)
    with torch.no_grad():
        for weights in net.groups.values():
            weights.zero_()
    certificate = shoal.certify(net, x, y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "rank"
    assert not conclusion(certificate, "corrected", "gradient flow").holds


def test_inputs_of_zero_are_never_certified() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(100, readout_scale=0.0)  # its outputs are zero forever, whatever is trained
    certificate = shoal.certify(net, 0 * x, y)
    assert not any(found.holds for found in certificate.conclusions)
    assert certificate.first_failure is not None
    assert certificate.first_failure.relation == "<"  # found 0, needed < 0
    assert certificate.first_failure.needed == "< 0"


def test_remedies_mend() -> None:
    x, y = sphere(3, 1.0)
    refused = shoal.certify(ling2023(200), x, y).first_failure
    assert refused is not None
    assert refused.remedy.startswith("a zero readout (readout_scale=0) with smaller labels")
    assert shoal.certify(ling2023(200, readout_scale=0.0), x, 0.1 * y).holds
    x[1] = 2 * x[0]
    net = ling2023(200, readout_scale=0.0)
    refused = shoal.certify(net, x, 0.01 * y).first_failure
    assert refused is not None
    assert "perturbed, merged or removed" in refused.remedy
    noise = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert shoal.certify(net, x + 0.3 * noise, 0.01 * y).holds
    assert shoal.certify(net, x[1:], 0.01 * y[1:]).holds


def test_subclasses_of_the_relu_prove_nothing() -> None:
    class Mine(shoal.ReLU):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return super().function(x)

    x, y = sphere(2, 0.1)
    deq = shoal.DEQ(Mine(), 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=100, readout_scale=0.0, dtype=torch.float64)
    assert shoal.certify(net, x, y).status != "proved"


def test_eq_10_of_ling_2023_is_whole_where_it_is_printed() -> None:
    x, y = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(100, readout_scale=0.0), x, y, step_size=0.01)
    printed, corrected = (
        next(
            c
            for c in conclusion(certificate, form, "gradient descent").conditions
            if "10" in c.name
        )
        for form in ("printed", "corrected")
    )
    assert printed.bound < corrected.bound


def test_bad_arguments_are_named() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(50)
    with pytest.raises(TypeError, match="net must be"):
        shoal.certify(shoal.ReLU(), x, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="y must have shape"):
        shoal.certify(net, x, y[:1])
    with pytest.raises(ValueError, match=r"y must have shape .* got \(\)"):
        shoal.certify(net, x, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must have entries up to 1e\\+152"):
        shoal.certify(net, 1e160 * x, y)
    broken = ling2023(50)
    with torch.no_grad():
        broken.readout[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"net\.readout must be finite"):
        shoal.certify(broken, x, y)
    with pytest.raises(ValueError, match="y must be finite"):
        shoal.certify(net, x, y * math.nan)
    with pytest.raises(ValueError, match="x must have shape"):
        shoal.certify(net, x[:, :3], y)
    with pytest.raises(ValueError, match="step_size must be > 0"):
        shoal.certify(net, x, y, step_size=0.0)
    with pytest.raises(TypeError, match="must be float32 or float64"):
        shoal.certify(net, np.ones((2, 10), dtype=int), y)  # type: ignore[arg-type]
    gated = shoal.FullyConnected((shoal.Tanh(),), norm_gated=True)
    other = shoal.build(gated, in_features=10, width=50, dtype=torch.float64)
    with pytest.raises(TypeError, match="no theorem"):
        shoal.certify(other, x, y)

"""The sections of an analysis, against closed forms and computations of other kinds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from oracles.standard_errors import assert_near_mean
from shoal.app.inputs import Inputs, load_inputs
from shoal.app.kernel_sections import DESIGN, SPECTRUM
from shoal.app.network_sections import ACCURACY, CERTIFICATE, PREDICTION, TRAINING
from shoal.app.report import SECTIONS, Analysis, find
from shoal.app.rivals import rival
from shoal.app.sections import Findings, Section, Subject, learnable, on_sphere

DEQ = shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8)


def numbers_of(findings: Findings) -> Mapping[str, Any]:
    assert isinstance(findings, Findings)
    assert findings.error is None
    return findings.numbers


def numbers(section: Section, subject: Subject) -> Mapping[str, Any]:
    return numbers_of(section.find(subject))


def subject_of(x: torch.Tensor, architecture: shoal.Architecture = DEQ, **labels: Any) -> Subject:
    return Subject(architecture, Inputs(x, name="points", **labels))


def test_the_limit_of_white_data_is_the_marchenko_pastur_law() -> None:
    n, p = 300, 30
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, p, dtype=torch.float64, generator=generator)
    x = torch.linalg.qr(x - x.mean(0)).Q  # a covariance that is a multiple of the identity
    x = x * (n / p) ** 0.5  # rows of mean squared norm one
    linear = shoal.FullyConnected([shoal.activations.Identity()])
    found = numbers(SPECTRUM, subject_of(x, linear))["ck"]
    size = n / (n - 1)  # of the covariance, which is estimated without bias
    assert found["upper_end"] == pytest.approx(size * (1 + (n / p) ** 0.5) ** 2, rel=1e-6)
    assert found["atom_mass"] == pytest.approx(1 - p / n)
    assert found["largest"] == pytest.approx(n / p, rel=1e-9)
    assert found["spikes"] == 0


def test_gaussian_data_have_the_predicted_spectrum() -> None:
    generator = torch.Generator().manual_seed(0)
    distances = []
    for n in (100, 900):
        x = torch.randn(n, 20, dtype=torch.float64, generator=generator)
        x = x - x.mean(0)
        x /= x.square().sum(1).mean().sqrt()
        linear = shoal.FullyConnected([shoal.activations.Identity()])
        distances.append(numbers(SPECTRUM, subject_of(x, linear))["ck"]["distance"])
    assert 2 < distances[0] / distances[1] < 4.5  # about 3: errors of the covariance, 1/√n


def test_few_samples_have_no_limit() -> None:
    assert SPECTRUM.find(subject_of(torch.eye(4).double())).rows[0].value == "none"


def test_designs_are_those_of_the_library(digits: Subject, analysis: Analysis) -> None:
    found = numbers_of(analysis[DESIGN])
    assert list(found) == ["ntk_moments", "ck_moments", "ntk_sphere", "ck_sphere"]
    assert all(one["feasible"] and one["residual"] < 1e-10 for one in found.values())
    design = shoal.design(DEQ, input_norm=1.0, which="ck")
    matrices = [shoal.kernel(a, digits.x).ck for a in (design.original, design.architecture)]
    gap = torch.linalg.matrix_norm(matrices[0] - matrices[1], 2) / torch.linalg.matrix_norm(
        matrices[0], 2
    )
    assert found["ck_moments"]["gap"] == pytest.approx(float(gap), rel=1e-9)
    assert found["ck_sphere"]["gap"] < 1e-9


def test_training_is_as_predicted(digits: Subject, analysis: Analysis) -> None:
    found = numbers_of(analysis[TRAINING])
    x = torch.nn.functional.normalize(digits.x)
    y = np.eye(10)[digits.data.y]
    step = np.eye(60) - found["step_size"] / 60 * shoal.kernel(DEQ, x).ntk.numpy()
    errors = [np.linalg.matrix_power(step, k) @ y for k in found["steps"]]
    losses = [(error**2).sum() / 120 for error in errors]
    assert found["predicted"]["deq"] == pytest.approx(losses, rel=1e-8)
    assert found["predicted"]["ntk-design"] == pytest.approx(losses, rel=1e-8)
    for name, measured in found["measured"].items():
        losses = trained_losses(rival(name, DEQ), x.float(), torch.from_numpy(y), found)
        assert measured == pytest.approx(losses, rel=1e-3), name
        assert measured[0] == pytest.approx(0.5)


def trained_losses(
    architecture: shoal.Architecture, x: torch.Tensor, y: torch.Tensor, found: Mapping[str, Any]
) -> list[float]:
    """Of the network of seed 0, trained by torch's own gradient descent from the function zero."""
    net = shoal.build(architecture, in_features=x.shape[1], width=found["width"], out_features=10)
    before, losses = net(x).detach(), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=found["step_size"])
    for step in range(found["steps"][-1] + 1):
        optimizer.zero_grad()
        loss = (net(x) - before - y).square().sum() / (2 * len(x))
        losses[step] = float(loss.detach())
        loss.backward()
        optimizer.step()
    return [losses[step] for step in found["steps"]]


def test_constant_targets_need_no_training() -> None:
    x, y = torch.eye(6).double(), torch.ones(6).double()
    assert TRAINING.find(subject_of(x, y=y)).rows[0].meaning == "the targets are constant"


def test_the_certified_curve_is_below_its_bound_and_near_its_prediction(
    digits: Subject, analysis: Analysis
) -> None:
    found = numbers_of(analysis[CERTIFICATE])
    losses = {name: np.array(values) for name, values in found["losses"].items()}
    y = found["target_scale"] * np.eye(10)[digits.data.y[:8]]
    assert losses["bound"][0] == pytest.approx((y**2).sum() / 2)
    assert losses["bound"][1:] / losses["bound"][:-1] == pytest.approx(found["rate"])
    assert (losses["measured"] <= losses["bound"] * (1 + 1e-12)).all()
    kernel = shoal.kernel(DEQ, digits.x[:8]).ck.numpy()
    step = np.eye(8) - found["step_size"] * kernel
    errors = [np.linalg.matrix_power(step, k) @ y for k in range(len(losses["bound"]))]
    assert losses["predicted"] == pytest.approx([(e**2).sum() / 2 for e in errors], rel=1e-8)
    net = shoal.build(
        DEQ, in_features=64, width=1000, out_features=10, readout_scale=0.0, dtype=torch.float64
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=found["step_size"])
    for measured in losses["measured"]:
        optimizer.zero_grad()
        loss = (net(digits.x[:8]) - torch.from_numpy(y)).square().sum() / 2
        assert measured == pytest.approx(float(loss.detach()), rel=1e-8)
        loss.backward()
        optimizer.step()


def test_accuracies_are_those_of_kernel_ridge_regression(
    digits: Subject, analysis: Analysis
) -> None:
    found = numbers_of(analysis[ACCURACY])
    x = torch.nn.functional.normalize(digits.x).numpy()
    y, test = np.eye(10)[digits.data.y], np.arange(60) % 4 == 3
    for name, phi in (("deq", DEQ), ("naive", shoal.FullyConnected([shoal.activations.Tanh()]))):
        kernel = shoal.kernel(phi, x).ck
        inner, identity = kernel[np.ix_(~test, ~test)], np.eye((~test).sum())

        def left_out(ridge: float, inner=inner, identity=identity) -> float:
            inverse = np.linalg.inv(inner + ridge * identity)
            return float(np.square(inverse @ y[~test] / np.diag(inverse)[:, None]).sum())

        ridge = min(np.geomspace(0.01, 10, 1000) * np.diag(inner).mean(), key=left_out)
        outputs = kernel[np.ix_(test, ~test)] @ np.linalg.solve(inner + ridge * identity, y[~test])
        right = (outputs.argmax(1) == y[test].argmax(1)).mean()
        assert found["infinite"][name] == pytest.approx(right)
    for name, scores in found["finite"].items():
        assert_near_mean(found["infinite"][name], scores[-1], more=1 / 15)  # one of 15 images


@pytest.mark.thorough
def test_accuracies_of_noisy_labels_are_those_of_the_ridge_of_least_error() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(240, 4, generator=generator).double())
    y = x[:, 0] + 0.7 * torch.randn(240, generator=generator).double()
    y = (y - y.mean()) / y.std(correction=0)
    found = numbers(ACCURACY, subject_of(x, y=y))
    test = np.arange(240) % 4 == 3
    kernel, y = shoal.kernel(DEQ, x).ck.numpy(), y.numpy()
    inner, cross = kernel[np.ix_(~test, ~test)], kernel[np.ix_(test, ~test)]

    def left_out(ridge: float) -> float:
        inverse = np.linalg.inv(inner + ridge * np.eye(180))
        return float(np.square(inverse @ y[~test] / np.diag(inverse)).mean())

    ridges = np.geomspace(1e-2, 1e2, 100)
    best = min(ridges, key=left_out)
    assert best > 10 * 0.01 * np.diag(inner).mean()
    outputs = cross @ np.linalg.solve(inner + best * np.eye(180), y[~test])
    explained = 1 - np.square(outputs - y[test]).sum() / np.square(y[test] - y[test].mean()).sum()
    assert found["infinite"]["deq"] == pytest.approx(explained, abs=3e-3)


def test_a_network_that_does_not_contract_is_refused() -> None:
    subject = subject_of(torch.eye(6).double(), shoal.DEQ(shoal.activations.ReLU(), 4.0, 0.8))
    found = CERTIFICATE.find(subject)
    assert not found.numbers["holds"]
    (row,) = (row for row in found.rows if row.holds is not None)
    assert row.quantity == "contraction"
    assert "helps: " in row.meaning


def test_what_is_learned() -> None:
    x = torch.tensor([[3.0, 0.1], [-3.0, 0.1], [0.0, -0.2]], dtype=torch.float64)
    named = Inputs(x, torch.tensor([0, 1, 1]), classes=("a", "b"))
    assert learnable(named).values.tolist() == [[-1.0], [1.0], [1.0]]
    real = Inputs(x, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    values = learnable(real).values
    assert values.flatten().tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    main = learnable(Inputs(x)).values.flatten()
    assert main.tolist() == pytest.approx([1.5**0.5, -(1.5**0.5), 0], abs=1e-6)
    assert "no labels" in learnable(Inputs(x)).words


@pytest.mark.thorough
@pytest.mark.parametrize(
    "phi",
    [shoal.activations.ReLU(), shoal.activations.Hermite((0, 1, 0.1))],
    ids=lambda phi: type(phi).__name__,
)
def test_sections_say_something_of_every_activation(phi: shoal.Activation) -> None:
    data = load_inputs("digits", n=40)
    for section in SECTIONS:
        found = find(section, Subject(shoal.DEQ(phi, 0.1, 0.8), data))
        assert found.rows or found.error


def test_errors_with_more_data_are_those_of_regressions() -> None:
    """Predicted from 300 digits, and measured with more, on others."""
    digits = load_inputs("digits", n=1797)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    assert digits.y is not None
    mixed = replace(digits, x=digits.x[order], y=digits.y[order])
    some = replace(mixed, x=mixed.x[:300], y=mixed.y[:300])
    deq = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)
    found = PREDICTION.find(Subject(deq, some))
    x, targets = on_sphere(mixed, 1797)
    fit = shoal.kernel_regression(deq, x[:300], targets.values[:300], ridge="loo")
    numbers = found.numbers
    assert numbers["ridge"] == pytest.approx(fit.ridge)
    assert numbers["sizes"][-3:] == [150, 300, 600]
    assert numbers["test_error"][-2] == pytest.approx(fit.loo().mean_squared_error, rel=1e-6)
    assert numbers["accuracy"] == pytest.approx(fit.loo().accuracy, abs=1e-12)
    words = {row.quantity: row.value for row in found.rows}
    assert words["with half the data"].startswith(f"{numbers['test_error'][-3]:.3g} ± ")
    further = numbers["further"]
    more = slice(300, 300 + further["size"])
    again = shoal.kernel_regression(deq, x[more], targets.values[more], ridge=further["ridge"])
    error = float((again.predict(x[800:]) - targets.values[800:]).square().mean())
    assert further["size"] > 400
    assert abs(further["test_error"] - error) < 3 * further["uncertainty"] < 0.6 * error
    few = replace(mixed, x=mixed.x[:20], y=mixed.y[:20])
    assert PREDICTION.find(Subject(deq, few)).rows[0].meaning == "needs 32 samples or more"

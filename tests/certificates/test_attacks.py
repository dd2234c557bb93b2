"""Certificates of random small problems, against gradient descent written down a second time."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.certificates import Conclusion

Weights = dict[str, np.ndarray]


class Descent:
    """Gradient descent in NumPy: equilibria by iteration, gradients by linear systems."""

    def __init__(self, net: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        self.deq = isinstance(net.architecture, shoal.DEQ)
        self.phi = net.architecture.activation if self.deq else shoal.activations.ReLU()
        self.inputs, self.labels = x.double().numpy().T, y.double().numpy().T
        self.root = 1 / math.sqrt(net.spec.width)
        self.scales = {"readout": 1.0, "skip": 1.0, "input": 1.0}
        self.scales["recurrent"] = net.layer.scale
        if self.deq:
            self.scales = dict(net.scales)
        self.trained = {g for g, p in net.groups.items() if p.requires_grad}
        self.parameters = {g: p.detach().double().numpy().copy() for g, p in net.groups.items()}

    def weights(self) -> Weights:
        return {g: p * self.scales[g] for g, p in self.parameters.items()}

    def slopes(self, inner: np.ndarray) -> np.ndarray:
        return self.phi.derivative(torch.from_numpy(inner)).numpy()

    def evaluate(self) -> tuple[float, Weights, np.ndarray]:
        """The loss, its gradients in the weights, and the features of trained readouts."""
        w, x = self.weights(), self.inputs
        first = w["input"] @ x
        injection = first if self.deq else self.root * np.maximum(first, 0)
        z = np.zeros_like(injection)
        for _ in range(400):
            z = self.phi(torch.from_numpy(w["recurrent"] @ z + injection)).numpy()
        output = w["readout"] @ z + (0 if self.deq else w["skip"] @ injection)
        error = output - self.labels
        slopes = self.slopes(w["recurrent"] @ z + injection)
        columns = []
        for d, e in zip(slopes.T, error.T, strict=True):
            system = np.eye(len(d)) - w["recurrent"].T * d
            columns.append(d * np.linalg.solve(system, w["readout"].T @ e))
        q = np.stack(columns, 1)
        into = q if self.deq else self.root * (first > 0) * (q + w["skip"].T @ error)
        gradients = {"recurrent": q @ z.T, "input": into @ x.T, "readout": error @ z.T}
        parts = {"readout": z}
        if not self.deq:
            gradients["skip"], parts["skip"] = error @ injection.T, injection
        seen = np.concatenate([parts[g] for g in parts if g in self.trained])
        return float((error**2).sum() / 2), gradients, seen

    def step(self, size: float, gradients: Weights) -> None:
        for g in self.trained:
            self.parameters[g] -= size * self.scales[g] * gradients[g]


def keep_promises(descent: Descent, found: Conclusion, steps: int) -> None:
    assert found.step_size is not None
    assert found.rate is not None
    assert found.promises.gain is not None
    assert found.promises.singular_value is not None
    start, first = {g: p.copy() for g, p in descent.parameters.items()}, None
    for k in range(steps):
        loss, gradients, features = descent.evaluate()
        first = loss if first is None else first
        rounding = 1e-13 * (1 + math.sqrt(first))
        assert math.sqrt(loss) <= math.sqrt(found.rate**k * first) * (1 + 1e-12) + rounding
        for group, parameters in descent.parameters.items():
            gone = np.linalg.norm(parameters - start[group])
            assert gone <= found.promises.travel[group] * (1 + 1e-12)
        gain = np.linalg.norm(descent.weights()["recurrent"], 2) * descent.phi.lipschitz
        assert gain <= found.promises.gain * (1 + 1e-12)
        least = np.linalg.svd(features, compute_uv=False)[features.shape[1] - 1]
        assert least >= found.promises.singular_value * (1 - 1e-12)
        descent.step(found.step_size, gradients)


ACTIVATIONS = [
    shoal.activations.ReLU(),
    shoal.activations.LeakyReLU(-1.0),
    shoal.activations.HardTanh(0.5),
    shoal.activations.Tanh(),
    shoal.activations.Cosine(),  # not zero at zero
]


def problem(seed: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A network, inputs, and the directions in which labels differ from outputs."""
    draw = random.Random(seed)
    samples, size, outputs = draw.choice([1, 2, 3]), draw.choice([1, 3, 10]), draw.choice([1, 2])
    architecture: shoal.DEQ | shoal.ImplicitNetwork = shoal.ImplicitNetwork(
        draw.choice([0.05, 0.3])
    )
    groups = draw.choice([{"readout"}, {"readout", "input"}, {"readout", "input", "recurrent"}])
    if seed % 3:
        architecture = shoal.DEQ(
            ACTIVATIONS[seed % len(ACTIVATIONS)],
            draw.choice([0.0, 1e-3, 0.05]),
            0.5,
            parametrization="ntk" if draw.random() < 0.5 else "standard",
        )
    else:
        groups = groups | {"skip"}
    net = shoal.build(
        architecture,
        in_features=size,
        width=draw.choice([samples, 8, 30]),
        out_features=outputs,
        seed=seed,
        dtype=draw.choice([torch.float32, torch.float64]),
        readout_scale=draw.choice([0.0, 0.3, 1.0]),
        trainable=groups,
    )
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, size, generator=generator).to(net.readout.dtype)
    return net, x, torch.randn(samples, outputs, generator=generator).to(x)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(15))
def test_certificates_of_random_problems_are_kept(seed: int) -> None:
    """With labels as far from the outputs as can be certified, within a factor of thirty."""
    net, x, direction = problem(seed)
    with torch.no_grad():
        output = net(x)
    for distance in (1.0, 0.03, 0.001, 1e-6):
        labels = output + distance * direction
        found = shoal.certify(net, x, labels).gradient_descent
        if found.holds:
            keep_promises(Descent(net, x, labels), found, steps=25)
            return
    values = np.linalg.svd(Descent(net, x, labels).evaluate()[2], compute_uv=False)
    assert len(values) < len(x) or values[-1] <= 1e-4  # no rank, or hardly any

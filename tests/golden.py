"""Public calls whose values are stored once, in golden.json, and never regenerated.

Each call returns plain numbers, words and tensors, nested in dictionaries and lists. Beside it
stands how far a value may be off, relative to its own size, and why. When a public name changes,
only this script changes; the stored values stay. ``python tests/golden.py --write`` adds calls that
are not stored yet.
"""

import contextlib
import io
import json
import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import shoal
from shoal import data, gaussian

FILE = Path(__file__).with_name("golden.json")
ENTRIES = 12  # of a large tensor, that are stored
SMALL = 1e-3  # numbers below are as good as this one: the tolerance is relative to it


class Call(NamedTuple):
    """A public call, how far its values may be off, and which packages it needs."""

    run: Callable[[], Any]
    tolerance: float
    needs: tuple[str, ...] = ()


CALLS: dict[str, Call] = {}


def call(tolerance: float, why: str, *needs: str) -> Callable[[Callable[[], Any]], Any]:
    """Register a call; the tolerance is relative, and the reason is for the reader."""
    assert why

    def register(run: Callable[[], Any]) -> Callable[[], Any]:
        CALLS[run.__name__] = Call(run, tolerance, needs)
        return run

    return register


# What is stored and compared


def _digits(value: float) -> float | str:
    return float(f"{value:.15g}") if math.isfinite(value) else str(value)


def plain(value: Any) -> Any:
    """A value as JSON has it; of a large tensor some entries and two projections."""
    if isinstance(value, np.ndarray):
        return {"array": "numpy"} | plain(torch.from_numpy(value))
    if isinstance(value, Tensor):
        flat = value.detach().cpu().flatten()
        record = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        if not value.dtype.is_floating_point:
            return record | {"entries": flat.tolist()}
        flat = flat.double()
        largest = float(flat.abs().max()) if len(flat) else 0.0
        if len(flat) > 2 * ENTRIES:
            waves = torch.cos(torch.arange(len(flat), dtype=torch.float64))
            record |= {"norm": _digits(float(flat.norm())), "waves": _digits(float(flat @ waves))}
            flat = flat[torch.linspace(0, len(flat) - 1, ENTRIES).long()]
        return record | {
            "largest": _digits(largest),
            "entries": [_digits(v) for v in flat.tolist()],
        }
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return _digits(value)
    assert value is None or isinstance(value, bool | int | str), type(value)
    return value


def differences(stored: Any, found: Any, tolerance: float, at: str = "") -> Iterator[str]:
    """Say where two plain values differ by more than the tolerance."""
    for place, deviation, allowed in _deviations(stored, found, tolerance, at, SMALL):
        if not deviation <= allowed:
            yield f"{place}: off by {deviation:.3g}, allowed are {allowed:.3g}"


def _deviations(
    stored: Any, found: Any, tolerance: float, at: str, scale: float
) -> Iterator[tuple[str, float, float]]:
    """Each value's place, deviation and allowance; words deviate by zero or infinity."""
    if isinstance(stored, dict) and isinstance(found, dict) and stored.keys() == found.keys():
        shared = max(scale, stored.get("largest", 0.0)) if "dtype" in stored else scale
        for name, part in stored.items():
            whole = max(shared, stored["norm"]) if name == "waves" else shared
            yield from _deviations(part, found[name], tolerance, f"{at}/{name}", whole)
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for i, (part, other) in enumerate(zip(stored, found, strict=True)):
            yield from _deviations(part, other, tolerance, f"{at}/{i}", scale)
    elif isinstance(stored, float) and isinstance(found, int | float):
        yield at, abs(found - stored), tolerance * max(abs(stored), scale)
    else:
        same = stored == found and isinstance(found, bool) == isinstance(stored, bool)
        yield f"{at}: {stored!r} was {found!r}", 0.0 if same else math.inf, 0.0


# Inputs, without random numbers


def points(*shape: int, seed: int = 1, scale: float = 1.0) -> Tensor:
    """Fixed numbers that look random, with a mean square of one half."""
    steps = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return scale * torch.cos(steps.square() * (0.6180339887498949 + 0.1 * seed)).reshape(shape)


def unit(n: int, p: int, seed: int = 1) -> Tensor:
    return nn.functional.normalize(points(n, p, seed=seed))


def targets(x: Tensor) -> Tensor:
    return torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * points(len(x), seed=7)


def filled(module: nn.Module, scale: float = 0.3) -> nn.Module:
    """A module in float64 with fixed parameters."""
    module = module.double()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(points(*parameter.shape, seed=i, scale=scale))
    return module


def error(run: Callable[[], Any]) -> str:
    """The type of the error that a call ends with."""
    try:
        run()
    except Exception as raised:
        return type(raised).__name__
    return "none"


def both(kernels: Any) -> dict[str, Any]:
    return {"ck": kernels.ck, "ntk": kernels.ntk}


def kernels(architecture: Any, x: Tensor, *others: Any, **options: Any) -> dict[str, Any]:
    return both(shoal.kernel(architecture, x, *others, **options))


class Wavelet(shoal.Activation):
    """An activation of a user's own."""

    def function(self, x: Tensor) -> Tensor:
        return x * torch.exp(-x.square() / 4) + 0.3 * x.relu()


def tanh(**options: Any) -> shoal.DEQ:
    return shoal.DEQ(
        shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8, **options
    )


def relu(**options: Any) -> shoal.DEQ:
    return shoal.DEQ(
        shoal.activations.ReLU(), recurrent_variance=0.3, input_variance=0.7, **options
    )


ACTIVATIONS = {
    "ReLU": shoal.activations.ReLU(),
    "LeakyReLU": shoal.activations.LeakyReLU(0.1),
    "Tanh": shoal.activations.Tanh(),
    "HardTanh": shoal.activations.HardTanh(1.5),
    "Swish": shoal.activations.Swish(),
    "GELU": shoal.activations.GELU(),
    "Erf": shoal.activations.Erf(),
    "Softplus": shoal.activations.Softplus(),
    "Sigmoid": shoal.activations.Sigmoid(),
    "ELU": shoal.activations.ELU(),
    "Mish": shoal.activations.Mish(),
    "Sine": shoal.activations.Sine(),
    "Cosine": shoal.activations.Cosine(),
    "Identity": shoal.activations.Identity(),
    "Hermite": shoal.activations.Hermite((0.1, 0.7, 0.3, -0.2)),
    "Affine": shoal.activations.Affine(shoal.activations.HardTanh(0.8), 1.3, -0.2),
    "own": Wavelet(),
}


# Gaussian calculus


@call(1e-10, "closed forms and quadrature in float64")
def gaussian_moments() -> Any:
    names = ["mean", "first", "second", "third", "square", "first_square", "square_second"]
    found = {name: gaussian.moments(phi, tau=0.9) for name, phi in ACTIVATIONS.items()}
    return {phi: {name: getattr(m, name) for name in names} for phi, m in found.items()}


@call(1e-9, "quadrature of a high order")
def gaussian_hermite() -> Any:
    return {name: gaussian.hermite(phi, 1.1, 5) for name, phi in ACTIVATIONS.items()}


@call(1e-10, "closed forms and quadrature in float64")
def gaussian_duals() -> Any:
    a, b = torch.tensor([1.0, 0.5, 1.3]).double(), torch.tensor([1.0, 2.0, 0.7]).double()
    c = torch.tensor([[0.9], [-0.3], [0.0]]).double() * (a * b).sqrt()
    return {
        name: [gaussian.dual(phi, a, b, c), gaussian.dual_derivative(phi, a, b, c)]
        for name, phi in ACTIVATIONS.items()
    }


# Kernels


@call(1e-10, "1e-12 of the diagonal is stated")
def kernel_deq_relu() -> Any:
    x, x2 = points(10, 6), points(4, 6, seed=2)
    return {
        "all": kernels(relu(), x),
        "readout": kernels(relu(), x, trainable={"readout"}),
        "recurrent": kernels(relu(), x, trainable={"recurrent", "input"}),
        "two inputs": kernels(relu(), x, x2),
        "diagonal": kernels(relu(), x, diag=True),
        "bias": kernels(relu(bias_variance=0.1), x),
        "leaky": kernels(shoal.DEQ(shoal.activations.LeakyReLU(0.2), 0.5, 0.5), x),
    }


@call(1e-10, "1e-12 of the diagonal is stated for one norm")
def kernel_deq_one_norm() -> Any:
    x = unit(12, 6)
    chosen = ("Tanh", "HardTanh", "Erf", "Sine", "GELU")
    found = {name: kernels(shoal.DEQ(ACTIVATIONS[name], 0.2, 0.8), x) for name in chosen}
    return found | {
        "surface": kernels(tanh(), unit(300, 6)),
        "readout": kernels(tanh(), x, trainable={"readout"}),
        "bias": kernels(tanh(bias_variance=0.1), x),
    }


@call(2e-9, "1e-10 of the diagonal is stated for any norms")
def kernel_deq_any_norms() -> Any:
    x = points(8, 5)
    return {
        "Tanh": kernels(tanh(), x),
        "surface": kernels(tanh(), points(80, 3)),
        "two inputs": kernels(tanh(), x, points(3, 5, seed=2), trainable={"recurrent"}),
        "HardTanh": kernels(shoal.DEQ(shoal.activations.HardTanh(), 0.2, 0.8), x[:5]),
    }


@call(1e-10, "as for one layer")
def kernel_deq_other_forms() -> Any:
    x = unit(7, 5)
    two = shoal.DEQ(
        (shoal.activations.ReLU(), shoal.activations.ReLU()), 0.2, 0.8, hidden_variances=(1.1,)
    )
    smooth = shoal.DEQ(
        (shoal.activations.Tanh(), shoal.activations.Erf()), 0.2, 0.8, hidden_variances=(0.9,)
    )
    printed = shoal.DEQ.ling2023(0.001, 5)
    return {
        "two layers": kernels(two, points(7, 5)),
        "smooth": kernels(smooth, x),
        "standard": kernels(printed, x),
        "width": kernels(printed, x, width=50),
    }


@call(2e-6, "float32: 6e-7 of the diagonal is stated")
def kernel_float32() -> Any:
    return {
        "ReLU": kernels(relu(), points(10, 6).float()),
        "Tanh": kernels(tanh(), unit(10, 6).float()),
        "ConvNet": kernels(shoal.ConvNet((shoal.activations.ReLU(),)), points(3, 2, 4, 4).float()),
    }


@call(1e-10, "closed forms and scalar equations")
def kernel_implicit_network() -> Any:
    network = shoal.ImplicitNetwork(0.2)
    return {
        "one norm": kernels(network, unit(8, 5)),
        "any norms": kernels(network, points(8, 5)),
        "skip": kernels(network, points(8, 5), trainable={"skip", "recurrent"}),
    }


@call(1e-10, "closed forms and quadrature")
def kernel_fully_connected() -> Any:
    x = points(8, 5)
    two = (shoal.activations.ReLU(), shoal.activations.ReLU())
    return {
        "two": kernels(shoal.FullyConnected(two), x),
        "second": kernels(shoal.FullyConnected(two), x, trainable={"layer2"}),
        "fixed readout": kernels(shoal.FullyConnected(two, fixed_readout=True), x),
        "normalized": kernels(
            shoal.FullyConnected((shoal.activations.Erf(),), normalized=True), unit(8, 5)
        ),
        "gated": kernels(shoal.FullyConnected((shoal.activations.Tanh(),), norm_gated=True), x),
        "bias": kernels(shoal.FullyConnected(two, bias_variance=0.2), x),
        "two inputs": kernels(shoal.FullyConnected(two), x, points(3, 5, seed=2)),
    }


@call(2e-9, "1e-10 of the diagonal is stated for any norms")
def kernel_activations() -> Any:
    x = points(4, 5)
    return {name: kernels(shoal.FullyConnected((phi,)), x) for name, phi in ACTIVATIONS.items()}


@call(1e-10, "closed forms")
def kernel_resnet() -> Any:
    network = shoal.ResNet(shoal.activations.ReLU(), 3, residual_scale=0.5)
    return {
        "all": kernels(network, points(8, 5)),
        "diagonal": kernels(network, points(8, 5), diag=True),
        "Erf": kernels(shoal.ResNet(shoal.activations.Erf(), 2), unit(6, 5)),
        "bias": kernels(shoal.ResNet(shoal.activations.ReLU(), 2, bias_variance=0.1), points(6, 5)),
    }


@call(1e-9, "pixels are iterated to rounding")
def kernel_conv_deq() -> Any:
    images, others = points(4, 2, 4, 4), points(2, 2, 4, 4, seed=2)
    flat, mean = (
        shoal.ConvDEQ(shoal.activations.ReLU(), 0.5, 0.5, pooling=pooling)
        for pooling in (None, "average")
    )
    circular = shoal.ConvDEQ(
        shoal.activations.ReLU(), 0.5, 0.5, padding="circular", bias_variance=0.1
    )
    return {
        "flat": kernels(flat, images),
        "readout": kernels(flat, images, trainable={"readout"}),
        "average": kernels(mean, images),
        "circular": kernels(circular, images),
        "diagonal": kernels(mean, images, diag=True),
        "two inputs": kernels(flat, images, others),
        "Erf": kernels(shoal.ConvDEQ(shoal.activations.Erf(), 0.4, 0.6), images[:2]),
        "sequence": kernels(flat, points(4, 3, 6)),
    }


@call(1e-10, "closed forms, pixel by pixel")
def kernel_images() -> Any:
    images = points(4, 2, 4, 4)
    two = (shoal.activations.ReLU(), shoal.activations.ReLU())
    return {
        "ConvNet": kernels(shoal.ConvNet(two), images),
        "average": kernels(shoal.ConvNet(two, pooling="average"), images),
        "normalized": kernels(shoal.ConvNet((shoal.activations.ReLU(),), normalized=True), images),
        "ConvResNet": kernels(
            shoal.ConvResNet(shoal.activations.ReLU(), 2, residual_scale=0.5), images
        ),
        "diagonal": kernels(shoal.ConvResNet(shoal.activations.ReLU(), 2), images, diag=True),
    }


@call(1e-8, "third derivatives of scalar equations")
def kernel_function_derivatives() -> Any:
    a, b = torch.tensor([1.0, 0.7]).double(), torch.tensor([1.2, 0.7]).double()
    c = torch.tensor([0.4, -0.2]).double()
    orders = [(1, 0, 0), (0, 0, 1), (1, 1, 0), (0, 0, 3)]
    found = {}
    for name, architecture in {"tanh": tanh(), "relu": relu()}.items():
        f = shoal.kernel_function(architecture)
        found[name] = [both(f(a, b, c))]
        found[name] += [both(f.derivative(a, b, c, orders=order)) for order in orders]
    return found


@call(1e-8, "conjugate gradients with rtol 1e-10")
def kernel_operators() -> Any:
    x = points(40, 6)
    ck, ntk = shoal.kernel_operator(relu(), x, memory="1MiB")
    right = points(40, 2, seed=3)
    across = shoal.kernel_operator(relu(), x, x[:5]).ntk
    return {
        "product": [ck @ right, ntk @ right[:, 0]],
        "solve": ntk.solve(right, shift=0.1, rtol=1e-10),
        "diagonal": ntk.diagonal(),
        "dense": ntk.to_dense(),
        "across": across @ points(5),
    }


@call(1e-8, "derivatives of a fitted kernel; 1e-10 of the diagonal for values")
def kernel_gradients() -> Any:
    found = {}
    for name, architecture, x in (
        ("relu", relu(), points(8, 5)),
        ("tanh", tanh(), unit(8, 5)),
        ("resnet", shoal.ResNet(shoal.activations.ReLU(), 2), points(6, 5)),
        ("images", shoal.ConvDEQ(shoal.activations.ReLU(), 0.5, 0.5), points(3, 2, 3, 3)),
    ):
        given = x.clone().requires_grad_()
        ck, ntk = shoal.kernel(architecture, given)
        weights = points(*ntk.shape, seed=4)
        found[name] = [
            *torch.autograd.grad((ck * weights).sum(), given, retain_graph=True),
            *torch.autograd.grad((ntk * weights).sum(), given),
        ]
    return found


@call(1e-8, "derivatives of a fitted kernel")
def kernel_variance_gradients() -> Any:
    found = {}
    for name, architecture, x in (("relu", relu(), points(8, 5)), ("tanh", tanh(), unit(8, 5))):
        variances = {
            key: torch.tensor(getattr(architecture, key), dtype=torch.float64, requires_grad=True)
            for key in ("recurrent_variance", "input_variance")
        }
        ck, ntk = shoal.kernel(architecture, x, variances=variances)
        weights = points(*ntk.shape, seed=4)
        total = ((ck + 2 * ntk) * weights).sum()
        slopes = torch.autograd.grad(total, list(variances.values()))
        found[name] = [float(slope) for slope in slopes]
    return found


# High dimension


@call(1e-9, "derivatives of scalar equations")
def coefficients() -> Any:
    names = ["tau", "shift", "gamma2", "kappa2", *(f"alpha{i}" for i in range(1, 5))]
    names += [f"beta{i}" for i in range(1, 4)]
    shallow = shoal.FullyConnected((shoal.activations.ReLU(),))
    cases = {
        "tanh": shoal.coefficients(tanh(), input_norm=1.0),
        "relu": shoal.coefficients(relu(), input_norm=1.3, trainable={"readout", "recurrent"}),
        "plain": shoal.coefficients(tanh(), input_norm=0.8, center=False),
        "shallow": shoal.coefficients(shallow, input_norm=1.0),
        "deep": shoal.coefficients(
            shoal.FullyConnected((shoal.activations.Tanh(), shoal.activations.Tanh())),
            input_norm=1.0,
        ),
    }
    found = {case: {name: getattr(c, name) for name in names} for case, c in cases.items()}
    return found | {"centered": kernels(shoal.centered(relu(), 1.0), unit(5, 4))}


@call(1e-8, "eigenvalues and systems of a small matrix of condition 100")
def equivalent() -> Any:
    x, labels = unit(30, 20), [i % 2 for i in range(30)]
    found = {}
    for name, eq in {
        "tanh": shoal.equivalent(tanh(), x),
        "relu": shoal.equivalent(relu(), points(30, 20, scale=20**-0.5), labels),
    }.items():
        right = points(30, 2, seed=3)
        for kernel, operator in both(eq).items():
            found[f"{name} {kernel}"] = {
                "product": operator @ right,
                "dense": operator.to_dense(),
                "eigenvalues": operator.eigvalsh(),
                "solve": operator.solve(right, shift=0.1, rtol=1e-12),
                "logdet": float(operator.logdet(shift=0.1)),
            }
    return found


def mixture() -> shoal.GaussianMixture:
    means = torch.zeros(2, 40, dtype=torch.float64)
    means[0, 0], means[1, 0] = 4.0, -4.0
    spread = 1 + 0.5 * points(40, seed=5)
    return shoal.GaussianMixture(means, [1.0, spread], [0.4, 0.6])


@call(1e-8, "edges to 1e-14 and spikes to 1e-10 are stated")
def spectrum() -> Any:
    rho = shoal.spectrum(tanh(), mixture(), n=80)
    return {
        name: {
            "edges": part.edges,
            "atoms": [list(map(float, atom)) for atom in part.atoms],
            "spikes": [float(spike.value) for spike in part.spikes],
        }
        for name, part in both(rho).items()
    }


@call(1e-6, "an equation that is solved at each point; it repeats to 4e-8")
def spectrum_density() -> Any:
    rho = shoal.spectrum(tanh(), mixture(), n=80)
    return {
        name: part.density(torch.linspace(0.4, 1.6, 7).double()) for name, part in both(rho).items()
    }


@call(1e-10, "sums; random numbers in float64 by a seed")
def gaussian_mixture() -> Any:
    x, labels = mixture().sample(30, seed=3)
    fitted = shoal.GaussianMixture.fit(x, labels, covariance="diagonal")
    return {
        "x": x,
        "labels": labels,
        "means": fitted.means,
        "proportions": fitted.proportions,
        "traces": [float(part.dense().trace()) for part in fitted.covariances],
        "products": fitted.trace_products,
    }


# Designs


@call(1e-6, "a root that is found to 1e-10, and its kernels")
def design_moments() -> Any:
    found = {}
    for name, d in {
        "tanh ntk": shoal.design(tanh(), input_norm=1.0),
        "tanh ck": shoal.design(tanh(), input_norm=1.0, which="ck"),
        "relu ck": shoal.design(relu(), input_norm=1.0, which="ck"),
    }.items():
        found[name] = {
            "feasible": d.feasible,
            "method": d.method,
            "which": d.which,
            "target": dict(d.target),
            "obtained": dict(d.obtained),
            "residual": d.residual,
            "kernels": kernels(d.architecture, unit(5, 4)),
        }
    return found


@call(1e-5, "designs on the sphere are right to 1e-6 of the diagonal")
def design_sphere() -> Any:
    x, found = unit(6, 4), {}
    for which in ("ck", "ntk"):
        d = shoal.design(tanh(), input_norm=1.0, which=which, method="sphere")
        found[which] = {
            "feasible": d.feasible,
            "fits": d.residual <= 1e-6,
            "kernels": kernels(d.architecture, x),
        }
    return found


# Prediction


@call(1e-8, "a factorization of condition 1e4 in float64")
def regression() -> Any:
    x, x_test = points(40, 6), points(5, 6, seed=2)
    y = targets(x)
    found = {}
    for name, ridge in {"0.1": 0.1, "gcv": "gcv", "loo": "loo", "likelihood": "likelihood"}.items():
        fit = shoal.kernel_regression(relu(), x, y, ridge=ridge, center=False)
        left_out = fit.loo()
        found[name] = {
            "ridge": fit.ridge,
            "predictions": fit.predict(x_test),
            "variance": fit.variance(x_test),
            "loo": [left_out.mean_squared_error, left_out.predictions],
            "gcv": fit.gcv(),
            "likelihood": fit.log_marginal_likelihood,
        }
    inputs, outputs = unit(20, 4).numpy(), points(20, 2, seed=9).numpy()
    several = shoal.kernel_regression(tanh(), inputs, outputs, ridge=0.05, which="ck", center=False)
    found["numpy"] = several.predict(unit(3, 4, seed=2).numpy())
    return found


@call(1e-7, "conjugate gradients with rtol 1e-10")
def regression_iterative() -> Any:
    x = points(40, 6)
    solver = shoal.learning.ConjugateGradients(tolerance=1e-10)
    fit = shoal.kernel_regression(relu(), x, targets(x), ridge=0.1, method=solver, center=False)
    return {
        "converged": fit.report.converged,
        "coefficients": fit.coefficients,
        "predictions": fit.predict(x[:3] + 0.1),
    }


@call(1e-8, "one eigendecomposition in float64")
def ridges() -> Any:
    x = points(40, 6)
    ridges = [1e-3, 1e-2, 0.1, 1.0]
    path = shoal.learning.ridge_path(relu(), x, targets(x), ridges=ridges, center=False)
    depths = [shoal.FullyConnected((shoal.activations.ReLU(),) * depth) for depth in (1, 2, 3)]
    chosen = shoal.learning.select(depths, x, targets(x), ridges=ridges, center=False)
    return {
        "loo": path.loo,
        "gcv": path.gcv,
        "likelihood": path.log_likelihood,
        "freedom": path.freedom,
        "best": {name: path.best(name) for name in ("loo", "gcv", "likelihood")},
        "selected": depths.index(chosen.architecture),
        "ridge": chosen.ridge,
        "scores": list(chosen.scores),
    }


@call(1e-6, "roots of scalar equations and random splits by a seed")
def learning_curve() -> Any:
    x = points(80, 4)
    options = {"sizes": [20, 40, 80], "ridge": 0.1, "repeats": 2, "center": False}
    c = shoal.learning_curve(relu(), x, targets(x), **options)
    names = ("test_error", "bias", "variance", "train_error")
    return {"samples": {name: getattr(c, name) for name in names}}


@call(1e-8, "n times 1e-12 of the diagonal, over small eigenvalues")
def gradient_flow() -> Any:
    x, x_test = unit(12, 5), unit(3, 5, seed=2)
    y, times = targets(x), [0.0, 0.5, 2.0, 10.0, math.inf]
    curve = shoal.gradient_flow(tanh(), x, y, x_test, times)
    descent = shoal.gradient_flow(relu(), x, y, steps=[0, 1, 10, 100], step_size=0.1)
    return {
        "loss": curve.loss,
        "train": curve.train_mean,
        "test": curve.test_mean,
        "deviation": curve.test_std,
        "descent": [descent.loss, descent.train_mean],
    }


# Networks


def net_of(architecture: Any, in_features: int = 4, width: int = 12, **options: Any) -> nn.Module:
    tight = shoal.Picard(rtol=1e-13, atol=1e-14)
    implicit = isinstance(architecture, shoal.DEQ | shoal.ConvDEQ | shoal.ImplicitNetwork)
    if implicit:
        options = {"on_failure": "raise"} | options
        options |= {"solver": tight, "gradient": shoal.Implicit(rtol=1e-13)}
    return shoal.build(
        architecture,
        in_features=in_features,
        width=width,
        out_features=2,
        seed=3,
        dtype=torch.float64,
        **options,
    )


def _outputs(net: nn.Module, x: Tensor) -> dict[str, Any]:
    given = x.clone().requires_grad_()
    y = net(given)
    (y * points(*y.shape, seed=6)).sum().backward()
    norms = {name: float(p.grad.norm()) for name, p in net.named_parameters() if p.grad is not None}
    return {"outputs": y, "inputs": given.grad, "gradient norms": norms}


@call(1e-9, "equilibria and adjoints with rtol 1e-13")
def built_networks() -> Any:
    x = points(5, 4)
    two = (shoal.activations.Tanh(), shoal.activations.ReLU())
    return {
        "tanh": _outputs(net_of(tanh()), x),
        "bias": _outputs(net_of(relu(bias_variance=0.1)), x),
        "two layers": _outputs(net_of(shoal.DEQ(two, 0.2, 0.8, hidden_variances=(0.9,))), x),
        "standard": _outputs(net_of(shoal.DEQ.ling2023(0.001, 4), width=30), x),
        "implicit": _outputs(net_of(shoal.ImplicitNetwork(0.2)), x),
        "explicit": _outputs(net_of(shoal.FullyConnected(two)), x),
        "normalized": _outputs(net_of(shoal.FullyConnected(two, normalized=True)), x),
        "resnet": _outputs(net_of(shoal.ResNet(shoal.activations.GELU(), 2)), x),
        "subset": _outputs(net_of(tanh(), trainable={"readout"}), x),
        "orthogonal": _outputs(net_of(tanh(), weights="orthogonal"), x),
    }


@call(1e-9, "equilibria and adjoints with rtol 1e-13")
def built_networks_of_images() -> Any:
    images, shape = points(3, 2, 4, 4), {"pixel_axes": 2}
    flat = shoal.ConvDEQ(shoal.activations.ReLU(), 0.3, 0.7)
    mean = shoal.ConvDEQ(shoal.activations.Tanh(), 0.3, 0.7, pooling="average", padding="circular")
    return {
        "flat": _outputs(net_of(flat, 2, 6, pixels=(4, 4)), images),
        "average": _outputs(net_of(mean, 2, 6, **shape), images),
        "convnet": _outputs(
            net_of(
                shoal.ConvNet((shoal.activations.ReLU(),) * 2, pooling="average"), 2, 6, **shape
            ),
            images,
        ),
        "convresnet": _outputs(
            net_of(shoal.ConvResNet(shoal.activations.ReLU(), 2), 2, 6, pixels=(4, 4)), images
        ),
    }


@call(1e-4, "float32 and the default tolerances of solvers")
def built_network_in_float32() -> Any:
    net = shoal.build(tanh(), in_features=4, width=32, out_features=2, seed=5)
    return {"outputs": net(points(4, 4).float()), "dtype": str(net(points(1, 4).float()).dtype)}


@call(1e-9, "equilibria with rtol 1e-13")
def network_solutions() -> Any:
    x, found = points(5, 4), {}
    solution = net_of(tanh()).solve(x)
    for on_failure in ("raise", "status"):
        bad = net_of(relu(), on_failure=on_failure)
        with torch.no_grad():
            bad.recurrent.abs_().mul_(5)
        found[on_failure] = error(lambda net=bad: net(x))
    return {
        "value": solution.value,
        "status": statuses(solution),
        "failed": statuses(bad.solve(x)),
        "errors": found,
    }


@call(1e-9, "products in float64; equilibria with rtol 1e-13")
def empirical_kernels() -> Any:
    x, x2 = points(5, 4), points(2, 4, seed=2)
    own = filled(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    net = net_of(tanh())
    return {
        "own": shoal.empirical_kernel(own, x).ntk,
        "first layer": shoal.empirical_kernel(own, x, x2, trainable={"0.weight"}).ntk,
        "features": both(shoal.empirical_kernel(own, x, features="1")),
        "net": both(shoal.empirical_kernel(net, x)),
        "recurrent": both(shoal.empirical_kernel(net, x, x2, trainable={"recurrent"})),
    }


@call(1e-12, "the same network twice")
def saved_networks() -> Any:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, architecture in {
            "deq": relu(),
            "net": shoal.FullyConnected((shoal.activations.Tanh(),)),
            "images": shoal.ConvDEQ(shoal.activations.ReLU(), 0.3, 0.7, pooling="average"),
        }.items():
            images = name == "images"
            net = net_of(architecture, 2, 6, **({"pixel_axes": 2} if images else {}))
            x = points(3, 2, 4, 4) if images else points(3, 2)
            path = Path(folder) / f"{name}.safetensors"
            shoal.save(net, path)
            loaded = shoal.load(path)
            state = loaded.state_dict()
            found[name] = {
                "architecture": loaded.architecture == net.architecture,
                "state": all(bool((state[k] == v).all()) for k, v in net.state_dict().items()),
                "names": sorted(state),
                "outputs": bool(torch.allclose(loaded(x), net(x), rtol=1e-3, atol=1e-6)),
            }
        found["nothing there"] = error(lambda: shoal.load(Path(folder) / "none.safetensors"))
    return found


@call(1e-4, "float32, and a loop of its own in the exported program", "onnx", "onnxruntime")
def exported_network() -> Any:
    import onnxruntime

    net = shoal.build(
        shoal.FullyConnected((shoal.activations.ReLU(), shoal.activations.Tanh())),
        in_features=4,
        width=16,
        seed=2,
    )
    x = points(3, 4).float()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of PyTorch's exporter
            shoal.export(net, path)
        session = onnxruntime.InferenceSession(path.read_bytes())
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return {"outputs": net(x), "exported": y}


# Equilibria


def statuses(solution: Any) -> list[str]:
    return [shoal.equilibrium.Status(int(status)).name.lower() for status in solution.status]


class Cell(nn.Module):
    """A contraction."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.input = nn.Linear(5, 5), nn.Linear(3, 5, bias=False)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.recurrent(z) + self.input(x))


TIGHT = {"rtol": 1e-12, "atol": 1e-13}
SOLVERS = {
    "picard": shoal.Picard(**TIGHT),
    "damped": shoal.equilibrium.DampedPicard(0.5, **TIGHT),
    "anderson": shoal.Anderson(5, **TIGHT),
    "broyden": shoal.Broyden(20, **TIGHT),
    "newton": shoal.NewtonKrylov(20, **TIGHT),
}


def _layer(**options: Any) -> tuple[shoal.Equilibrium, Tensor, Tensor]:
    options = {"solver": SOLVERS["picard"], "on_failure": "raise"} | options
    layer = shoal.Equilibrium(filled(Cell()), **options)
    return layer, torch.zeros(4, 5, dtype=torch.float64), points(4, 3).requires_grad_()


def _solved(**options: Any) -> dict[str, Any]:
    layer, z0, x = _layer(**options)
    z = layer(z0, x)
    weights = points(4, 5, seed=2)
    slopes = torch.autograd.grad((z * weights).sum(), [x, *layer.parameters()])
    names = ["x", *dict(layer.cell.named_parameters())]
    return {
        "value": z,
        "status": statuses(layer.solution),
        "gradients": dict(zip(names, slopes, strict=True)),
    }


@call(1e-8, "equilibria and adjoints with rtol 1e-12")
def equilibrium_solvers() -> Any:
    return {
        name: _solved(solver=solver, gradient=shoal.Implicit(rtol=1e-12))
        for name, solver in SOLVERS.items()
    }


@call(1e-8, "equilibria with rtol 1e-12")
def equilibrium_gradients() -> Any:
    damped = {"solver": SOLVERS["damped"]}
    return {
        "implicit": _solved(gradient=shoal.Implicit(shoal.Anderson(**TIGHT), rtol=1e-12)),
        "one step": _solved(gradient=shoal.OneStep()),
        "neumann": _solved(gradient=shoal.Neumann(4)),
        "unrolled": _solved(gradient=shoal.Unrolled()),
        "reversible": _solved(gradient=shoal.Reversible(0.5, steps=12), on_failure="status"),
        "damped unrolled": _solved(gradient=shoal.Unrolled(), **damped),
    }


@call(1e-7, "equilibria and tangents with rtol 1e-12")
def equilibrium_derivatives() -> Any:
    layer, z0, x = _layer(gradient=shoal.Implicit(rtol=1e-12))
    _, tangent = torch.func.jvp(lambda x: layer(z0, x), (x.detach(),), (points(4, 3, seed=2),))
    (first,) = torch.autograd.grad(layer(z0, x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * points(4, 3, seed=3)).sum(), x)
    return {"forward": tangent, "first": first, "second": second}


@call(1e-8, "a fixed point with rtol 1e-12")
def fixed_points() -> Any:
    a = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    z = shoal.fixed_point(
        lambda z, a: (z + a / z) / 2, torch.ones(1, 2).double(), parameters=(a,),
        solver=SOLVERS["picard"], gradient=shoal.Implicit(rtol=1e-12),
    )  # fmt: skip
    (slope,) = torch.autograd.grad(z.sum(), a)
    return {"value": z, "slope": slope}


def _failing(z: Tensor, factor: Tensor) -> Tensor:
    return factor * z + 1


@call(1e-9, "statuses")
def equilibrium_failures() -> Any:
    z0 = torch.ones(4, 2, dtype=torch.float64)
    factors = torch.tensor([[0.5], [3.0], [math.nan], [0.999]]).double().expand(4, 2)
    solver = shoal.Picard(max_steps=60)
    layer = shoal.Equilibrium(_failing, solver=solver, on_failure="status")
    z = layer(z0, factors)
    strict = shoal.Equilibrium(_failing, solver=solver, on_failure="raise")
    loud = shoal.Equilibrium(_failing, solver=solver, on_failure="warn")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        loud(z0, factors)
    return {
        "status": statuses(layer.solution),
        "converged": layer.solution.converged,
        "value": z[0],
        "raises": error(lambda: strict(z0, factors)),
        "warns": sorted({warning.category.__name__ for warning in heard}),
        "fixed point": error(
            lambda: shoal.fixed_point(lambda z: 2 * z + 1, z0, on_failure="raise")
        ),
    }


@call(1e-8, "equilibria with rtol 1e-12")
def constraints() -> Any:
    layer, z0, x = _layer()
    z = layer(z0, x)
    penalty = shoal.jacobian_penalty(layer, z, x, probes=5)
    net = net_of(tanh(), width=8)
    with torch.no_grad():
        net.recurrent.mul_(4)
    shoal.GainConstraint(net, max_gain=0.7).apply()
    gain = float((0.2 / 8) ** 0.5 * torch.linalg.matrix_norm(net.recurrent.detach(), 2))
    cell = filled(shoal.MonotoneCell(3, 6, "tanh"))
    monotone = shoal.Equilibrium(cell, solver=SOLVERS["picard"], on_failure="raise")
    return {
        "penalty": float(penalty.detach()),
        "slopes": list(torch.autograd.grad(penalty, list(layer.parameters()))),
        "monotone": monotone(torch.zeros(4, 6).double(), points(4, 3)),
        "contracts": cell.rate < 1,
        "constrained": 0.68 < gain <= 0.7,
    }


# Training


@call(1e-7, "norms and least eigenvalues of a network in float64")
def certificates() -> Any:
    x = unit(4, 8) * 8**0.5
    y = 0.01 * points(4, 1, seed=3)
    good = shoal.build(
        shoal.DEQ.ling2023(0.001, 8), in_features=8, width=400, out_features=1, seed=1,
        dtype=torch.float64, readout_scale=0.0,
    )  # fmt: skip
    bad = net_of(tanh())
    found = {}
    for name, cert in {
        "certified": shoal.certify(good, x, y),
        "refused": shoal.certify(bad, points(5, 4), points(5, 2, seed=2)),
    }.items():
        found[name] = {
            "holds": cert.holds,
            "step size": cert.step_size,
            "rate": cert.rate,
            "conditions": {
                c.name: {
                    "bound": c.bound,
                    "value": c.value,
                    "relation": c.relation,
                    "holds": c.holds,
                }
                for c in cert.conditions
            },
        }
    return found


@call(1e-7, "ten steps of gradient descent in float64")
def training() -> Any:
    x, y = points(6, 4), points(6, 2, seed=2)
    net = net_of(tanh())
    run = shoal.train(net, x, y, steps=10, step_size=0.05, monitor=5)
    mlp = filled(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    watch = shoal.Watch(mlp, x, y, step_size=0.02)
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.02)
    for step in range(4):
        watch.record(step)
        optimizer.zero_grad()
        (0.5 * (mlp(x) - y).square().sum()).backward()
        optimizer.step()
    return {
        "status": run.status,
        "losses": run.losses,
        "eigenvalues": run.monitors["least_eigenvalue"],
        "outputs": net(x),
        "watched": watch.records.losses,
        "watched eigenvalues": watch.records.monitors["least_eigenvalue"],
        "distances": {name: d[-1].item() for name, d in watch.records.distances.items()},
    }


# Loops


@call(1e-4, "errors of outputs against a limit that is solved to 1e-6 or better")
def diagnosed_loops() -> Any:
    net, x = net_of(tanh()), points(6, 4)
    d = shoal.diagnose(net, x, equilibrium=True)
    z0 = torch.ones(3, 2).double()
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    loops = {"turns": lambda z: z @ turn, "grows": lambda z: 1.5 * z}
    behaviors = {name: shoal.diagnose(shoal.Loop(f, z0)).behavior for name, f in loops.items()}
    found = d.equilibrium
    assert found is not None
    assert found.spectrum is not None
    states = torch.cat([one[:1] for one in found.states])
    state, context = d.loop.begin(x)
    final, errors = d.loop.head(states, context).detach(), []
    for n in range(4):
        off = (d.loop.head(state, context).detach() - final).norm(dim=1) / final.norm(dim=1)
        errors.append([float(off.median()), float(off.max())])
        state = d.loop.step(state, context, n)
    return {
        "behavior": d.behavior,
        "behaviors": behaviors,
        "samples": len(d.samples),
        "solved": found.solved,
        "size": states.shape[1],
        "equilibria": list(found.counts),
        "contraction": found.contraction,
        "errors": errors,
        "norms": list(found.spectrum.norms),
        "radii": list(found.spectrum.radii),
        "converged": {s.name: s.converged for s in found.solvers},
    }


@call(1e-4, "shares of samples")
def distilled_loop() -> Any:
    net, x = net_of(tanh(), width=8), points(80, 4)
    t = shoal.distill(net, x, x[:, :2].argmax(1), depths=(1, 3), epochs=1, width=8)
    names = "cut to 1 iteration", "cut to 3 iterations"
    cut = [c for c in t.candidates if c.name in names]
    return {
        "samples": t.samples,
        "accuracy": t.original.scores.accuracy,
        "unrolled": [[c.scores.accuracy, c.scores.agreement] for c in cut],
    }


# Adapters


@call(1e-10, "the kernels themselves", "sklearn")
def sklearn_kernel() -> Any:
    from shoal.adapters import SklearnKernel

    kernel = SklearnKernel("relu", recurrent_variance=0.3, input_variance=0.7)
    values, slopes = kernel(points(6, 4).numpy(), eval_gradient=True)
    return {"values": values, "diagonal": kernel.diag(points(6, 4).numpy()), "slopes": slopes}


@call(1e-6, "variances are parameters, made positive by a softplus", "gpytorch")
def gpytorch_kernel() -> Any:
    from shoal.adapters import GPyTorchKernel

    covariance = GPyTorchKernel(relu()).double()
    return covariance(points(6, 4)).to_dense()


@call(1e-7, "equilibria with a tolerance of 1e-10")
def torchdeq_interface() -> Any:
    from shoal.adapters.torchdeq import get_deq

    cell, x = filled(Cell()), points(4, 3)
    deq = get_deq(f_solver="fixed_point_iter", f_tol=1e-10, f_max_iter=200)
    states, _ = deq(lambda z: cell(z, x), torch.zeros(4, 5).double())
    return {"states": len(states), "value": states[-1]}


# Data and commands


@call(1e-6, "sums in float32", "sklearn")
def digits() -> Any:
    d = data.load("digits")
    return {
        "x": d.x.double().reshape(len(d.x), -1)[::50],
        "y": d.y[::50],
        "sum": float(d.x.double().sum()),
        "shape": list(d.x.shape),
        "dtype": str(d.x.dtype),
        "classes": list(d.classes),
    }


@call(1e-12, "decimal numbers")
def tables() -> Any:
    text = "a,b,kind\n1.5,2,x\n-0.25,1e3,y\n3,4,x\n"
    with tempfile.TemporaryDirectory() as folder:
        path, array = Path(folder) / "t.csv", Path(folder) / "t.npz"
        path.write_text(text)
        np.savez(array, X=np.arange(6.0).reshape(3, 2), y=np.array([0, 1, 1]))
        table = data.read_csv(path, label="kind", dtype=torch.float64)
        binary = data.read_numpy(array, task="classification", dtype=torch.float64)
        path.write_text("a,b\n1,2\n3\n")
        broken = error(lambda: data.read_csv(path))
        missing = error(lambda: data.read_csv(Path(folder) / "none.csv"))
    return {
        "csv": [table.x, table.y, list(table.classes)],
        "numpy": [binary.x, binary.y],
        "one hot": table.targets(2),
        "signed": table.targets()[:, 0],
        "unit": torch.nn.functional.normalize(table.x),
        "errors": [broken, missing],
    }


@call(0.0, "types of errors")
def careless_calls() -> Any:
    x, y = points(6, 4), points(6)
    net = net_of(tanh())
    build = shoal.build
    return {
        name: error(run)
        for name, run in {
            "variance": lambda: shoal.DEQ(shoal.activations.Tanh(), -0.1, 0.8),
            "no contraction": lambda: shoal.kernel(
                shoal.DEQ(shoal.activations.ReLU(), 3.0, 1.0), x
            ),
            "activation": lambda: shoal.DEQ(3, 0.2, 0.8),
            "nan": lambda: shoal.kernel(tanh(), x / 0),
            "shape": lambda: shoal.kernel(tanh(), x[0]),
            "features": lambda: shoal.kernel(tanh(), x, points(3, 5)),
            "integers": lambda: shoal.kernel(tanh(), torch.ones(3, 2).long()),
            "no architecture": lambda: shoal.kernel("tanh", x),
            "group": lambda: shoal.kernel(tanh(), x, trainable={"output"}),
            "ridge": lambda: shoal.kernel_regression(tanh(), x, y, ridge=-1.0),
            "rule": lambda: shoal.kernel_regression(tanh(), x, y, ridge="best"),
            "targets": lambda: shoal.kernel_regression(tanh(), x, y[:3], ridge=0.1),
            "width": lambda: build(tanh(), in_features=4, width=0),
            "net input": lambda: net(points(3, 5)),
            "net dtype": lambda: net(x.float()),
            "cell": lambda: shoal.Equilibrium(3),
            "cell shape": lambda: shoal.Equilibrium(lambda z: z[:, :1])(x),
            "on_failure": lambda: shoal.Equilibrium(_failing, on_failure="ignore"),
            "method": lambda: shoal.design(tanh(), input_norm=1.0, method="guess"),
            "labels": lambda: shoal.certify(net, x, y[:2, None]),
            "mixture": lambda: shoal.GaussianMixture([[1.0, 2.0]], [1.0, 2.0]),
            "data set": lambda: data.load("unknown"),
        }.items()
    }


def command(*arguments: str) -> dict[str, Any]:
    """Run a command in this process; the document that it prints."""
    from shoal.app import main

    logger, out = logging.getLogger("shoal"), io.StringIO()
    before = list(logger.handlers), logger.level
    code: object = 0
    try:
        with (
            mock.patch.object(sys, "argv", ["shoal", *arguments, "--json"]),
            contextlib.redirect_stdout(out),
        ):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        logger.handlers[:], logger.level = before
    return {"code": code, **json.loads(out.getvalue())}


@call(1e-6, "sections of a kernel in float64", "typer", "rich", "sklearn")
def command_analyze() -> Any:
    only = "kernels,equivalents,spectrum"
    found = command("analyze", "-n", "40", "--activation", "relu", "--only", only)
    parts = found["sections"]
    return {
        "code": found["code"],
        "samples": found["data"]["samples"],
        "trace": parts["kernels"]["ntk"]["trace"],
        "largest": parts["kernels"]["ntk"]["largest"],
        "effective rank": parts["kernels"]["ck"]["effective_rank"],
        "upper end": parts["spectrum"]["ntk"]["upper_end"],
        "alpha1": parts["equivalents"]["alpha1"],
        "beta1": parts["equivalents"]["beta1"],
        "kappa2": parts["equivalents"]["kappa2"],
    }


@call(1e-5, "a limit that is solved to 1e-6 or better", "typer", "rich", "jinja2", "matplotlib")
def command_diagnose() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        shoal.save(net_of(tanh()), Path(folder) / "net.safetensors")
        np.save(Path(folder) / "x.npy", points(8, 4).numpy())
        found = command(
            "diagnose", f"{folder}/net.safetensors", "--data", f"{folder}/x.npy", "-n", "8"
        )
    return {
        "code": found["code"],
        "samples": len(found["samples"]),
        "behavior": found["behavior"],
        "contraction": found["equilibrium"]["contraction"],
        "equilibria": found["equilibrium"]["counts"],
        "norms": found["equilibrium"]["jacobian"]["norms"],
        "radii": found["equilibrium"]["jacobian"]["radii"],
    }


@call(1e-9, "roots of scalar equations", "typer", "rich")
def command_design() -> Any:
    found = command("design")
    return {
        "code": found["code"],
        "feasible": found["feasible"],
        "target": found["target"],
        "obtained": found["obtained"],
    }


@call(1e-6, "bounds of norms", "typer", "rich", "sklearn")
def command_certify() -> Any:
    found = command("certify", "-n", "4", "--width", "500")
    return {name: found[name] for name in ("code", "holds", "step_size", "rate")}


@call(1e-5, "rounded to seven digits for the page", "typer", "rich", "jinja2", "sklearn")
def command_explore() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        found = command("explore", "digits", "-n", "100", "--output", folder)
        # stored when the page could have any name
        written = [name.replace("explorer", "page") for name in os.listdir(folder)]
    names = ("samples", "size", "values", "norms")
    population = {name: found["population"][name] for name in names}
    return {"code": found["code"], "files": written, "population": population}


def main() -> None:
    """Store what is not stored yet."""
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/golden.py --write")
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    missing = [name for name in CALLS if name not in stored]
    stored |= {name: plain(CALLS[name].run()) for name in missing}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in stored.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(missing)} calls added to {FILE.name}")  # noqa: T201


if __name__ == "__main__":
    main()

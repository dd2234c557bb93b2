"""Every public function, called with one argument that is bad or odd, refuses it or answers.

A refusal is a ``ValueError``, a ``TypeError`` or an error of shoal's own. Anything else (an
``AttributeError`` from within, torch's words for a layout it does not know) says nothing to a
caller, and is a fault wherever it comes from.
"""

import math
import random
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from shoal import (
    adapters,
    approximation,
    certificates,
    convergence,
    data,
    designs,
    gaussian,
    mixtures,
    networks,
    regression,
    spectra,
    training,
)

Case = tuple[Callable[..., object], dict[str, Any]]

DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
X = torch.nn.functional.normalize(torch.randn(6, 3, generator=GENERATOR, dtype=DOUBLE))
Y = torch.randn(6, generator=GENERATOR, dtype=DOUBLE)
ONES = torch.ones(6, dtype=DOUBLE)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
IMAGES = torch.randn(2, 1, 4, generator=GENERATOR, dtype=DOUBLE)

RELU = shoal.ReLU()
DEQ = shoal.DEQ(RELU, 0.2, 0.8)
CONV = shoal.ConvResNet(RELU, 2)
MIXTURE = shoal.GaussianMixture([[0.3, 0.0, 0.0], [-0.3, 0.0, 0.0]], 1.0)

REFUSALS = (
    ValueError,
    TypeError,
    OSError,  # of paths
    shoal.AccuracyError,
    shoal.ConvergenceError,
    shoal.TrainingError,
)

VALUES: dict[str, Callable[[], object]] = {
    "10**400": lambda: 10**400,
    "-10**5000": lambda: -(10**5000),
    "2**62": lambda: 2**62,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1e308": lambda: 1e308,
    "5e-324": lambda: 5e-324,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "True": lambda: True,
    "None": lambda: None,
    "empty text": lambda: "",
    "text": lambda: "abc",
    "NUL": lambda: "a\0b",
    "bytes": lambda: b"x",
    "complex": lambda: 1 + 2j,
    "huge fraction": lambda: Fraction(10**400, 3),
    "long double": lambda: np.longdouble("1e400"),
    "empty list": list,
    "huge list": lambda: [10**400],
    "ragged": lambda: [[1.0, 2.0], [3.0]],
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "object": object,
    "class": lambda: shoal.ReLU,
    "activation": lambda: RELU,
    "module": lambda: torch.nn.Linear(3, 1),
    "generator": lambda: (i for i in range(3)),
    "unknown device": lambda: torch.device("cuda:7"),
    "unused device": lambda: "hpu",
    "integers": lambda: torch.int32,
    "float8": lambda: torch.float8_e4m3fn,
    "no such path": lambda: Path("/no/such/folder/file"),
    "scalar tensor": lambda: torch.tensor(0.5, dtype=DOUBLE),
    "scalar meta tensor": lambda: torch.tensor(0.5, device="meta"),
    "scalar with gradient": lambda: torch.tensor(0.5, dtype=DOUBLE, requires_grad=True),
    "strings": lambda: np.array(["a", "b"]),
}

TENSORS: dict[str, Callable[[Tensor], object]] = {
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "sparse rows": lambda t: t.reshape(len(t), -1).to_sparse_csr(),
    "mkldnn": lambda t: t.float().to_mkldnn(),
    "nested": lambda t: torch.nested.nested_tensor([t.reshape(-1), t.reshape(-1)]),
    "jagged": lambda t: torch.nested.nested_tensor([t.reshape(-1)] * 2, layout=torch.jagged),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "complex": lambda t: t.to(torch.complex128),
    "imaginary": lambda t: t.to(torch.complex128).conj().imag,
    "gradient": lambda t: t.to(DOUBLE).clone().requires_grad_(),
    "integers": lambda t: t.to(torch.int64),
    "bool": lambda t: t.to(torch.bool),
    "half": lambda t: t.half(),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "nan": lambda t: t.double() * math.nan,
    "huge": lambda t: t.double() * 1e300,
    "zeros": torch.zeros_like,
    "expanded": lambda t: t.reshape(-1)[:1].expand(t.shape),
    "more axes": lambda t: t[None],
    "one axis": lambda t: t.reshape(-1),
    "fewer rows": lambda t: t[: len(t) // 2],
    "no rows": lambda t: t[:0],
    "no columns": lambda t: t[..., :0],
    "one number": lambda t: t.reshape(-1)[0].item(),
    "array": lambda t: t.numpy(),
    "objects": lambda t: t.numpy().astype(object),
    "text": lambda t: t.numpy().astype(str),
    "long doubles": lambda t: t.numpy().astype(np.longdouble),
    "dates": lambda t: t.numpy().astype("M8[s]"),
    "backwards": lambda t: t.numpy()[::-1],
    "void": lambda t: np.zeros(t.shape, "V8"),
}


def cases(folder: Path) -> dict[str, Case]:
    """Calls that are answered, by name; each of their arguments is to be replaced."""
    network = shoal.build(DEQ, in_features=3, width=8, dtype=DOUBLE)
    shoal.save(network, folder / "network")
    np.savez(folder / "data.npz", x=X.numpy(), y=LABELS.numpy())
    (folder / "data.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n")
    return {
        **activation_cases(),
        **network_cases(folder, network),
        **kernel_cases(folder),
        **mixture_cases(),
        **data_cases(folder),
        **inner_cases(),
    }


def activation_cases() -> dict[str, Case]:
    smooth, tanh = shoal.Hermite((0.0, 1.0)), shoal.Tanh()
    return {
        "ELU": (shoal.ELU, {"alpha": 0.5}),
        "Affine": (shoal.Affine, {"activation": tanh, "scale": 2.0, "shift": 1.0}),
        "Hermite": (shoal.Hermite, {"coefficients": (0.0, 1.0), "scale": 1.0}),
        "Kink": (shoal.Kink, {"location": 0.0, "jumps": (1.0, 0.0, 0.0)}),
        "Sinusoid": (shoal.Sinusoid, {"frequency": 1.0, "phase": 0.0, "slope": 0.0}),
        "PiecewisePolynomial": (
            shoal.PiecewisePolynomial,
            {"knots": (0.0, 1.0), "pieces": ((0.0, 1.0),), "corners": (0.0,)},
        ),
        **{repr(phi): (phi, {"x": Y}) for phi in (tanh, smooth, RELU, shoal.GELU())},
        "derivative": (tanh.derivative, {"x": Y, "order": 1}),
        "DEQ": (shoal.DEQ, {"activation": tanh, "recurrent_variance": 0.2, "input_variance": 1.0}),
        "FullyConnected": (shoal.FullyConnected, {"activations": (RELU,), "normalized": False}),
        "ResNet": (shoal.ResNet, {"activation": RELU, "depth": 2, "residual_scale": 1.0}),
        "ConvResNet": (shoal.ConvResNet, {"activation": RELU, "depth": 2, "patch_size": 3}),
        "ConvDEQ": (
            shoal.ConvDEQ,
            {"activation": tanh, "recurrent_variance": 0.2, "input_variance": 1.0},
        ),
        "ImplicitNetwork": (shoal.ImplicitNetwork, {"gamma": 0.5, "bias_variance": 0.1}),
        "check_trainable": (DEQ.check_trainable, {"trainable": {"readout"}}),
        "dual": (gaussian.dual, {"phi": RELU, "a": 1.0, "b": ONES, "c": 0.5, "tolerance": 1e-9}),
        "hermite": (gaussian.hermite, {"phi": tanh, "tau": 1.0}),
        "moments": (gaussian.moments, {"phi": RELU, "tau": ONES}),
    }


def network_cases(folder: Path, network: Any) -> dict[str, Case]:
    sizes = {"in_features": 3, "width": 8, "out_features": 1, "seed": 0, "readout_scale": 1.0}
    kinds = {"dtype": DOUBLE, "device": "cpu", "weights": "gaussian", "trainable": {"readout"}}
    tolerances = {"rtol": 1e-6, "atol": 1e-6, "max_steps": 9}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    certificate = shoal.certify(network, X, Y)
    training_run = {"net": network, "x": X, "y": Y, "step_size": 0.01, "monitor": False}
    return {
        "build": (shoal.build, {"architecture": DEQ, **sizes, **kinds, "warm_start": False}),
        "load": (shoal.load, {"path": folder / "network", "device": "cpu", "activations": ()}),
        "save": (shoal.save, {"network": network, "path": folder / "other"}),
        "Anderson": (shoal.Anderson, {"memory": 5, "mixing": 1.0, **tolerances}),
        "NewtonKrylov": (shoal.NewtonKrylov, {"inner_steps": 5, "inner_rtol": 0.1, **tolerances}),
        "GainConstraint": (shoal.GainConstraint, {"network": network, "max_gain": 0.9}),
        "MonotoneCell": (
            shoal.MonotoneCell,
            {"in_features": 3, "width": 4, "activation": RELU, "margin": 0.5},
        ),
        "jacobian_penalty": (
            lambda **rest: shoal.jacobian_penalty(network, network.features(X), X, **rest),
            {"probes": 1, "generator": GENERATOR},
        ),
        "attach": (shoal.GainConstraint(network).attach, {"optimizer": optimizer}),
        "operator_norm_bounds": (networks.operator_norm_bounds, {"matrix": X, "tightness": 1e-3}),
        "well_posedness": (network.well_posedness, {"tightness": 1e-3}),
        "best": (certificate.best, {"dynamics": "gradient flow"}),
        "certify": (shoal.certify, {"net": network, "y": Y, "x": X, "step_size": 1e-6}),
        "train": (shoal.train, {**training_run, "method": "descent", "steps": 0}),
        "Monitor": (training.Monitor, {"every": 10, "promises": {"gain"}}),
        "least_eigenvalue": (certificates.least_eigenvalue, {"matrix": X @ X.T, "error": 0.0}),
        "spectral_norm": (certificates.spectral_norm, {"matrix": X}),
    }


def kernel_cases(folder: Path) -> dict[str, Case]:
    inputs = {"architecture": DEQ, "x1": X, "x2": X[:4], "trainable": {"readout"}, "width": None}
    options = {"variances": None, "memory": "1GiB", "out": folder / "kernels", "on_progress": None}
    function, operator = shoal.kernel_function(DEQ), shoal.kernel_operator(DEQ, X).ck
    fitted = shoal.kernel_regression(DEQ, X, Y, ridge=0.1)
    fit = {"architecture": DEQ, "x": X, "y": Y, "ridge": 0.1, "which": "ntk"}
    flow = {"architecture": DEQ, "x": X, "y": Y, "x_test": X[:4], "times": [1.0]}
    linear = convergence.LinearTraining(shoal.kernel(DEQ, X), Y)
    equivalent = shoal.equivalent(DEQ, X, LABELS)
    variance = {"value": torch.tensor(0.2, dtype=DOUBLE)}
    return {
        "kernel": (shoal.kernel, {**inputs, **options}),
        "kernel of images": (shoal.kernel, {"architecture": CONV, "x1": IMAGES, "diag": True}),
        "kernel by variance": (
            lambda value: shoal.kernel(DEQ, X, variances={"recurrent_variance": value}),
            variance,
        ),
        "kernel_operator": (shoal.kernel_operator, {**inputs, "memory": 10**9}),
        "KernelOperator @": (lambda other: operator @ other, {"other": ONES}),
        "KernelOperator.solve": (operator.solve, {"other": ONES, "shift": 0.1, "rtol": 1e-6}),
        "KernelOperator.write": (operator.write, {"out": X @ X.T}),
        "KernelFunction": (function, {"a": 1.0, "b": 1.0, "c": 0.5}),
        "KernelFunction.own": (function.own, {"a": ONES}),
        "pair_eigenvalue": (shoal.pair_eigenvalue, {"x": X}),
        "kernel_regression": (shoal.kernel_regression, {**fit, "method": "cg"}),
        "predict": (fitted.predict, {"x": X}),
        "likelihood": (fitted.estimate_log_marginal_likelihood, {"probes": 2, "seed": 0}),
        "gradient_flow": (shoal.gradient_flow, {**flow, "readout_scale": 1.0}),
        "LinearTraining.run": (linear.run, {"steps": [1, 2], "step_size": 0.01}),
        "time_to": (linear.time_to, {"loss": 1.5, "step_size": 0.01}),
        "coefficients": (shoal.coefficients, {"architecture": DEQ, "tau0": 1.0, "center": True}),
        "equivalent": (shoal.equivalent, {"architecture": DEQ, "x": X, "labels": LABELS}),
        "Equivalent.error": (equivalent.error, {"count": 5, "seed": 0}),
        "Equivalent @": (lambda other: equivalent.ck @ other, {"other": ONES}),
        "design": (shoal.design, {"architecture": DEQ, "tau0": 1.0, "match": "ck"}),
        "feasibility": (
            designs.feasibility,
            {"activation": RELU, "recurrent_variances": [0.1], "injected": [1.0], "match": "ck"},
        ),
    }


def mixture_cases() -> dict[str, Case]:
    law = shoal.spectrum(DEQ, MIXTURE, n=6).ck
    scalar = mixtures.ScalarCovariance(1.0, 3)
    draw = {"count": 3, "generator": GENERATOR, "dtype": DOUBLE}
    return {
        "GaussianMixture": (
            shoal.GaussianMixture,
            {"means": X[:2], "covariances": [1.0, X.T @ X], "proportions": [0.5, 0.5]},
        ),
        "GaussianMixture.fit": (shoal.GaussianMixture.fit, {"x": X, "labels": LABELS}),
        "sample": (MIXTURE.sample, {"n": 4, "seed": 0, "dtype": DOUBLE, "counts": "exact"}),
        "DiagonalCovariance": (mixtures.DiagonalCovariance, {"values": ONES}),
        "LowRankCovariance": (mixtures.LowRankCovariance, {"factor": X, "diagonal": 0.5}),
        "Covariance.apply": (scalar.apply, {"v": ONES[:3]}),
        "Covariance.draw": (scalar.draw, draw),
        "class_indices": (mixtures.class_indices, {"labels": LABELS, "classes": (0, 1)}),
        "spectrum": (shoal.spectrum, {"architecture": DEQ, "mixture": MIXTURE, "n": 6}),
        "density": (law.density, {"grid": ONES}),
        "quantile": (law.quantile, {"levels": ONES / 2}),
        "stieltjes": (law.stieltjes, {"z": np.array([1 + 1j])}),
        "Law": (spectra.Law, {"covariances": [np.eye(2)], "counts": np.array([4.0])}),
    }


def data_cases(folder: Path) -> dict[str, Case]:
    images = data.Dataset(torch.rand(6, 16), LABELS, "images", ("a", "b"), (1, 4, 4))
    regressor = adapters.KernelRegressor(ridge=0.1).fit(X.numpy(), Y.numpy())
    classifier = adapters.KernelClassifier(ridge=0.1)
    table = {"path": folder / "data.csv", "label": "kind", "delimiter": ",", "regression": False}
    fields = {"x": X, "y": LABELS, "name": "data", "classes": ("a", "b"), "image_shape": None}
    learned = adapters.GPyTorchKernel(DEQ, learn=("recurrent_variance",))
    set_variance = learned.set_variance
    return {
        "Dataset": (data.Dataset, fields),
        "read_csv": (data.read_csv, table),
        "read_numpy": (data.read_numpy, {"path": folder / "data.npz", "dtype": DOUBLE}),
        "standardize": (data.standardize, {"dataset": images, "like": images}),
        "subsample": (data.subsample, {"dataset": images, "n_per_class": 1, "seed": 0}),
        "KernelRegressor.predict": (regressor.predict, {"X": X}),
        "KernelClassifier.fit": (classifier.fit, {"X": X, "y": LABELS}),
        "SklearnKernel": (adapters.SklearnKernel(), {"X": X, "Y": X}),
        "GPyTorchKernel": (learned.forward, {"x1": X, "x2": X, "diag": False}),
        "set_variance": (lambda value: set_variance("recurrent_variance", value), {"value": 0.1}),
    }


def inner_cases() -> dict[str, Case]:
    matrix = X @ X.T
    series = approximation.Chebyshev(((-1.0, 1.0),), ONES)
    factor = regression.CholeskyFactor(matrix.clone(), matrix.diagonal().clone(), 0.1)
    box = {"box": [(-1.0, 1.0)], "tolerance": 1e-6, "max_degree": 30}
    return {
        "Cholesky": (shoal.Cholesky, {"precision": DOUBLE, "tolerance": 1e-6}),
        "ConjugateGradients": (
            shoal.ConjugateGradients,
            {"preconditioner": None, "tolerance": 1e-6, "max_steps": 9, "precision": DOUBLE},
        ),
        "MomentMatching": (shoal.MomentMatching, {"family": "sinusoid"}),
        "SphereMatching": (
            shoal.SphereMatching,
            {"norm_gated": False, "degree": 48, "tolerance": 1e-6},
        ),
        "Nystrom": (shoal.Nystrom, {"rank": 3, "seed": 0}),
        "EquivalentPreconditioner": (shoal.EquivalentPreconditioner, {"labels": LABELS}),
        "CombinedPreconditioner": (
            shoal.CombinedPreconditioner,
            {"rank": 3, "seed": 0, "labels": LABELS},
        ),
        "CholeskyFactor": (
            regression.CholeskyFactor,
            {"matrix": matrix, "diagonal": matrix.diagonal(), "ridge": 0.1},
        ),
        "CholeskyFactor.solve": (factor.solve, {"b": X}),
        "Diagonal.solve": (regression.Diagonal(ONES).solve, {"vectors": X}),
        "Columns": (
            regression.Columns,
            {"columns": X, "gram": X.T @ X, "outside": 0.1, "scale": 2.0},
        ),
        "chebyshev_nodes": (approximation.chebyshev_nodes, {"degree": 3, "low": 0.0, "high": 1.0}),
        "differentiate": (approximation.differentiate, {"coefficients": X, "dim": -1}),
        "supremum": (approximation.supremum, {"coefficients": X}),
        "fit": (
            lambda **rest: approximation.fit(torch.sin, **rest),
            {**box, "first_degree": 8, "check_points": 5},
        ),
        "Chebyshev": (lambda points: series(points), {"points": ONES}),
    }


def replacements(calls: dict[str, Case]) -> Iterator[tuple[str, str, str]]:
    """The names of a call, of an argument and of what it is replaced by."""
    for name, (_, arguments) in calls.items():
        for argument, value in arguments.items():
            yield from ((name, argument, bad) for bad in VALUES)
            if isinstance(value, Tensor) and value.dim():
                yield from ((name, argument, f"tensor: {bad}") for bad in TENSORS)


def unclear_end(case: Case, argument: str, bad: str) -> str | None:
    """What a call ends in that is neither an answer nor a refusal."""
    function, arguments = case
    kind, valid = bad.removeprefix("tensor: "), arguments[argument]
    given = {n: v.clone() if isinstance(v, Tensor) else v for n, v in arguments.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given[argument] = VALUES[bad]() if kind == bad else TENSORS[kind](valid.clone())
            function(**given)
    except REFUSALS:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return None


def faults(folder: Path, count: int, seed: int) -> list[str]:
    """The unclear ends of so many random calls."""
    calls = cases(folder)
    chosen = random.Random(seed).sample(list(replacements(calls)), count)
    ends = ((one, unclear_end(calls[one[0]], *one[1:])) for one in chosen)
    return [f"{', '.join(one)}: {end}" for one, end in ends if end is not None]


@pytest.mark.thorough
def test_bad_input_is_refused_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some odd values are good names of files
    assert faults(tmp_path, 400, seed=0) == []


@pytest.mark.slow
def test_much_bad_input_is_refused_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults(tmp_path, 6000, seed=1) == []


@pytest.mark.parametrize("architecture", [2**62, torch.float8_e4m3fn, None])
def test_designs_need_an_architecture(architecture: object) -> None:
    with pytest.raises(TypeError, match="architecture must be an Architecture or a network, got"):
        shoal.design(architecture, tau0=1.0)


def test_a_data_frame_is_refused_with_what_to_give_instead() -> None:
    class Frame:
        def to_numpy(self) -> np.ndarray:
            return np.eye(2)

    deq, frame = shoal.DEQ("relu", 0.2, 0.8), Frame()
    with pytest.raises(TypeError, match=r"got Frame: give torch\.tensor\(x1\.to_numpy\(\)\)$"):
        shoal.kernel(deq, frame)
    assert shoal.kernel(deq, torch.tensor(frame.to_numpy())).ck.shape == (2, 2)

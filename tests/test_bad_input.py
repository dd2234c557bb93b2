"""Public functions refuse what makes no sense, and name the argument that they refuse."""

import inspect
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal import asymptotics, certificates, data, gaussian

DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
X = torch.nn.functional.normalize(torch.randn(6, 3, generator=GENERATOR, dtype=DOUBLE))
Y = torch.randn(6, generator=GENERATOR, dtype=DOUBLE)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
DEQ = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)
MIXTURE = shoal.GaussianMixture([[0.3, 0.0, 0.0], [-0.3, 0.0, 0.0]], 1.0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch calls it a prototype
    MASKED = torch.masked.masked_tensor(X, X > 0)
HOLES = np.ma.masked_array(np.eye(6, 3), mask=np.eye(6, 3) > 0)
BAD_MATRICES = {
    "sparse": X.to_sparse(),
    "masked tensor": MASKED,
    "meta": X.to("meta"),
    "complex": X + 0j,
    "integers": (9 * X).long(),
    "NaN": X / 0,
    "no rows": X[:0],
    "masked": HOLES,
    "text": np.array([["a", "b", "c"]] * 6),
    "ragged": [[1.0, 2.0], [3.0]],
    "None": None,
}


def network() -> torch.nn.Module:
    return shoal.build(DEQ, in_features=3, width=8, dtype=DOUBLE)


NET = network()
REGRESSION = {"architecture": DEQ, "x": X, "y": Y, "ridge": 0.1}
TRAINING = {"net": NET, "x": X, "y": Y, "step_size": 0.01, "steps": 1}
DESCENT = {"architecture": DEQ, "x": X, "y": Y, "times": [1.0]}
BUILT = {"architecture": DEQ, "in_features": 3, "width": 8}
VARIANCES = {
    "activation": shoal.activations.Tanh(),
    "recurrent_variance": 0.2,
    "input_variance": 1.0,
}

# a function, arguments that it answers, and what none of them may be
CASES: list[tuple[Callable[..., object], dict[str, Any], dict[str, tuple[object, ...]]]] = [
    (shoal.activations.ELU, {}, {"alpha": ("a", math.nan, True)}),
    (
        shoal.activations.Hermite,
        {"coefficients": (0.0, 1.0)},
        {"coefficients": ((), ("a",), (math.inf,))},
    ),
    (shoal.DEQ, VARIANCES, {"activation": (3, None), "recurrent_variance": (-1, math.nan, "a")}),
    (shoal.DEQ, VARIANCES, {"input_variance": (math.inf, None), "parametrization": ("other",)}),
    (
        shoal.FullyConnected,
        {"activations": (shoal.activations.ReLU(),)},
        {"activations": ((), (3,)), "normalized": (1, "no"), "norm_gated": (1, None)},
    ),
    (
        shoal.ResNet,
        {"activation": shoal.activations.ReLU(), "depth": 2},
        {"depth": (0, 2.5), "residual_scale": (-1.0, math.nan)},
    ),
    (
        shoal.ConvResNet,
        {"activation": shoal.activations.ReLU(), "depth": 2},
        {"patch_size": (2, 0), "padding": ("same",)},
    ),
    (
        gaussian.dual,
        {"phi": shoal.activations.ReLU(), "a": 1.0, "b": 1.0, "c": 0.5},
        {"phi": (3,), "a": (-1.0, math.nan, "a"), "c": (2.0,), "tolerance": (0.0, -1.0)},
    ),
    (
        shoal.kernel,
        {"architecture": DEQ, "x1": X},
        {"x1": tuple(bad for name, bad in BAD_MATRICES.items() if name != "no rows")},
    ),
    (
        shoal.kernel,
        {"architecture": DEQ, "x1": X},
        {
            "x2": (X[:, :2], X.float(), HOLES),
            "architecture": (3, shoal.activations.ReLU()),
            "trainable": ({"nothing"}, 3),
            "memory": ("two", 0),
            "diag": ("no", 1),
        },
    ),
    (shoal.kernel_operator, {"architecture": DEQ, "x1": X}, {"memory": ("lots", -1)}),
    (
        shoal.coefficients,
        {"architecture": DEQ, "input_norm": 1.0},
        {"input_norm": (0.0, math.inf), "center": (1, "no")},
    ),
    (
        shoal.equivalent,
        {"architecture": DEQ, "x": X, "labels": LABELS},
        {"x": (HOLES, None), "labels": (LABELS[:3],)},
    ),
    (
        shoal.design,
        {"architecture": DEQ, "input_norm": 1.0},
        {"which": ("nkt",), "input_norm": (0.0,)},
    ),
    (shoal.design, {"architecture": DEQ, "input_norm": 1.0}, {"architecture": (2**62, None)}),
    (
        shoal.spectrum,
        {"architecture": DEQ, "mixture": MIXTURE, "n": 6},
        {"mixture": (3,), "n": (0, 2.5)},
    ),
    (
        shoal.GaussianMixture,
        {"means": X[:2], "covariances": 1.0},
        {"means": (HOLES, X[:2] / 0), "proportions": ([-0.5, 1.5],)},
    ),
    (asymptotics.DiagonalCovariance, {}, {"values": (-Y.abs(), Y / 0)}),
    (
        shoal.kernel_regression,
        REGRESSION,
        {"x": (HOLES, None), "y": (Y[:3], Y / 0), "ridge": (-1.0, "many"), "which": ("both",)},
    ),
    (shoal.learning.Nystrom, {"rank": 3}, {"rank": (0, 2.5)}),
    (shoal.learning.Cholesky, {}, {"tolerance": (-1.0, "a")}),
    (
        shoal.gradient_flow,
        DESCENT,
        {"x": (HOLES,), "y": (Y[:3],), "times": ([-1.0], [math.nan])},
    ),
    (
        shoal.build,
        BUILT,
        {
            "in_features": (0, 2.5),
            "width": (-1, "wide"),
            "dtype": (torch.int32,),
            "seed": (1.5,),
            "warm_start": (1,),
        },
    ),
    (shoal.certify, {"net": NET, "x": X, "y": Y}, {"x": (HOLES,), "y": (Y[:3],)}),
    (shoal.certify, {"net": NET, "x": X, "y": Y}, {"step_size": (0.0, -1.0)}),
    (certificates.spectral_norm, {}, {"matrix": (X / 0, Y, None)}),
    (
        shoal.train,
        TRAINING,
        {"x": (HOLES,), "y": (Y[:3],), "step_size": (0.0, "a"), "steps": (-1, 2.5)},
    ),
    (shoal.Anderson, {}, {"history": (0, 2.5), "mixing": (0.0, math.nan)}),
    (shoal.NewtonKrylov, {}, {"inner_steps": (0,), "rtol": (-1.0, "a")}),
    (shoal.Picard, {}, {"max_steps": (0, 1.5)}),
    (shoal.Implicit, {}, {"solver": ("anderson",), "rtol": (-1,)}),
    (shoal.Reversible, {"damping": 0.5}, {"damping": (0, 1, "half")}),
    (shoal.GainConstraint, {"network": NET}, {"max_gain": (0.0, math.nan), "network": (3,)}),
    (shoal.Equilibrium, {"cell": torch.cos}, {"on_failure": ("ignore",), "gradient": ("jfb",)}),
    (
        data.read_csv,
        {"path": "a.csv", "label": 1},
        {
            "drop_missing": (1,),
            "task": ("cluster",),
            "sep": ("ab",),
            "header": ("no",),
            "label": (1.5,),
        },
    ),
]
TABLE = [
    pytest.param(call, valid, name, bad, id=f"{getattr(call, '__name__', call)}-{name}-{number}")
    for call, valid, arguments in CASES
    for name, values in arguments.items()
    for number, bad in enumerate(values)
]


@pytest.mark.parametrize(("call", "valid", "argument", "bad"), TABLE)
def test_bad_input(
    call: Callable[..., object],
    valid: dict[str, Any],
    argument: str,
    bad: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n1,2\n3,4\n1,3\n", encoding="utf-8")
    given = {**valid, argument: bad}
    inspect.signature(call).bind(**given)  # the argument exists
    with pytest.raises((TypeError, ValueError), match=argument):
        call(**given)


def test_a_data_frame_is_refused_with_what_to_give_instead() -> None:
    class Frame:
        def to_numpy(self) -> np.ndarray:
            return np.eye(2)

    frame = Frame()
    with pytest.raises(TypeError, match=r"got Frame: give torch\.tensor\(x1\.to_numpy\(\)\)$"):
        shoal.kernel(DEQ, frame)
    assert shoal.kernel(DEQ, torch.tensor(frame.to_numpy())).ck.shape == (2, 2)


def test_a_mask_of_nothing_does_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    found = shoal.kernel(DEQ, np.ma.masked_array(x)).ck
    assert np.asarray(found) == pytest.approx(np.asarray(shoal.kernel(DEQ, x).ck))

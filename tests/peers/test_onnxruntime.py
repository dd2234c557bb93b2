"""onnxruntime and ONNX's own checker on exported networks."""

from pathlib import Path

import pytest
import torch

import shoal

onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

SUITE = "ONNX: checker and onnxruntime"
PACKAGE = "onnxruntime"

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]

RELU = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
TANH = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
DESIGNS = {
    "hard_tanh": (
        TANH,
        {"which": "ck", "method": shoal.designs.MomentMatching(family="hard_tanh")},
    ),
    "leaky_relu": (
        RELU,
        {"which": "ck", "method": shoal.designs.MomentMatching(family="leaky_relu")},
    ),
    "sphere": (TANH, {"which": "ntk", "method": "sphere"}),
    "norm_gated": (RELU, {"which": "ck", "method": shoal.designs.SphereMatching(norm_gated=True)}),
}
NETWORKS = {
    "resnet": shoal.ResNet("softplus", 3),
    "biases": shoal.FullyConnected(["tanh", "relu"], bias_variance=0.3),
    "softplus": shoal.FullyConnected(["softplus"]),
    **{n: shoal.FullyConnected([n]) for n in ("elu", "erf", "gelu", "sigmoid", "sine", "swish")},
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6}  # the exporter's constants are float32
NO_ERF = "onnxruntime has no Erf in float64"


def cases():
    for name in (*DESIGNS, *NETWORKS):
        for dtype in TOLERANCE:
            missing = dtype == torch.float64 and name in ("erf", "gelu")
            marks = pytest.mark.xfail(reason=NO_ERF, strict=True) if missing else ()
            yield pytest.param(name, dtype, marks=marks, id=f"{name}-{dtype}")


def network_of(name: str) -> shoal.Architecture:
    if name not in DESIGNS:
        return NETWORKS[name]
    deq, options = DESIGNS[name]
    return shoal.design(deq, input_norm=1.0, **options).architecture


@pytest.mark.parametrize(("name", "dtype"), list(cases()))
def test_exported_networks_are_the_same_functions(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    network = shoal.build(network_of(name), in_features=6, width=20, seed=0, dtype=dtype)
    path = tmp_path / "network.onnx"
    shoal.export(network, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path)
    for samples in (1, 5, 64):
        x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1), dtype=dtype)
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(found), network(x).detach(), rtol=0, atol=TOLERANCE[dtype]
        )


IMAGES = {
    "all pixels": (shoal.ConvNet(["relu", "tanh"], bias_variance=0.3), (5, 4)),
    "circular": (shoal.ConvNet(["relu"] * 2, padding="circular"), (6,)),
    "any size": (shoal.ConvNet(["tanh"], pooling="average"), ()),
}


@pytest.mark.parametrize("name", IMAGES)
def test_exported_networks_of_images(name: str, tmp_path: Path) -> None:
    architecture, sides = IMAGES[name]
    network = shoal.build(
        architecture, in_features=2, width=8, seed=0, dtype=torch.float32, pixels=sides or None
    )
    path = tmp_path / "network.onnx"
    shoal.export(network, path)
    session = onnxruntime.InferenceSession(path)
    for samples, free in ((1, (4, 7)), (5, (11, 5))):
        shape = (samples, 2, *(sides or free))
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), network(x).detach(), rtol=0, atol=1e-5)

"""Networks that are not exported, and what is said of them; peers/test_onnxruntime runs others."""

import pytest
import torch

import shoal

TANH = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
NET = shoal.build(shoal.FullyConnected(["tanh"]), in_features=2, width=3)


@pytest.mark.parametrize(
    ("net", "name", "error", "message"),
    [
        (shoal.build(TANH, in_features=2, width=3), "a.onnx", TypeError, "got one of DEQ; shoal.d"),
        (torch.nn.Linear(2, 3), "a.onnx", TypeError, r"made by shoal\.build, got Linear$"),
        (NET, "net.pt", ValueError, r"must end in \.onnx, got .*net\.pt"),
        (NET, "nowhere/net.onnx", ValueError, r"in a folder that exists, got .*nowhere"),
    ],
)
def test_what_cannot_be_exported(net, name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        shoal.export(net, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_equilibria_are_not_traced():
    deq = shoal.build(TANH, in_features=2, width=3)
    with pytest.raises(TypeError, match=r"got one whose number of solver steps .* shoal\.distill"):
        torch.export.export(deq, (torch.ones(2, 2),))


def test_onnx_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.networks.saving.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"needs onnx and onnxscript.*'shoal-deq\[onnx\]'"):
        shoal.export(NET, tmp_path / "net.onnx")


def test_a_piecewise_polynomial_is_traced_as_itself():
    """Between its knots, at them, and on both tangents."""
    phi = shoal.activations.PiecewisePolynomial(
        (-1.0, 0.5, 2.0), ((0.2, 1.0, -0.3), (0.9, 0.4, 0.1))
    )

    class Module(torch.nn.Module):
        def forward(self, x):
            return phi.function(x)

    x = torch.tensor([-3.0, -1.0, 0.0, 0.5, 1.7, 2.0, 9.0], dtype=torch.float64)
    program = torch.export.export(Module(), (x,)).module()
    torch.testing.assert_close(program(x), phi(x), rtol=1e-13, atol=1e-13)

"""Diagnoses of modules that people come with: layers, whole models, foreign blocks, trees."""

import sys
import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import shoal
from diagnosis.models import DTYPE, Classifier, inputs
from shoal.adapters.torchdeq import get_deq


class Block(nn.Module):
    """A transformer's block that is applied again and again; fused attention and all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        seen, _ = self.attention(z, z, z, need_weights=False)
        z = self.norms[0](x + 0.3 * seen)
        return self.norms[1](x + 0.3 * self.outer(nn.functional.gelu(self.inner(z))))


def test_a_looped_transformer_block() -> None:
    block = Block().double()
    x = inputs(3, 40).reshape(3, 5, 8)
    before = {name: p.clone() for name, p in block.state_dict().items()}
    d = shoal.diagnose(block, torch.zeros_like(x), x, output=lambda z: z.mean(1))
    assert block.training  # as it was, and so are its weights
    assert all(torch.equal(p, before[name]) for name, p in block.state_dict().items())
    assert d.behaviors == {"settles": 3}
    # the oracle: autograd's Jacobian at a long iteration's end
    block.eval()
    z = torch.zeros_like(x)
    for _ in range(300):
        z = block(z, x).detach()
    for row in range(3):
        jacobian = torch.autograd.functional.jacobian(
            lambda s, row=row: block(s[None], x[row : row + 1])[0], z[row]
        ).reshape(40, 40)
        assert d.spectrum.norms[row] == pytest.approx(
            float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-6
        )
        radius = float(torch.linalg.eigvals(jacobian).abs().max())
        assert d.spectrum.radii[row] == pytest.approx(radius, rel=1e-6)
    # and of the depth: means of the tokens after so many steps, and after one less
    final, state, misses = z.mean(1), torch.zeros_like(x), []
    for _ in range(max(d.depth.depths) + 1):
        off = (state.mean(1) - final).norm(dim=1) / final.norm(dim=1)
        misses.append(off > 0.01)
        state = block(state, x).detach()
    for row, depth in enumerate(d.depth.depths):
        assert not bool(misses[depth][row])
        assert bool(misses[depth - 1][row])
    assert {cost.name for cost in d.gradients} >= {"Implicit", "OneStep", "Unrolled"}
    kept = {cost.name: cost.memory for cost in d.gradients}
    assert kept["Unrolled"] > 3 * kept["Implicit"] > 0


def test_a_whole_model_is_looked_into() -> None:
    model, x = Classifier().double(), inputs()
    d = shoal.diagnose(model, None, x)
    u = model.encoder(x)
    layer = shoal.diagnose(model.step, torch.zeros_like(u), u.detach(), output=model.readout)
    assert d.depth.depths == layer.depth.depths
    assert d.depth.decisions is not None
    assert d.spectrum.radii == pytest.approx(layer.spectrum.radii)
    # the exact gradient is that of the model: all of its parameters but the readout's count
    assert d.parameter_bytes == sum(8 * p.numel() for p in model.parameters())
    assert {c.name: c.wrong for c in d.gradients}["Implicit"] is False
    assert model.layer.solution is None  # it was not run


NORM, DROP = nn.BatchNorm1d(4).double(), nn.Dropout(0.5)


def test_a_cell_that_draws_random_numbers() -> None:
    x = inputs()

    def cell(z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(nn.functional.dropout(z, 0.3) / 2 + x)

    d = shoal.diagnose(cell, torch.zeros_like(x), x)
    assert any("random" in note for note in d.notes)
    costs = {cost.name: cost.relative for cost in d.gradients}
    assert costs["Neumann(20)"] < 1e-3  # of the same draw as the exact one


@pytest.mark.thorough("dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_that_are_none_of_the_cell_are_noted(dtype: torch.dtype) -> None:
    x = inputs(8, 6).to(dtype)
    cells = {
        "detached": lambda z, x: torch.tanh(z.detach() / 2 + x),
        "half": lambda z, x: torch.tanh((z + z.detach()) / 4 + x),
        "true": lambda z, x: torch.tanh(z / 2 + x),
        "kinked": lambda z, x: torch.relu(z / 2 + x),
        "weak": lambda z, x: 1e-4 * z + x,
        "none": lambda z, x: x + 0 * z,
    }
    noted = {
        name: any("finite differences" in note for note in found.notes)
        for name, cell in cells.items()
        for found in [shoal.diagnose(cell, torch.zeros_like(x), x, starts=1)]
    }
    assert noted == {name: name in ("detached", "half") for name in cells}


def test_a_network_of_build_is_certified() -> None:
    deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.1, input_variance=0.8)
    net = shoal.build(deq, in_features=4, width=32, out_features=2, dtype=DTYPE)
    d = shoal.diagnose(net, None, inputs())
    assert d.equilibria.contraction == "certified"
    assert d.equilibria.unique is True
    assert d.equilibria.counts == (1,) * 6
    with torch.no_grad():
        expected = net.features(inputs()) / net.feature_scale
    torch.testing.assert_close(torch.cat(d.equilibria.states), expected)
    assert d.spectrum.norm <= net.well_posedness().gain_upper
    # the exact gradient of the layer itself, against the network's own
    assert {c.name: c.relative for c in d.gradients}["Neumann(20)"] < 1e-3


class TorchDEQModel(nn.Module):
    """A model written for torchdeq, of a state of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.deq, self.inner = get_deq(f_solver="anderson", f_tol=1e-9, ift=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def step(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(self.inner(b) / 2 + x), torch.sin(a) / 2

        states, _ = self.deq(step, (torch.zeros_like(x), torch.zeros_like(x)))
        return states[-1][0] + states[-1][1]


def test_a_convolutional_network_of_build() -> None:
    deq = shoal.ConvDEQ(shoal.activations.Tanh(), recurrent_variance=0.05, input_variance=0.8)
    net = shoal.build(
        deq, in_features=2, pixels=(3, 3), width=4, out_features=2, dtype=DTYPE, seed=0
    )
    x = inputs(5, 18).reshape(5, 2, 3, 3)
    d = shoal.diagnose(net, None, x)
    assert (d.behavior, d.solved, d.size) == ("settles", 5, 36)
    # the cell, written out: padded convolutions of its own weights
    z = torch.zeros(5, 4, 3, 3, dtype=DTYPE)
    a, b = (net.get_parameter(name) * net.scales[name] for name in ("recurrent", "input"))
    for _ in range(200):
        z = torch.tanh(
            nn.functional.conv2d(z, a, padding=1) + nn.functional.conv2d(x, b, padding=1)
        )
    torch.testing.assert_close(torch.cat(d.equilibria.states), z.flatten(1), atol=1e-7, rtol=0)


def test_a_model_of_the_torchdeq_adapter() -> None:
    model, x = TorchDEQModel().double(), inputs()
    d = shoal.diagnose(model, None, x)
    assert d.behaviors == {"settles": 6}
    assert d.size == 8
    # J = [[0, A], [B, 0]]: eigenvalues come in pairs ±λ
    values = sorted(d.spectrum.eigenvalues[0], key=lambda v: (round(v.real, 9), v.imag))
    assert abs(sum(values)) < 1e-9
    assert d.gradients


def test_a_model_of_torchdeq_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # a stand-in that torchdeq's own classes would be: known by its name, called as they are
    module = types.ModuleType("torchdeq.core")
    monkeypatch.setitem(sys.modules, "torchdeq.core", module)
    base = type("DEQBase", (nn.Module,), {"__module__": "torchdeq.core"})

    class Sliced(base):
        def forward(self, func: Callable[[Tensor], Tensor], z_init: Tensor) -> object:
            z = z_init
            for _ in range(3):  # as inexact as it likes
                z = func(z)
            return [z], {"nstep": 3}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deq, self.scale = Sliced(), nn.Parameter(torch.tensor(0.5, dtype=DTYPE))

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.deq(lambda z: self.scale * z + x, torch.zeros_like(x))
            return 2 * states[-1]

    x = inputs()
    d = shoal.diagnose(Model(), None, x)
    assert d.solved == 6
    torch.testing.assert_close(torch.cat(d.equilibria.states), 2 * x, atol=1e-7, rtol=0)
    assert d.spectrum is not None
    assert d.spectrum.radius == pytest.approx(0.5)


def test_states_may_be_trees() -> None:
    def rotated(state: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        return {"a": torch.sin(state["b"]) / 2 + x, "b": torch.cos(state["a"]) / 2}

    x = inputs(3, 2)
    start = {"a": torch.zeros_like(x), "b": torch.zeros_like(x)}
    slope = {"a": torch.ones_like(x), "b": torch.zeros_like(x)}
    d = shoal.diagnose(rotated, start, x, output=lambda z: z["a"], cotangent=slope)
    assert (d.behavior, d.size) == ("settles", 4)
    assert d.equilibria.counts == (1, 1, 1)


def test_samples_that_depend_on_each_other_are_one() -> None:
    adjacency = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=DTYPE) / 4
    x = inputs(3, 1)
    d = shoal.diagnose(lambda z, x: torch.tanh(adjacency @ z + x), torch.zeros_like(x), x)
    assert (d.samples, d.size) == (1, 3)
    assert any("depend on each other" in note for note in d.notes)
    told = shoal.diagnose(
        lambda z, x: torch.tanh(adjacency @ z + x), torch.zeros_like(x), x, batched=False
    )
    assert told.notes == ()
    assert told.spectrum.radius == pytest.approx(d.spectrum.radius)


def test_samples_that_see_each_other_only_away_from_the_start() -> None:
    x = inputs(4, 3)

    def cell(z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.9 * z * z.mean(0) + x)  # whose derivative is zero at zero

    d = shoal.diagnose(cell, torch.zeros_like(x), x)
    assert d.samples == 1
    assert "depend on each other" in d.notes[0]
    z = torch.zeros_like(x)
    for _ in range(500):
        z = cell(z, x)
    jacobian = torch.autograd.functional.jacobian(lambda z: cell(z, x), z).reshape(12, 12)
    radius = float(torch.linalg.eigvals(jacobian).abs().max())
    assert d.spectrum.radius == pytest.approx(radius, rel=1e-8)


def test_gradients_are_there_where_none_are_recorded() -> None:
    model, x = Classifier().double(), inputs()
    with torch.no_grad():
        found = shoal.diagnose(model, None, x)
    costs = shoal.diagnose(model, None, x).gradients
    assert [c.relative for c in found.gradients] == pytest.approx([c.relative for c in costs])
    assert len(costs) == 6


@pytest.mark.thorough
def test_a_model_that_returns_more_than_its_output() -> None:
    class Both(Classifier):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x

    x = inputs()
    with pytest.raises(TypeError, match="model must return a tensor, or output= take one"):
        shoal.diagnose(Both().double(), None, x)
    d = shoal.diagnose(Both().double(), None, x, output=lambda both: both[0])
    assert d.depth.depths == shoal.diagnose(Classifier().double(), None, x).depth.depths
    with pytest.raises(ValueError, match="z0 must be None for a model with an equilibrium inside"):
        shoal.diagnose(Classifier().double(), torch.zeros(6, 5, dtype=DTYPE), x)


def test_a_state_that_is_one_number() -> None:
    d = shoal.diagnose(lambda z: z / 2 + 1, torch.tensor(0.0, dtype=DTYPE), batched=False)
    assert float(d.equilibria.states[0]) == pytest.approx(2)

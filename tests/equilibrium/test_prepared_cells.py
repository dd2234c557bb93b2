"""Cells that do once per solve what does not depend on the state."""

import pytest
import torch
import torch.nn.utils.prune

import shoal

forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


class Factored(shoal.equilibrium.PreparedCell):
    """A cell whose weight is a product, and whose input is scaled by name."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = torch.randn(4, 4, dtype=torch.float64, generator=generator)
        self.factor = torch.nn.Parameter(draw / 4)
        self.bias = torch.nn.Parameter(draw[0])
        self.prepared = 0

    def prepare(self, x, *, scale=1.0):
        self.prepared += 1
        return scale * x, {"weight": self.factor @ self.factor.t()}

    def step(self, z, injection, weights):
        return torch.tanh(z @ weights["weight"] + injection + self.bias)  # one tensor not prepared


def plain(cell, scale=1.0):
    """The same map, with nothing prepared."""
    return lambda z, x: torch.tanh(z @ cell.factor @ cell.factor.t() + scale * x + cell.bias)


def problem(count=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return torch.zeros(count, 4, dtype=torch.float64), x.requires_grad_()


def test_values_and_gradients_are_those_of_the_whole_cell():
    cell, (zero, x) = Factored(), problem()
    tensors = [x, *cell.parameters()]
    found = [
        (layer(zero, x, scale=0.5) if layer.cell is cell else layer(zero, x))
        for layer in (shoal.Equilibrium(cell), shoal.Equilibrium(plain(cell, 0.5)))
    ]
    torch.testing.assert_close(*found)
    gradients = [torch.autograd.grad(z.square().sum(), tensors) for z in found]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(cell(zero, x, scale=0.5), plain(cell, 0.5)(zero, x))


@forward_mode
def test_gradcheck():
    layer, (zero, x) = shoal.Equilibrium(Factored(), on_failure="raise"), problem(2)
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (zero, x))

    tensors = x, *layer.parameters()
    assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


def test_it_prepares_once_for_both_passes():
    cell, (zero, x) = Factored(), problem()
    layer = shoal.Equilibrium(cell)
    for count in (1, 2):
        layer(zero, x).sum().backward()
        assert cell.prepared == count
    assert layer.solution.evaluations > 3


def test_diagnosis_and_penalty_take_them():
    cell, (zero, x) = Factored(), problem()
    layer = shoal.Equilibrium(cell)
    assert shoal.diagnose(layer, zero, x.detach()).behavior == "converges"
    z = layer(zero, x).detach()
    exact = shoal.jacobian_penalty(layer, z, x, probes=4)
    jacobians = torch.stack(
        [
            torch.func.jacrev(lambda z, x: plain(cell)(z, x))(*pair)
            for pair in zip(z, x, strict=True)
        ]
    )
    torch.testing.assert_close(exact, jacobians.square().sum() / z.numel())


def test_random_numbers_of_both_parts_stay_the_same_in_a_solve():
    class Dropped(Factored):
        def prepare(self, x):
            return super().prepare(torch.dropout(x, 0.5, train=True))

        def step(self, z, injection, weights):
            return super().step(torch.dropout(z, 0.5, train=True), injection, weights)

    torch.manual_seed(0)
    layer, (zero, x) = shoal.Equilibrium(Dropped(), on_failure="raise"), problem()
    states = [layer(zero, x).detach() for _ in range(2)]
    assert not torch.equal(*states)
    outside = torch.get_rng_state()
    near, rows = layer.problem_at(states[1], x)  # the map whose equilibrium it is
    torch.testing.assert_close(near.evaluate(rows), rows, rtol=1e-5, atol=1e-7)
    assert torch.equal(outside, torch.get_rng_state())


def test_what_it_may_not_do():
    class Single(Factored):
        def prepare(self, x):
            return x

    zero, x = problem()
    with pytest.raises(TypeError, match=r"must return a tuple, .* got Tensor"):
        shoal.Equilibrium(Single())(zero, x)

    class Changing(Factored):
        def prepare(self, x):
            return (x.mul_(2),)

    class Forward(Factored):
        def forward(self, z, x):
            return z / 2 + x

    with pytest.raises(ValueError, match="prepare must not change its inputs in place"):
        shoal.Equilibrium(Changing())(zero, x.detach())
    with pytest.raises(TypeError, match="by prepare and step alone, got Forward"):
        shoal.Equilibrium(Forward())(zero, x)
    pruned = torch.nn.utils.prune.l1_unstructured(Factored(), "factor", 0.4)
    with pytest.raises(TypeError, match="must have no hooks and no compile"):
        shoal.Equilibrium(pruned)(zero, x)
    hooked = Factored()
    hooked.register_full_backward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="must have no hooks and no compile"):
        shoal.Equilibrium(hooked)(zero, x)
    with pytest.raises(TypeError, match="abstract"):
        shoal.equilibrium.PreparedCell()

"""Layers as parts of models: transforms, copies, compiling, checkpoints, warm starts."""

import copy
import pickle

import pytest
import torch
from torch import nn

import shoal
from equilibrium.foreign_cells import Normalized, Pretrained, WithDropout, prepared
from shoal import ConvergenceError, ConvergenceWarning, Equilibrium, Neumann, OneStep

# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


@forward_mode
def test_function_transforms():
    layer, z0, (x,), _ = prepared(Normalized)
    parameters = {n: p.detach() for n, p in layer.named_parameters()}

    def features(parameters, row):
        return torch.func.functional_call(layer, parameters, (z0[:1], row[None]))[0]

    per_sample = torch.func.vmap(torch.func.jacrev(features), (None, 0))(parameters, x)
    for index, row in enumerate(x):
        exact = torch.func.jacfwd(features)(parameters, row)
        for name, jacobian in per_sample.items():
            torch.testing.assert_close(jacobian[index], exact[name], rtol=1e-8, atol=1e-10)
    # rows mapped over one by one are the rows of a batch
    torch.testing.assert_close(
        torch.func.vmap(features, (None, 0))(parameters, x), layer(z0, x).detach()
    )


def test_a_frozen_layer_has_no_gradient():
    layer, z0, (x,), _ = prepared(Normalized)
    layer.requires_grad_(False)
    assert not layer(z0, x).requires_grad
    assert layer(z0, x.requires_grad_()).requires_grad
    with torch.no_grad():
        assert not layer(z0, x).requires_grad


def test_partial_sums_of_the_gradient():
    """Each term of the Neumann series cuts the error by the contraction's factor, here 0.5."""
    weight = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    x = torch.ones(1, 1, dtype=torch.float64)
    for terms in (0, 1, 4, 9):
        layer = Equilibrium(lambda z, x: z @ weight + x, gradient=Neumann(terms))
        error = layer.gradient_error(torch.zeros_like(x), x.requires_grad_())
        assert error.relative == pytest.approx(0.5 ** (terms + 1), rel=1e-6)
        assert error.cosine == pytest.approx(1.0)
    rough = Equilibrium(lambda z, x: z @ weight + x, gradient=OneStep())
    assert rough.gradient_error(torch.zeros_like(x), x).relative == pytest.approx(0.5, rel=1e-6)
    exact = Equilibrium(lambda z, x: z @ weight + x)
    assert exact.gradient_error(torch.zeros_like(x), x).relative < 1e-9


def test_dropout_is_one_draw_for_each_call():
    layer, z0, (x,), _ = prepared(WithDropout)
    torch.manual_seed(3)
    first, second = layer(z0, x), layer(z0, x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(layer(z0, x), first)
    # the next random numbers are those after one call of the cell
    torch.manual_seed(3)
    layer(z0, x)
    after = torch.rand(3)
    torch.manual_seed(3)
    layer.cell(z0, x)
    torch.testing.assert_close(torch.rand(3), after)


@forward_mode
def test_dropout_is_one_draw_in_transforms_of_functions():
    layer, z0, (x,), _ = prepared(WithDropout)
    x = x.detach()

    def loss(x):
        torch.manual_seed(3)
        return layer(torch.zeros_like(z0), x).square().sum()

    leaf = x.clone().requires_grad_()
    (exact,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), exact)
    found = torch.func.jacfwd(loss, randomness="same")(x)
    torch.testing.assert_close(found, exact)


def test_what_happens_between_the_passes():
    """Hooks see the whole gradient once; another mode matters to second derivatives alone."""
    gradients, shown = [], []
    for disturbed in (False, True):
        layer, z0, (x,), _ = prepared(WithDropout)
        weight, x = next(layer.parameters()), x.detach().requires_grad_()
        if disturbed:
            weight.register_hook(lambda gradient: shown.append(gradient.clone()))
        torch.manual_seed(3)
        z, other = layer(z0, x), layer(z0, x)
        if disturbed:
            layer.eval()
        z.square().sum().backward()
        gradients.append(weight.grad)
        if disturbed:
            with pytest.raises(TypeError, match="change neither its mode nor its weights"):
                torch.autograd.grad(other.square().sum(), x, create_graph=True)
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(shown[0], gradients[1])
    assert len(shown) == 1


class Owner(nn.Module):
    """A model with a method as its cell, and one with a function that refers to it."""

    def __init__(self, *, method):
        super().__init__()
        self.linear = nn.Linear(3, 3).double()
        self.layer = Equilibrium(self.step) if method else None

    def step(self, z, x):
        return torch.tanh(0.3 * self.linear(z) + x)

    def forward(self, x):
        layer = self.layer or Equilibrium(lambda z, x: self.step(z, x))
        return layer(torch.zeros_like(x), x)


def test_functional_calls_of_what_surrounds_it():
    """The tensors that a functional call lends are gone when the backward pass comes."""
    torch.manual_seed(0)
    model, x = Owner(method=True), torch.randn(2, 3, dtype=torch.float64)
    others = {n: 0.5 * p.detach() for n, p in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(others)
    model.load_state_dict(others)
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-11)
    model = Owner(method=False)  # whose function only refers to the module
    with pytest.raises(TypeError, match="make f a module"):
        torch.func.grad(loss)(others)


def test_training_goes_on_where_samples_fail():
    """A map that has no fixed point for some samples: counted, said once, bounded gradients."""

    def cell(z, x):
        return torch.where(x > 0, z + 1 + w, 0.5 * z + w)

    w = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    layer = Equilibrium(cell)
    with pytest.warns(ConvergenceWarning, match=r"1 of 2 samples \(1\)"):
        z = layer(torch.zeros_like(x), x)
    assert layer.solution.converged.tolist() == [True, False]
    with pytest.warns(ConvergenceWarning, match="backward pass"):
        z.sum().backward()
    assert layer.solution.adjoint.converged.tolist() == [True, False]
    assert w.grad.abs() < 10
    layer(torch.zeros_like(x), x).sum().backward()  # said before
    assert layer.log.failures["forward"].total() == 2
    assert "2 of 4 samples failed" in str(layer.log)
    strict = Equilibrium(cell, on_failure="raise")
    with pytest.raises(ConvergenceError, match='on_failure="warn"'):
        strict(torch.zeros_like(x), x)


def test_solvers_one_after_the_other():
    """Where one method fails, the next goes on: a map with slope -2 needs more than Picard."""
    x = torch.tensor([[0.3], [0.6]], dtype=torch.float64)

    def cell(z, x):
        return torch.where(x < 0.5, 0.5 * z + x, 3 - 2 * z)

    alone = Equilibrium(cell, solver=shoal.Picard(), on_failure="status")
    alone(torch.zeros_like(x), x)
    assert alone.solution.converged.tolist() == [True, False]
    together = Equilibrium(cell, solver=(shoal.Picard(), shoal.NewtonKrylov()))
    found = together(torch.zeros_like(x), x.requires_grad_())
    torch.testing.assert_close(found, torch.tensor([[0.6], [1.0]], dtype=torch.float64))
    found.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[2.0], [0.0]], dtype=torch.float64))


def test_copies_and_pickles():
    layer, z0, (x,), _ = prepared(Normalized)
    expected = layer(z0, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(z0, x), expected)
        assert other.log is not layer.log
    other.load_state_dict(layer.state_dict())


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo's
def test_inside_a_compiled_model():
    layer, _, (x,), _ = prepared(Pretrained)
    model = nn.Sequential(nn.Linear(4, 4).double(), nn.Tanh())

    def loss(x):
        return layer(torch.zeros_like(x), model(x)).square().sum() + x.sum()

    compiled = torch.compile(loss, backend="aot_eager")
    x.requires_grad_()
    tensors = (x, *model.parameters(), *(p for p in layer.parameters() if p.requires_grad))
    expected = torch.autograd.grad(loss(x), tensors)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), tensors), expected)


def test_checkpointing_and_accumulation():
    layer, z0, (x,), _ = prepared(Normalized)

    def through(x):
        return layer(z0, torch.sin(x)).square().sum()

    x.requires_grad_()
    tensors = (x, *layer.parameters())
    expected = torch.autograd.grad(through(x), tensors)
    again = torch.utils.checkpoint.checkpoint(through, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again, tensors), expected)
    for _ in range(2):
        through(x).backward()
    torch.testing.assert_close(x.grad, 2 * expected[0])
    loss = through(x)
    twice = [torch.autograd.grad(loss, tensors, retain_graph=True) for _ in range(2)]
    torch.testing.assert_close(twice[1], expected)


def test_warm_starts():
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    layer = Equilibrium(Normalized().double(), warm_start=True)
    for _ in range(2):
        layer(torch.zeros_like(x), x).sum().backward()
    assert int(layer.solution.steps.max()) == 0
    assert int(layer.solution.adjoint.steps.max()) == 0
    layer.forget()
    layer(torch.zeros_like(x), x)
    assert int(layer.solution.steps.max()) > 3
    layer(torch.zeros_like(x), 2 * x)
    assert int(layer.solution.steps.max()) > 3


@pytest.mark.parametrize("gradient", [shoal.OneStep(), shoal.Neumann(2), shoal.Implicit()])
def test_gradients_of_each_method_under_vmap(gradient):
    """The derivative of z = z/2 + x by x is the partial sum of 1 + 1/2 + 1/4 + ..."""

    def total(x):
        layer = shoal.Equilibrium(lambda z, x: z / 2 + x, gradient=gradient)
        return layer(torch.zeros_like(x), x).sum()

    x = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    several = torch.func.vmap(total)(x)
    torch.testing.assert_close(several, 2 * x.sum((1, 2)))
    expected = {"OneStep": 1.0, "Neumann": 1.75, "Implicit": 2.0}[type(gradient).__name__]
    found = torch.func.vmap(torch.func.grad(total))(x)
    torch.testing.assert_close(found, torch.full_like(x, expected))


def test_refusals_of_transforms_name_the_reason_and_the_remedy():
    def total(x, gradient=None):
        layer = shoal.Equilibrium(lambda z, x: torch.sin(z) / 2 + x, gradient=gradient)
        return layer(torch.zeros_like(x), x).sum()

    x = torch.ones(2, 1, 3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=r"OneStep.*Unrolled.*depends on the values"):
        torch.func.vmap(lambda x: total(x, shoal.Unrolled()))(x)
    with pytest.raises(NotImplementedError, match=r"vectorize=True.*torch.func.jacrev"):
        torch.autograd.functional.jacobian(total, x[0], vectorize=True)


def test_inputs_by_name_have_rows_too():
    slopes = torch.linspace(0.01, 0.97, 64).double()[:, None]
    x, zero = torch.randn(64, 3).double(), torch.zeros(64, 3).double()
    named = Equilibrium(lambda z, x, *, slope: slope * torch.tanh(z) + x, separable=True)
    plain = Equilibrium(lambda z, x: slopes * torch.tanh(z) + x)
    torch.testing.assert_close(named(zero, x, slope=slopes), plain(zero, x), rtol=1e-9, atol=1e-10)
    with pytest.raises(ValueError, match="one entry per sample"):
        named(zero, x, slope=slopes[:5])


def image_cell():
    torch.manual_seed(0)
    return nn.Conv2d(3, 3, 3, padding=1).double()


@pytest.mark.parametrize("batched", [True, False])
def test_images_with_channels_last_stay_so(batched):
    """The cell is given them as they lie in memory: nothing is copied between steps."""
    formats, convolution = [], image_cell()

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = convolution

        def forward(self, z, x):
            formats.append(z.is_contiguous(memory_format=torch.channels_last))
            return torch.tanh(self.convolution(z) / 2 + x)

    found = []
    for memory_format in (torch.channels_last, torch.contiguous_format):
        formats.clear()
        x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1)).double()
        x = x.contiguous(memory_format=memory_format).requires_grad_()
        layer = Equilibrium(Cell(), batched=batched, on_failure="raise")
        z = layer(torch.zeros_like(x), x)
        assert z.is_contiguous(memory_format=memory_format)
        assert set(formats) == {memory_format is torch.channels_last}
        tensors = [x, *convolution.parameters()]
        found.append([z, *torch.autograd.grad((z * torch.arange(4)).sum(), tensors)])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_independent_samples_cost_no_evaluation_more():
    """Though the layer cannot know that they are, and some are done before others."""
    generator = torch.Generator().manual_seed(0)
    w = (torch.randn(8, 8, generator=generator) / 6).requires_grad_()
    x = torch.randn(64, 8, generator=generator) * torch.logspace(-2, 1, 64)[:, None]
    layer = Equilibrium(lambda z, x: torch.tanh(z @ w + x), solver=shoal.Picard())
    for follow in (False, True):
        with torch.set_grad_enabled(follow):
            z = layer(torch.zeros_like(x), x)
        assert layer.solution.evaluations == int(layer.solution.steps.max()) + 1
    z.square().sum().backward()
    adjoint = layer.log.backward
    assert adjoint.evaluations == int(adjoint.steps.max()) + 1

"""Gradients of fixed points against finite differences, unrolled iterations and closed forms."""

import pytest
import torch

from shoal import ConvergenceError, ConvergenceWarning, Softplus, Swish, Tanh
from shoal.activations import Activation
from shoal.equilibrium import (
    Anderson,
    Broyden,
    DampedPicard,
    Implicit,
    NewtonKrylov,
    OneStep,
    Picard,
    Solution,
    Unrolled,
    fixed_point,
    solve,
)
from shoal.equilibrium.recurrent.layer import Layer
from shoal.equilibrium.recurrent.layer_equilibrium import equilibrium
from shoal.equilibrium.solve_options import SolveOptions

SOLVERS = [Picard(), DampedPicard(0.2), Anderson(), Broyden(), NewtonKrylov()]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck


class Bent(Activation):
    """An activation of one's own, with nothing but a function."""

    def function(self, x):
        return torch.atan(x) + 0.1 * x


def tensors(samples=2, width=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    injection = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    weight = torch.randn(width, width, dtype=torch.float64, generator=generator)
    return injection.requires_grad_(), weight.requires_grad_()


def layer_fixed_point(solver=None, gradient=None, activation=None, **others):
    options = SolveOptions(solver or Picard(), gradient or Implicit(), **others)
    layer = Layer(activation or Tanh(), 0.2)
    return lambda injection, weight: equilibrium(injection, weight, layer, options)


def function_fixed_point(solver=None, gradient=None, **others):
    def f(z, u, w):
        return torch.tanh(0.2 * z @ w.T + u)

    return lambda u, w: fixed_point(
        f,
        torch.zeros_like(u),
        inputs=(u,),
        parameters=(w,),
        solver=solver,
        gradient=gradient,
        **others,
    )


FORMS = {"layer": layer_fixed_point, "function": function_fixed_point}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


@pytest.mark.thorough("NewtonKrylov")
@every_form
@pytest.mark.parametrize(
    ("solver", "gradient"),
    [*((solver, Implicit()) for solver in SOLVERS), *((s, Unrolled()) for s in SOLVERS[:2])],
    ids=repr,
)
def test_gradients_of_first_and_second_order(form, solver, gradient):
    function = form(solver, gradient)
    assert gradcheck(function, tensors())
    assert gradgradcheck(function, tensors())


@forward_mode
@pytest.mark.parametrize("activation", [Softplus(), Swish(), Bent()], ids=str)
def test_activations(activation):
    function = layer_fixed_point(activation=activation)
    assert gradcheck(function, tensors(), check_forward_ad=True)
    assert gradgradcheck(function, tensors())


def test_third_order():
    u, w = tensors(2, 2)
    function = layer_fixed_point()

    def slope(u, w):
        (g,) = torch.autograd.grad(function(u, w).square().sum(), w, create_graph=True)
        return g

    assert gradgradcheck(slope, (u, w))


@every_form
@every_solver
def test_the_implicit_gradient_is_the_unrolled_one(form, solver):
    u, w = tensors(5, 7)
    gradients = [
        torch.autograd.grad(form(solver, gradient)(u, w).sin().sum(), (u, w))
        for solver, gradient in ((solver, Implicit()), (Picard(), Unrolled()))
    ]
    for implicit, unrolled in zip(*gradients, strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-9, atol=1e-10)


@every_form
def test_one_step_is_the_gradient_without_the_inverse(form):
    u, w = tensors(4, 5)
    z = form(gradient=OneStep())(u, w)
    v = torch.cos(z.detach())
    found = torch.autograd.grad(z, (u, w), v)
    held = z.detach()
    inner = v * (1 - torch.tanh(0.2 * held @ w.T + u) ** 2)
    torch.testing.assert_close(found[0], inner)
    torch.testing.assert_close(found[1], 0.2 * inner.T @ held)
    torch.testing.assert_close(held, form()(u, w))  # the value is the same


@every_form
def test_closed_form(form):
    r"""$\nabla u = D (I - sW^\top D)^{-1} v$, sample by sample."""
    u, w = tensors(3, 4)
    z = form()(u, w)
    v = torch.ones_like(z)
    found = torch.autograd.grad(z, (u, w), v)
    slope = (1 - z**2).detach()
    weight = 0.0
    for i in range(3):
        d = torch.diag(slope[i])
        g = d @ torch.linalg.solve(torch.eye(4).double() - 0.2 * w.T @ d, v[i])
        torch.testing.assert_close(found[0][i], g, rtol=1e-10, atol=1e-11)
        weight = weight + 0.2 * torch.outer(g, z[i])
    torch.testing.assert_close(found[1], weight, rtol=1e-10, atol=1e-11)


@every_form
def test_function_transforms(form):
    u, w = (t.detach() for t in tensors(2, 3))

    def loss(w):
        return form()(u, w).square().sum()

    expected = torch.autograd.functional.hessian(loss, w)
    found = torch.func.jacrev(torch.func.grad(loss))(w)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    several = torch.stack([w, 0.5 * w])
    torch.testing.assert_close(
        torch.func.vmap(loss)(several), torch.stack([loss(w), loss(0.5 * w)])
    )
    per_network = torch.func.vmap(torch.func.grad(loss))(several)
    torch.testing.assert_close(per_network[1], torch.func.grad(loss)(0.5 * w))
    per_sample = torch.func.jacrev(lambda w: form()(u, w).sum(1))(w)
    torch.testing.assert_close(
        per_sample.sum(0), torch.func.grad(lambda w: form()(u, w).sum())(w), rtol=1e-9, atol=1e-10
    )


@forward_mode
def test_forward_mode():
    u, w = tensors()
    assert gradcheck(layer_fixed_point(), (u, w), check_forward_ad=True)

    def loss(w):
        return layer_fixed_point()(u.detach(), w).square().sum()

    w = w.detach()
    expected = torch.autograd.functional.hessian(loss, w)
    torch.testing.assert_close(torch.func.hessian(loss)(w), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(torch.func.jacfwd(loss)(w), torch.func.grad(loss)(w))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo's
@every_form
def test_compilation_of_what_surrounds_it(form):
    u, w = tensors()
    function = form()

    def model(u, w):
        return function(torch.sin(u), w).cos().sum() + u.square().sum()

    compiled = torch.compile(model, backend="aot_eager")
    expected = torch.autograd.grad(model(u, w), (u, w))
    found = torch.autograd.grad(compiled(u, w), (u, w))
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)


@every_form
def test_the_backward_pass_fails_loudly_too(form):
    u, w = tensors(4, 5)
    gradient = Implicit(Picard(rtol=1e-12, max_steps=1))
    z = form(gradient=gradient)(u, w)
    with pytest.raises(ConvergenceError, match=r"(?s)backward pass.*max_steps"):
        z.sum().backward()
    z = form(gradient=gradient, on_failure="warn")(u, w)
    with pytest.warns(ConvergenceWarning, match="backward pass"):
        z.sum().backward()
    z = form(gradient=gradient, on_failure="status")(u, w)
    (z.value if isinstance(z, Solution) else z).sum().backward()


def test_the_backward_pass_has_a_solver_and_a_tolerance_of_its_own():
    u, w = tensors(4, 50)
    exact_gradient = torch.autograd.grad(layer_fixed_point()(u, 0.3 * w).sum(), w)[0]
    errors, steps = [], []
    for rtol in (1e-2, 1e-5, 1e-8):
        options = SolveOptions(Picard(), Implicit(Anderson(), rtol=rtol))
        z = equilibrium(u, 0.3 * w, Layer(Tanh(), 0.2), options)
        (found,) = torch.autograd.grad(z.sum(), w)
        errors.append(float((found - exact_gradient).norm() / exact_gradient.norm()))
        steps.append(int(options.log.backward.steps.max()))
        assert errors[-1] < 20 * rtol
    assert errors == sorted(errors, reverse=True)
    assert steps == sorted(set(steps))


def test_gradients_of_any_size_are_relatively_exact():
    u, w = tensors(4, 5)
    z = layer_fixed_point()(u, w)
    (plain,) = torch.autograd.grad(z.sum(), w, retain_graph=True)
    (tiny,) = torch.autograd.grad(1e-200 * z.sum(), w)
    torch.testing.assert_close(tiny * 1e200, plain, rtol=1e-10, atol=0)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_steps_in_bfloat16_do_not_change_what_is_found(steps):
    """The residual is that of float32, and so is the gradient; the evaluations there are fewer."""
    u, w = (t.detach().float().requires_grad_() for t in tensors(20, 80))
    layer = Layer(Tanh(), 0.05)
    found = {}
    for count in (0, steps):
        options = SolveOptions(Picard(coarse_steps=count, rtol=1e-6, atol=0.0))
        z = equilibrium(u, w, layer, options)
        gradients = torch.autograd.grad(z.sin().sum(), (u, w))
        true = torch.tanh(layer.preactivation(z, u, w)) - z
        assert (true.norm(dim=1) <= 1.1e-6 * z.norm(dim=1)).all()
        found[count] = (z, *gradients)
        found[count, "steps"] = int(options.log.forward.steps.max())
        found[count, "adjoint"] = int(options.log.backward.steps.max())
    for plain, coarse in zip(found[0], found[steps], strict=True):
        assert (plain - coarse).norm() < 1e-5 * plain.norm()
    assert found[steps, "steps"] < found[0, "steps"]
    assert found[steps, "adjoint"] < found[0, "adjoint"]


def test_steps_in_bfloat16_are_not_for_double_precision_nor_unrolled():
    u, w = tensors(4, 6)
    options = SolveOptions(Picard(coarse_steps=5))
    plain = SolveOptions(Picard(coarse_steps=0))
    layer = Layer(Tanh(), 0.2)
    assert torch.equal(equilibrium(u, w, layer, options), equilibrium(u, w, layer, plain))
    u, w = (t.detach().float().requires_grad_() for t in (u, w))
    unrolled = SolveOptions(Picard(coarse_steps=5), Unrolled())
    z = equilibrium(u, w, layer, unrolled)
    exact = torch.autograd.grad(z.sum(), w)[0]
    implicit = torch.autograd.grad(equilibrium(u, w, layer, plain).sum(), w)[0]
    assert (exact - implicit).norm() < 1e-4 * implicit.norm()


def saved_bytes(function, *arguments):
    """What autograd holds for the backward pass."""
    total = 0

    def pack(tensor):
        nonlocal total
        total += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        function(*arguments)
    return total


def test_memory_of_the_implicit_gradient_does_not_grow_with_the_steps():
    u, w = tensors(8, 16)
    held = {}
    for gradient in (Implicit(), Unrolled()):
        for steps in (1e-2, 1e-12):
            solver = Picard(rtol=steps)
            held[type(gradient), steps] = saved_bytes(layer_fixed_point(solver, gradient), u, w)
    assert held[Implicit, 1e-2] == held[Implicit, 1e-12]
    assert held[Unrolled, 1e-12] > 2 * held[Unrolled, 1e-2]


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(), OneStep()], ids=repr)
def test_autocast_does_not_reach_into_the_solve(gradient):
    u, w = (t.detach().float().requires_grad_() for t in tensors(3, 4))
    function = function_fixed_point(gradient=gradient)
    expected = torch.autograd.grad(function(u, w).square().sum(), (u, w))
    with torch.autocast("cpu", torch.bfloat16):
        loss = function(u, w).square().sum()
        solution = solve(lambda z: torch.tanh(0.2 * z @ w.T + u), u)
    found = torch.autograd.grad(loss, (u, w))
    torch.testing.assert_close(found, expected)
    assert solution.value.dtype == torch.float32
    assert (solution.residual < 1e-5).all()


class Opaque(torch.autograd.Function):
    """A product that PyTorch cannot look into."""

    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z @ w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g @ w.T, z.T @ g


@pytest.mark.parametrize("product", [torch.matmul, Opaque.apply], ids=["torch", "opaque"])
@pytest.mark.parametrize("leaf", [True, False])
def test_tensors_that_are_not_among_the_arguments(product, leaf):
    u, w = tensors()
    expected = torch.autograd.grad(function_fixed_point()(u, w).square().sum(), (u, w))

    def through(u, w):
        given, weight = (u, w.T) if leaf else (1 * u, 1 * w.T)
        return fixed_point(lambda z: torch.tanh(0.2 * product(z, weight) + given), 0 * u.detach())

    found = torch.autograd.grad(through(u, w).square().sum(), (u, w))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    if product is torch.matmul:
        assert gradgradcheck(through, (u, w))
    else:
        with pytest.raises(TypeError, match="First derivatives are right; for second ones pass it"):
            torch.autograd.grad(through(u, w).sum(), (u, w), create_graph=True)


def test_tensors_that_depend_on_each_other():
    """A weight that also makes what is put in, as with tied weights: nothing is counted twice."""
    u, w = tensors()

    def through(u, w):
        made = torch.sin(u @ w)
        return fixed_point(
            lambda z, made: torch.tanh(0.2 * z @ w + made), 0 * u.detach(), inputs=(made,)
        )

    assert gradcheck(through, (u, w))
    assert gradgradcheck(through, (u, w))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Implicit("anderson"), TypeError, "solver must be a Solver"),
        (lambda: Implicit(rtol=-1), ValueError, "rtol must be >= 0"),
        (lambda: Unrolled(steps=3), TypeError, "steps"),
        (
            lambda: fixed_point(torch.cos, torch.ones(1, 1), gradient="jfb"),
            TypeError,
            "gradient must be a Gradient",
        ),
    ],
)
def test_bad_options(make, error, message):
    with pytest.raises(error, match=message):
        make()

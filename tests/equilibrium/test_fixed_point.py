"""Gradients of fixed points against finite differences, unrolled iterations and closed forms."""

import pytest
import torch

from shoal import ConvergenceError, ConvergenceWarning
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

SOLVERS = [Picard(), DampedPicard(0.2), Anderson(), Broyden(), NewtonKrylov()]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
# PyTorch's forward mode still loads parts that it calls deprecated itself
forward_mode = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck


def tensors(samples=2, width=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    injection = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    weight = torch.randn(width, width, dtype=torch.float64, generator=generator)
    return injection.requires_grad_(), weight.requires_grad_()


def fixed_point_of_tanh(solver=None, gradient=None, **others):
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


@pytest.mark.thorough("NewtonKrylov")
@pytest.mark.parametrize(
    ("solver", "gradient"),
    [*((solver, Implicit()) for solver in SOLVERS), *((s, Unrolled()) for s in SOLVERS[:2])],
    ids=repr,
)
def test_gradients_of_first_and_second_order(solver, gradient):
    function = fixed_point_of_tanh(solver, gradient)
    assert gradcheck(function, tensors())
    assert gradgradcheck(function, tensors())


@every_solver
def test_the_implicit_gradient_is_the_unrolled_one(solver):
    u, w = tensors(5, 7)
    gradients = [
        torch.autograd.grad(fixed_point_of_tanh(solver, gradient)(u, w).sin().sum(), (u, w))
        for solver, gradient in ((solver, Implicit()), (Picard(), Unrolled()))
    ]
    for implicit, unrolled in zip(*gradients, strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-9, atol=1e-10)


def test_one_step_is_the_gradient_without_the_inverse():
    u, w = tensors(4, 5)
    z = fixed_point_of_tanh(gradient=OneStep())(u, w)
    v = torch.cos(z.detach())
    found = torch.autograd.grad(z, (u, w), v)
    held = z.detach()
    inner = v * (1 - torch.tanh(0.2 * held @ w.T + u) ** 2)
    torch.testing.assert_close(found[0], inner)
    torch.testing.assert_close(found[1], 0.2 * inner.T @ held)
    torch.testing.assert_close(held, fixed_point_of_tanh()(u, w))  # the value is the same


def test_closed_form():
    r"""$\nabla u = D (I - sW^\top D)^{-1} v$, sample by sample."""
    u, w = tensors(3, 4)
    z = fixed_point_of_tanh()(u, w)
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


def test_function_transforms():
    u, w = (t.detach() for t in tensors(2, 3))

    def loss(w):
        return fixed_point_of_tanh()(u, w).square().sum()

    expected = torch.autograd.functional.hessian(loss, w)
    found = torch.func.jacrev(torch.func.grad(loss))(w)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    several = torch.stack([w, 0.5 * w])
    torch.testing.assert_close(
        torch.func.vmap(loss)(several), torch.stack([loss(w), loss(0.5 * w)])
    )
    per_network = torch.func.vmap(torch.func.grad(loss))(several)
    torch.testing.assert_close(per_network[1], torch.func.grad(loss)(0.5 * w))
    per_sample = torch.func.jacrev(lambda w: fixed_point_of_tanh()(u, w).sum(1))(w)
    torch.testing.assert_close(
        per_sample.sum(0),
        torch.func.grad(lambda w: fixed_point_of_tanh()(u, w).sum())(w),
        rtol=1e-9,
        atol=1e-10,
    )


@forward_mode
def test_forward_mode():
    u, w = tensors()
    assert gradcheck(fixed_point_of_tanh(), (u, w), check_forward_ad=True)

    def loss(w):
        return fixed_point_of_tanh()(u.detach(), w).square().sum()

    w = w.detach()
    expected = torch.autograd.functional.hessian(loss, w)
    torch.testing.assert_close(torch.func.hessian(loss)(w), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(torch.func.jacfwd(loss)(w), torch.func.grad(loss)(w))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo's
def test_compilation_of_what_surrounds_it():
    u, w = tensors()
    function = fixed_point_of_tanh()

    def model(u, w):
        return function(torch.sin(u), w).cos().sum() + u.square().sum()

    compiled = torch.compile(model, backend="aot_eager")
    expected = torch.autograd.grad(model(u, w), (u, w))
    found = torch.autograd.grad(compiled(u, w), (u, w))
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)


def test_the_backward_pass_fails_loudly_too():
    u, w = tensors(4, 5)
    gradient = Implicit(Picard(rtol=1e-12, max_steps=1))
    z = fixed_point_of_tanh(gradient=gradient, on_failure="raise")(u, w)
    with pytest.raises(ConvergenceError, match=r"(?s)backward pass.*max_steps"):
        z.sum().backward()
    z = fixed_point_of_tanh(gradient=gradient)(u, w)
    with pytest.warns(ConvergenceWarning, match="backward pass"):
        z.sum().backward()
    z = fixed_point_of_tanh(gradient=gradient, on_failure="status")(u, w)
    (z.value if isinstance(z, Solution) else z).sum().backward()


def test_gradients_of_any_size_are_relatively_exact():
    u, w = tensors(4, 5)
    z = fixed_point_of_tanh()(u, w)
    (plain,) = torch.autograd.grad(z.sum(), w, retain_graph=True)
    (tiny,) = torch.autograd.grad(1e-200 * z.sum(), w)
    torch.testing.assert_close(tiny * 1e200, plain, rtol=1e-10, atol=0)


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
            held[type(gradient), steps] = saved_bytes(fixed_point_of_tanh(solver, gradient), u, w)
    assert held[Implicit, 1e-2] == held[Implicit, 1e-12]
    assert held[Unrolled, 1e-12] > 2 * held[Unrolled, 1e-2]


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(), OneStep()], ids=repr)
def test_autocast_does_not_reach_into_the_solve(gradient):
    u, w = (t.detach().float().requires_grad_() for t in tensors(3, 4))
    function = fixed_point_of_tanh(gradient=gradient)
    expected = torch.autograd.grad(function(u, w).square().sum(), (u, w))
    with torch.autocast("cpu", torch.bfloat16):
        loss = function(u, w).square().sum()
        solution = solve(lambda z: torch.tanh(0.2 * z @ w.T + u), u)
    found = torch.autograd.grad(loss, (u, w))
    torch.testing.assert_close(found, expected)
    assert solution.value.dtype == torch.float32
    assert (solution.residual < 1e-5).all()


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

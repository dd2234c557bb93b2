"""Gradients of fixed points against finite differences, unrolled iterations and closed forms."""

import weakref

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


@pytest.mark.thorough
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


class Held:
    """A tensor that autograd holds."""

    def __init__(self, tensor):
        self.tensor = tensor


def saved_bytes(function, *arguments):
    """What autograd holds for the backward pass."""
    alive = weakref.WeakSet()

    def pack(tensor):
        held = Held(tensor.detach())  # an output that is kept would keep itself
        alive.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        result = function(*arguments)
    assert result.requires_grad
    return sum(held.tensor.nbytes for held in alive)


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
            lambda z, made, w: torch.tanh(0.2 * z @ w + made),
            0 * u.detach(),
            inputs=(made,),
            parameters=(w,),
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

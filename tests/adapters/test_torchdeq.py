"""torchdeq's interface: the same numbers as torchdeq where it is installed, and as shoal's own."""

import argparse
import copy

import pytest
import torch
from torch import nn

import shoal
from shoal.adapters import torchdeq as ours

SOLVERS = ["fixed_point_iter", "anderson", "broyden"]
TIGHT = {"f_tol": 1e-11, "b_tol": 1e-11, "f_max_iter": 80, "b_max_iter": 80}


@pytest.fixture
def theirs():
    return pytest.importorskip("torchdeq", reason="torchdeq is not installed")


class Cell(nn.Module):
    """A contraction, of one tensor or of two."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent, self.other = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()

    def forward(self, z, x):
        return torch.tanh(0.5 * self.recurrent(z) + x)

    def pair(self, a, b, x):
        return torch.tanh(0.4 * self.recurrent(b) + x), torch.sin(0.4 * self.other(a))


def inputs():
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def results(module, *, pair=False, solver_kwargs=None, training=True, **options):
    """States, and gradients of a loss over all of them, by the input and by the weights."""
    cell, x = Cell(), inputs().requires_grad_()
    deq = module.get_deq(**options).train(training)
    start = torch.zeros(3, 4, dtype=torch.float64)
    if pair:
        states, info = deq(lambda a, b: cell.pair(a, b, x), (start, start), solver_kwargs)
    else:
        states, info = deq(lambda z: cell(z, x), start, solver_kwargs)
    flat = [torch.stack(list(state)) if pair else state for state in states]
    if not training:
        return flat, [], info
    loss = sum((index + 1) * state.sin().sum() for index, state in enumerate(flat))
    loss.backward()
    return flat, (x.grad, cell.recurrent.weight.grad, cell.recurrent.bias.grad), info


def check_agreement(theirs, tolerance=1e-8, **options):
    found, expected = results(ours, **options), results(theirs, **options)
    assert len(found[0]) == len(expected[0])
    for left, right in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)
    return found, expected


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_implicit_gradients_of_torchdeq(theirs, solver, pair):
    check_agreement(theirs, f_solver=solver, b_solver=solver, ift=True, pair=pair, **TIGHT)


@pytest.mark.parametrize("pair", [False, True])
def test_phantom_gradients_of_torchdeq(theirs, pair):
    for grad, tau in ((1, 1.0), (3, 1.0), (5, 0.6)):
        check_agreement(theirs, grad=grad, tau=tau, pair=pair, **TIGHT)


def test_evaluation_mode_of_torchdeq(theirs):
    options = {"f_tol": 1e-12, "f_max_iter": 20, "eval_factor": 2.0, "training": False}
    (_, _, info), (_, _, expected) = check_agreement(theirs, **options)
    assert float(info["abs_lowest"].max()) <= 1e-12 >= float(expected["abs_lowest"].max())


def test_it_is_the_fixed_point_with_its_gradient():
    cell, x = Cell(), inputs().requires_grad_()
    tensors = (x, cell.recurrent.weight, cell.recurrent.bias)
    exact = shoal.fixed_point(
        lambda z, x, w, b: torch.tanh(0.5 * (z @ w.T + b) + x),
        torch.zeros_like(x),
        inputs=(x,),
        parameters=tensors[1:],
    )
    expected = (exact.detach(), *torch.autograd.grad(exact.sin().sum(), tensors))
    for solver in SOLVERS:
        (state,), gradients, info = results(
            ours, f_solver=solver, b_solver=solver, ift=True, **TIGHT
        )
        torch.testing.assert_close((state.detach(), *gradients), expected, rtol=1e-9, atol=1e-9)
        assert info["status"].tolist() == [0, 0, 0]
        assert (info["rel_lowest"] <= 1e-10).all()


def test_phantom_gradients_by_their_definition():
    """Damped steps from the fixed point, which autograd follows."""
    (state,), gradients, _ = results(ours, grad=4, tau=0.7, **TIGHT)
    cell, x = Cell(), inputs().requires_grad_()
    with torch.no_grad():
        z = torch.zeros_like(x)
        for _ in range(200):
            z = cell(z, x)
    for _ in range(4):
        z = 0.7 * cell(z, x) + 0.3 * z
    tensors = (x, cell.recurrent.weight, cell.recurrent.bias)
    expected = (z, *torch.autograd.grad(z.sin().sum(), tensors))
    torch.testing.assert_close((state, *gradients), expected, rtol=1e-9, atol=1e-9)


def test_a_solver_of_shoal_and_arguments_of_a_program():
    parser = argparse.ArgumentParser()
    ours.add_deq_args(parser)
    parser.add_argument("--epochs", default=3)
    given = ["--ift", "--f_tol", "1e-10", "--f_stop_mode", "rel", "--grad", "2"]
    arguments = parser.parse_args(given)
    for args in (arguments, vars(arguments)):
        deq = ours.get_deq(args, f_max_iter=50, f_solver=shoal.NewtonKrylov())
        assert (deq.options.ift, deq.options.f_tol, deq.options.f_max_iter) == (True, 1e-10, 50)
        (z,), _ = deq(torch.cos, torch.ones(1, 1, dtype=torch.float64))
        assert float(z.detach()) == pytest.approx(0.739085133215, abs=1e-9)
    assert not list(deq.parameters())
    copy.deepcopy(deq)


def test_failures_are_told_once_and_counted():
    deq = ours.get_deq(f_max_iter=3, f_tol=1e-8)
    start = torch.ones(2, 1, dtype=torch.float64)
    with pytest.warns(shoal.ConvergenceWarning, match="max_steps was reached"):
        _, info = deq(torch.cos, start)
    deq(torch.cos, start)
    assert deq.log.failures["forward"].total() == 4
    assert (info["status"] == shoal.equilibrium.Status.OUT_OF_STEPS).all()
    with pytest.raises(shoal.ConvergenceError):
        ours.get_deq(f_max_iter=3, f_tol=1e-8, on_failure="raise")(torch.cos, start)


def test_jacobian_penalty_on_average():
    torch.manual_seed(0)
    weight = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    z = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    penalty = ours.jac_reg(z @ weight, z, vecs=300)
    exact = weight.square().sum() / 5
    assert float(penalty.detach()) == pytest.approx(float(exact.detach()), rel=0.05)
    (gradient,) = torch.autograd.grad(penalty, weight)
    # of the mean of (Wv)_i v_k over random v, whose variance is at most twice that of (Wv)_i
    errors = 2 / 5 * weight.detach().norm(dim=1, keepdim=True) * (2 / (40 * 300)) ** 0.5
    assert ((gradient - 2 * weight.detach() / 5).abs() < 4 * errors).all()


def test_weight_norm():
    cell, x = Cell(), inputs()
    before = cell(x, x)
    ours.apply_norm(cell, filter_out="other", args={"norm_type": "weight_norm"})
    torch.testing.assert_close(cell(x, x), before)
    names = {name for name, _ in cell.named_parameters() if "parametrizations" in name}
    assert {name.split(".")[0] for name in names} == {"recurrent"}
    ours.reset_deq(cell)
    deq = ours.get_deq(ift=True, **TIGHT)
    deq(lambda z: cell(z, x), torch.zeros_like(x))[0][-1].sum().backward()
    assert all(p.grad is not None for name, p in cell.named_parameters() if name in names)
    ours.remove_norm(cell)
    torch.testing.assert_close(cell(x, x), before)
    ours.apply_norm(cell, "none")
    assert isinstance(cell.recurrent.weight, nn.Parameter)


START = torch.ones(2, 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ours.get_deq(f_tolerance=1), TypeError, "no option 'f_tolerance'; it has b_max"),
        (lambda: ours.get_deq(3), TypeError, "args must be a namespace"),
        (lambda: ours.get_deq(core="indexing"), ValueError, "core must be 'sliced', torchdeq's"),
        (lambda: ours.get_deq(n_states=2), ValueError, "n_states must be 1"),
        (lambda: ours.get_deq({"sup_loc": [3]}), ValueError, r"sup_loc must be \[\]"),
        (lambda: ours.get_deq(f_solver="newton"), ValueError, "f_solver must be one of"),
        (lambda: ours.get_deq(b_stop_mode="max"), ValueError, "b_stop_mode must be one of"),
        (lambda: ours.get_deq(grad=0), ValueError, "grad must be"),
        (lambda: ours.get_deq(grad=[1, 2]), TypeError, "grad must be an integer"),
        (
            lambda: ours.get_deq()(torch.cos, START, backward_writer=print),
            ValueError,
            "backward_writer must be None",
        ),
        (
            lambda: ours.get_deq()(torch.cos, START, {"return_final": True}),
            ValueError,
            "return_final must be False",
        ),
        (lambda: ours.get_deq()(torch.cos, START, {"m": 3}), ValueError, r"got \['m'\]"),
        (lambda: ours.apply_norm(Cell(), "spectral_norm"), ValueError, "norm_type must be one"),
        (
            lambda: ours.apply_norm(Cell(), args=argparse.Namespace(norm_clip=True)),
            ValueError,
            "norm_clip",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()

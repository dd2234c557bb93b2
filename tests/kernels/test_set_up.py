"""What kernel matrices of few inputs may cost, and that unusual rows spoil nothing for others."""

import pytest
import torch

import shoal
from shoal.activations import Activation
from shoal.gaussian import smoothing
from shoal.kernels.approximations import piecewise_surface, surface
from shoal.kernels.calculi.own import fixed_variance
from shoal.kernels.fixed_points import solve
from shoal.kernels.gradients import derivatives
from shoal.kernels.inputs import Inputs
from shoal.kernels.plan import Plan
from shoal.kernels.recursions import Loop

PLACES = []  # numbers of arguments, call by call


class Counted(Activation):
    """An activation that counts at how many places it is evaluated."""

    def function(self, x):
        PLACES.append(x.numel())
        return x / (1 + x * x).sqrt()


def points(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 20, dtype=torch.float64, generator=generator) / 20**0.5


def directly(architecture, x):
    square = (x * x).sum(1)
    return shoal.kernel_function(architecture)(square[:, None], square, x @ x.T)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [66, 100])
def test_one_large_norm_costs_no_surface(rows):
    x = points(rows)
    x[0] *= 100
    architecture = shoal.DEQ(Counted(), 0.2, 0.8)
    PLACES.clear()
    found = shoal.kernel(architecture, x)
    assert sum(PLACES) <= 3e7  # a surface takes 2e9
    some = torch.cat([x[:3], x[-2:]])
    for matrix, exact in zip(found, directly(architecture, some), strict=True):
        part = matrix[[0, 1, 2, -2, -1]][:, [0, 1, 2, -2, -1]]
        scale = (exact.diagonal()[:, None] * exact.diagonal()).sqrt()
        assert ((part - exact).abs() <= 1e-11 * scale).all()


def test_one_input_costs_no_series():
    x, architecture = 10 * points(1), shoal.DEQ(Counted(), 0.2, 0.8)
    shoal.kernel(architecture, x, diag=True)
    PLACES.clear()
    found = shoal.kernel(architecture, x)
    assert sum(PLACES) == 0  # a series takes 1e7
    for matrix, exact in zip(found, directly(architecture, x), strict=True):
        assert torch.allclose(matrix, exact, rtol=1e-12, atol=0.0)


def test_a_zero_row_leaves_one_norm_one_norm():
    x = torch.nn.functional.normalize(points(40))
    x[7] = 0
    architecture = shoal.DEQ(shoal.Sigmoid(), 0.5, 1.0)
    plan = Plan.of(shoal.kernel_function(architecture), Inputs(x), Inputs(x[:30]))
    assert plan.surface is not None
    assert plan.surface.norms is None
    for found, exact in zip(shoal.kernel(architecture, x), directly(architecture, x), strict=True):
        assert ((found - exact).abs() <= 1e-10 * exact.diagonal().max()).all()


@pytest.mark.parametrize("turn", [1.0, -1.0], ids=["equal", "opposite"])
def test_inputs_of_both_sides_widen_no_range_of_angles(turn):
    x = points(160)
    architecture = shoal.DEQ(shoal.GELU(), 0.2, 0.8, bias_variance=0.1)
    other = torch.cat([turn * x[60:], x[:1]])
    plan = Plan.of(shoal.kernel_function(architecture), Inputs(x[:100]), Inputs(other))
    assert plan.surface is not None
    assert plan.surface.angles[0] > 0.25
    assert plan.surface.angles[1] < 2.9
    exact = directly(architecture, torch.cat([x[:100], other]))
    for found, entries in zip(shoal.kernel(architecture, x[:100], other), exact, strict=True):
        assert ((found - entries[:100, 100:]).abs() <= 1e-10 * entries.diagonal().max()).all()


@pytest.mark.thorough
def test_gradients_beside_a_zero_row():
    x = torch.nn.functional.normalize(points(24))
    x[7] = 0
    architecture = shoal.DEQ(shoal.Tanh(), 0.5, 1.0)
    some = [0, 1, 7, 23]
    z = x.clone().requires_grad_()
    ntk = shoal.kernel(architecture, z).ntk[some][:, some].triu(1)
    (found,) = torch.autograd.grad((ntk * ntk).sum(), z)
    z = x[some].requires_grad_()
    ntk = directly(architecture, z).ntk.triu(1)
    (exact,) = torch.autograd.grad((ntk * ntk).sum(), z)
    present = [0, 1, 3]
    assert (found[some] - exact)[present].abs().max() <= 1e-8


@pytest.mark.parametrize("phi", [shoal.Tanh(), shoal.Sigmoid()], ids=repr)
def test_a_zero_row_leaves_the_variances_of_others_to_series(phi, monkeypatch):
    injected = torch.linspace(0.5, 2.0, 5000, dtype=torch.float64)
    injected[0] = 0
    loop = Loop(shoal.DEQ(phi, 0.3, 1.0).layers().cells)
    exact = torch.cat([fixed_variance(loop, t, differentiable=False) for t in injected.split(2500)])
    sizes, integral = [], smoothing._integral

    def counted(phi, mean, variance, order, first_jump):
        sizes.append(len(mean))
        return integral(phi, mean, variance, order, first_jump)

    monkeypatch.setattr(smoothing, "_integral", counted)
    found = fixed_variance(loop, injected, differentiable=False)
    assert sum(sizes) < 1000
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=0.0)


def test_gradients_integrate_no_derivatives_that_nothing_depends_on(monkeypatch):
    orders, integral = [], smoothing._integral

    def noted(phi, mean, variance, order, first_jump):
        orders.append(order)
        return integral(phi, mean, variance, order, first_jump)

    monkeypatch.setattr(smoothing, "_integral", noted)
    shoal.clear_caches()
    x = points(5).requires_grad_()
    shoal.kernel(shoal.DEQ(Counted(), 0.2, 0.8), x, diag=True).ntk.sum().backward()
    assert set(orders) == {0, 2}


def test_newton_does_not_pass_a_fixed_point_that_the_iteration_reaches():
    def equation(x):
        return x + 0.5 * x.cos(), 1 - 0.5 * x.sin()

    start = torch.tensor([0.1, 0.0, 1.2], dtype=torch.float64)  # Newton's first step is 10 and more
    reached = start
    for _ in range(200):
        reached = equation(reached)[0]
    one = torch.ones_like(start)
    found = solve(equation, start, one, "variance", differentiable=False, unique=False)
    torch.testing.assert_close(found, reached, rtol=1e-12, atol=0.0)
    far = solve(equation, start, one, "variance", differentiable=False)
    assert (far - reached).abs().max() > 1


def test_pieces_are_checked_off_their_grid(monkeypatch):
    def wave(_, __, angle):  # a constant at the nodes of degree 8
        t = (angle - 1.5) / 0.5
        return torch.stack([1 + 0.1 * torch.cos(16 * t.clamp(-1, 1).acos())] * 2)

    monkeypatch.setattr(piecewise_surface, "_values", wave)
    function = shoal.kernel_function(shoal.FullyConnected([shoal.Tanh()]))
    part = piecewise_surface.part_surface(function, 3.0, (1.0, 2.0), 1e-11)
    angle = torch.linspace(1.0, 2.0, 50, dtype=torch.float64)
    one = torch.ones(50, 1, dtype=torch.float64)
    assert (part.pairs(one, one, angle) - wave(None, None, angle)).abs().max() <= 1e-11
    shoal.clear_caches()


def test_derivatives_are_checked_off_their_grid(monkeypatch):
    def wave(angle, degree=48):  # a constant at the nodes of degree 24
        return torch.cos(degree * ((angle - 1.5) / 0.5).clamp(-1, 1).acos())

    def slopes(_, __, ___, log_norm, angle):
        return log_norm, wave(angle).expand(1, 2, -1)

    monkeypatch.setattr(derivatives, "derivatives", slopes)
    function = shoal.kernel_function(shoal.FullyConnected([shoal.Tanh()]))
    made = derivatives.differentiable_angular_surface(function, 3.0, (1.0, 2.0), 1e-11)
    angle = torch.linspace(1.0, 2.0, 99, dtype=torch.float64)
    basis = wave(angle, torch.arange(made.radial.shape[-1])[:, None])
    own = torch.tensor(made.diagonal, dtype=torch.float64)[:, None]
    assert (made.radial[:, 0, 0] @ basis - wave(angle) / (2 * own)).abs().max() <= 1e-9
    shoal.clear_caches()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("radius", "dtype"),
    [(1.0, torch.float64), (20**0.5, torch.float64), (1.0, torch.float32)],
)
def test_another_batch_of_one_norm_fits_nothing_again(radius, dtype):
    architecture = shoal.DEQ(Counted(), 0.2, 0.8)
    shoal.clear_caches()
    places = []
    for seed in range(3):
        rotation = torch.linalg.qr(points(20, seed))[0]  # other norms to rounding, the same angles
        x = torch.nn.functional.normalize((points(30) @ rotation).to(dtype)) * radius
        PLACES.clear()
        shoal.kernel(architecture, x)
        shoal.kernel(architecture, x.requires_grad_()).ntk.sum().backward()
        places.append(sum(PLACES))
    assert max(places[1:]) < 0.03 * places[0]


def test_that_there_is_no_surface_is_found_out_once(monkeypatch):
    """Optimizers ask again at every step, for variances that hardly differ."""
    sampled = []
    real = surface._Sampler.degrees

    def degrees(self, *arguments):
        sampled.append(self)
        return real(self, *arguments)

    monkeypatch.setattr(surface._Sampler, "degrees", degrees)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, dtype=torch.float64, generator=generator)
    trainable = ("recurrent", "input")  # biases count otherwise than a feature of the inputs
    for step in range(4):
        deq = shoal.DEQ(shoal.ReLU(), 0.2 + 1e-4 * step, 0.8, bias_variance=0.1)
        found = shoal.kernel(deq, x, trainable=trainable)
    assert 1 <= len(sampled) <= 2  # ranges of angles
    i, j = torch.triu_indices(100, 100, 1)
    exact = shoal.kernel_function(deq)(
        x[i].square().sum(1), x[j].square().sum(1), (x[i] * x[j]).sum(1)
    )
    torch.testing.assert_close(found.ck[i, j], exact.ck, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("phi", [shoal.ELU(), shoal.ReLU()], ids=["elu", "relu"])
def test_kinks_at_parallel_inputs_are_not_looked_for(phi, caplog):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(170, 10, dtype=torch.float64, generator=generator)
    architecture = shoal.DEQ(phi, 0.2, 0.15, bias_variance=0.1)
    caplog.set_level("INFO")
    found = shoal.kernel(architecture, x)
    assert "one by one" not in caplog.text  # a surface at all angles, which takes seconds to fail
    i, j = torch.randint(len(x), (2, 40), generator=generator)
    distinct = i != j
    i, j, squares = i[distinct], j[distinct], (x * x).sum(1)
    exact = shoal.kernel_function(architecture)(squares[i], squares[j], (x[i] * x[j]).sum(1))
    for matrix, values in zip(found, exact, strict=True):
        size = (matrix.diagonal()[i] * matrix.diagonal()[j]).sqrt()
        assert ((matrix[i, j] - values).abs() <= 1e-10 * size).all()


def test_angles_that_are_all_seen_need_no_wide_margin():
    x = points(300)
    function = shoal.kernel_function(shoal.DEQ(shoal.Tanh(), 0.2, 0.8))
    plan = Plan.of(function, inputs := Inputs(x), inputs)
    cosine = (inputs.unit @ inputs.unit.T).fill_diagonal_(0.0)
    first, last = float(cosine.max().acos()), float(cosine.min().acos())
    assert plan.surface is not None
    assert first - 0.2 <= plan.surface.angles[0] < first
    assert last < plan.surface.angles[1] <= last + 0.2

"""Predicted training against integrated equations, simulated descent and sampled ensembles."""

import math

import pytest
import scipy.integrate
import scipy.linalg
import torch

import shoal
from shoal import DEQ, FullyConnected, gradient_flow
from shoal.activations import ReLU, Tanh
from shoal.kernels import Kernels
from shoal.learning import LinearTraining

DEQS = [DEQ(Tanh(), 0.2, 0.8), DEQ(ReLU(), 0.3, 1.0)]


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Problem:
    """A small data set with the kernels of an architecture on all of its inputs."""

    def __init__(self, architecture, n=7, m=4, outputs=(), norms=None, **options):
        self.architecture, self.n = architecture, n
        both = random(n + m, 5)
        both = both / both.norm(dim=1, keepdim=True) * (1.0 if norms is None else norms)
        self.x, self.x_test = both[:n], both[n:]
        self.y = random(n, *outputs, seed=1)
        self.joint = shoal.kernel(architecture, both, **options)

    @property
    def ntk(self):
        return self.joint.ntk[:, : self.n]

    def training(self, **options):
        """The prediction from these very kernels."""
        return LinearTraining(
            Kernels(*(k[: self.n, : self.n] for k in self.joint)),
            self.y,
            cross=Kernels(*(k[self.n :, : self.n] for k in self.joint)),
            prior=self.joint.ck[self.n :, self.n :],
            **options,
        )

    def evolution(self, time):
        """S with f(t) = S f(0) + (1 - S) (y, 0) for f on all inputs: no matrix is inverted."""
        size = len(self.joint.ntk)
        generator = torch.zeros(size, size, dtype=torch.float64)
        generator[:, : self.n] = -self.ntk
        return torch.from_numpy(scipy.linalg.expm(generator.numpy() * time))


@pytest.mark.parametrize("architecture", [*DEQS, FullyConnected((ReLU(), Tanh()))], ids=repr)
def test_flow_solves_its_differential_equation(architecture):
    homogeneous = architecture.positively_homogeneous
    norms = torch.linspace(0.5, 2, 11).double()[:, None] if homogeneous else None
    problem = Problem(architecture, norms=norms)
    start, times = random(11, seed=2), [0.0, 0.3, 2.0, 11.0]

    def slope(_, f):
        return -(problem.ntk @ (torch.from_numpy(f)[:7] - problem.y)).numpy()

    found = gradient_flow(
        architecture, problem.x, problem.y, problem.x_test, times, initial=(start[:7], start[7:])
    )
    options = {"t_eval": times, "rtol": 1e-11, "atol": 1e-12, "method": "DOP853"}
    solved = scipy.integrate.solve_ivp(slope, (0, 11), start.numpy(), **options)
    expected = torch.from_numpy(solved.y.T.copy())
    torch.testing.assert_close(found.train_mean, expected[:, :7], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.test_mean, expected[:, 7:], rtol=1e-8, atol=1e-9)
    losses = 0.5 * (expected[:, :7] - problem.y).square().sum(1)
    torch.testing.assert_close(found.loss, losses, rtol=1e-8, atol=1e-9)
    assert found.loss_std is None
    assert found.test_std is None


@pytest.mark.parametrize("architecture", DEQS, ids=repr)
@pytest.mark.parametrize("trainable", [None, {"readout"}, {"recurrent", "input"}])
def test_mean_and_covariance_of_the_ensemble(architecture, trainable):
    problem = Problem(architecture, trainable=trainable)
    times = [0.0, 0.1, 1.0, 40.0]
    found = problem.training().run(times, covariance="full")
    for i, time in enumerate(times):
        evolution = problem.evolution(time)
        mean = (torch.eye(11).double() - evolution)[:, :7] @ problem.y
        covariance = evolution @ problem.joint.ck @ evolution.T
        torch.testing.assert_close(found.train_mean[i], mean[:7], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.test_mean[i], mean[7:], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.test_covariance[i], covariance[7:, 7:], rtol=0, atol=1e-12)
        loss = 0.5 * ((mean[:7] - problem.y).square().sum() + covariance[:7, :7].trace())
        torch.testing.assert_close(found.loss[i], loss, rtol=1e-10, atol=1e-15)
    data = (problem.x, problem.y, problem.x_test, times)
    whole = gradient_flow(architecture, *data, trainable=trainable)
    # kernels have errors of 1e-12, and the smallest eigenvalue divides them
    torch.testing.assert_close(whole.loss, found.loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(whole.test_mean, found.test_mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(whole.test_std, found.test_std, rtol=0, atol=1e-9)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_an_ensemble_of_sampled_functions(reduction):
    problem = Problem(DEQS[0], outputs=(2,))
    time = 2.0 if reduction == "sum" else 14.0
    training = problem.training(reduction=reduction)
    found = training.run(time, covariance="full")
    count = 200_000
    root = torch.linalg.cholesky(problem.joint.ck)
    starts = root @ random(2, 11, count, seed=3)  # outputs first
    labels = torch.cat([problem.y.T, torch.zeros(2, 4).double()], 1)[..., None]
    ends = labels + problem.evolution(2.0) @ (starts - labels)
    losses = 0.5 * (ends[:, :7] - labels[:, :7]).square().sum((0, 1))
    losses /= 7 if reduction == "mean" else 1
    error = losses.std() / count**0.5
    assert abs(losses.mean() - found.loss[0]) < 4 * error
    assert abs(losses.std() - found.loss_std[0]) < 0.02 * losses.std()
    for k in range(2):
        spread = found.test_covariance[0].diagonal().max()
        assert (ends[k, 7:].mean(1) - found.test_mean[0, :, k]).abs().max() < 4 * (
            spread / count
        ).sqrt()
        assert (ends[k, 7:].cov() - found.test_covariance[0]).abs().max() < 0.02 * spread


def linearized(net, x):
    """The outputs of a network and their derivatives in all weights, one row for each input."""
    weights = {name: p.detach() for name, p in net.groups.items()}
    parts = torch.func.jacrev(lambda w: torch.func.functional_call(net, w, (x,))[:, 0])(weights)
    return net(x).detach()[:, 0], torch.cat([part.flatten(1) for part in parts.values()], 1)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("relative", [0.1, 0.5, 0.95])
def test_descent_is_that_of_a_linearized_network(reduction, relative):
    net = shoal.build(DEQS[0], in_features=5, width=24, dtype=torch.float64, seed=3)
    problem = Problem(DEQS[0])
    (start, slopes), (start_test, slopes_test) = (
        linearized(net, x) for x in (problem.x, problem.x_test)
    )
    training = LinearTraining(
        shoal.empirical_kernel(net, problem.x),
        problem.y,
        cross=shoal.empirical_kernel(net, problem.x_test, problem.x),
        initial=(start, start_test),
        reduction=reduction,
    )
    step_size = relative * training.max_step_size
    found = training.run(steps=[0, 1, 2, 37], step_size=step_size)
    assert found.times.tolist() == [step_size * k for k in (0, 1, 2, 37)]
    weights, divisor = torch.zeros(slopes.shape[1]).double(), 7 if reduction == "mean" else 1
    for k in range(38):
        error = start + slopes @ weights - problem.y
        if k in (0, 1, 2, 37):
            i = found.steps.tolist().index(k)
            torch.testing.assert_close(found.train_mean[i], error + problem.y)
            torch.testing.assert_close(found.test_mean[i], start_test + slopes_test @ weights)
            torch.testing.assert_close(found.loss[i], 0.5 * error.square().sum() / divisor)
        weights = weights - step_size / divisor * slopes.T @ error


@pytest.mark.parametrize("architecture", DEQS, ids=repr)
def test_before_and_after_training(architecture):
    problem = Problem(architecture)
    found = gradient_flow(
        architecture, problem.x, problem.y, problem.x_test, [math.inf, 0], covariance="full"
    )
    assert found.times.tolist() == [math.inf, 0]
    torch.testing.assert_close(found.test_covariance[1], problem.joint.ck[7:, 7:])
    assert found.test_mean[1].abs().max() == 0
    weights = torch.linalg.solve(problem.ntk[:7], problem.y)
    torch.testing.assert_close(found.test_mean[0], problem.ntk[7:] @ weights)
    torch.testing.assert_close(found.train_mean[0], problem.y)
    assert found.loss[0] == 0
    data = (problem.x, problem.y, problem.x_test)
    descent = gradient_flow(architecture, *data, steps=math.inf, step_size=0.01, covariance="full")
    torch.testing.assert_close(descent.test_mean[0], found.test_mean[0])
    torch.testing.assert_close(descent.test_covariance[0], found.test_covariance[0])


@pytest.mark.parametrize("architecture", DEQS, ids=repr)
def test_the_trained_readout_is_the_posterior(architecture):
    problem = Problem(architecture)
    found = gradient_flow(
        architecture,
        *(problem.x, problem.y, problem.x_test, math.inf),
        trainable={"readout"},
        covariance="full",
    )
    prior = problem.joint.ck.numpy()
    factor = scipy.linalg.cho_factor(prior[:7, :7])
    mean = prior[7:, :7] @ scipy.linalg.cho_solve(factor, problem.y.numpy())
    covariance = prior[7:, 7:] - prior[7:, :7] @ scipy.linalg.cho_solve(factor, prior[:7, 7:])
    torch.testing.assert_close(found.test_mean[0], torch.from_numpy(mean))
    torch.testing.assert_close(found.test_covariance[0], torch.from_numpy(covariance))


@pytest.mark.parametrize("loss", [2.0, 0.1, 1e-9])
def test_time_to_a_loss(loss):
    problem = Problem(DEQS[0])
    training = gradient_flow(DEQS[0], problem.x, problem.y, times=0).training
    time = training.time_to(loss)
    assert training.run(time).loss.item() == pytest.approx(loss, rel=1e-9)
    step_size = 0.3 * training.max_step_size
    steps = training.time_to(loss, step_size=step_size)
    around = training.run(steps=[steps - 1, steps], step_size=step_size).loss
    assert around[1] <= loss < around[0]
    assert training.time_to(1e9) == 0
    assert training.time_to(1e9, step_size=step_size) == 0


def test_copies_of_an_input_that_agree():
    """The NTK is singular, and nothing depends on it."""
    problem = Problem(DEQS[1])
    rows = [0, 0, 0, 1, 2, 3, 4, 5, 6]
    found = gradient_flow(
        DEQS[1], problem.x[rows], problem.y[rows], problem.x_test, math.inf, covariance="full"
    )
    expected = gradient_flow(
        DEQS[1], problem.x, problem.y, problem.x_test, math.inf, covariance="full"
    )
    torch.testing.assert_close(found.test_mean, expected.test_mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        found.test_covariance, expected.test_covariance, rtol=1e-9, atol=1e-11
    )
    assert found.loss[0] < 9e-12  # the accuracy of kernels, for n = 9
    assert (found.training.eigenvalues == 0).sum() == 2


def test_copies_of_an_input_that_contradict_each_other():
    """Their mean is learned; what is left of the loss is said."""
    problem = Problem(DEQS[1])
    rows = [0, 0, 1, 2, 3, 4, 5, 6]
    labels = problem.y[rows].clone()
    labels[:2] += torch.tensor([1.0, -1.0])
    with pytest.warns(shoal.ConvergenceWarning, match="1 of its eigenvalues"):
        found = gradient_flow(
            DEQS[1], problem.x[rows], labels, problem.x_test, [1.0, math.inf], initial="zero"
        )
    expected = gradient_flow(
        DEQS[1], problem.x, problem.y, problem.x_test, math.inf, initial="zero"
    )
    torch.testing.assert_close(found.test_mean[1:], expected.test_mean, rtol=1e-9, atol=1e-11)
    assert found.loss[1].item() == pytest.approx(1.0, rel=1e-12)
    assert found.training.time_to(0.9) == math.inf
    assert 0 < found.training.time_to(1.1) < math.inf
    found.training.run(1.0)  # early times do not depend on it: no warning


def test_an_input_of_zero_is_not_learned():
    x = torch.zeros(1, 3).double()
    found = gradient_flow(DEQS[1], x, torch.ones(1).double(), None, math.inf)
    assert found.loss.item() == pytest.approx(0.5, rel=1e-14)
    assert found.training.max_step_size == math.inf
    assert found.test_mean is None

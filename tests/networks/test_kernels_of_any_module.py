"""Empirical kernels of modules that shoal did not write, against loops over samples."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import shoal
from shoal.networks.jacobians import Jacobians, chosen_parameters
from shoal.networks.modules import ModuleInputs


def inputs(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


class Shared(nn.Module):
    """One matrix that acts twice under two names, an unused one, outputs of two dimensions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        y = self.second(torch.tanh(self.first(x)))
        return torch.stack([y, y.square()], 1)


class Branching(nn.Module):
    """Which layer acts depends on numbers, which ``torch.func`` does not allow."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x):
        rows = [(self.left if float(row.sum()) > 0 else self.right)(row) for row in x]
        return torch.cat(rows)


class Around(nn.Module):
    """A network of shoal inside a module."""

    def __init__(self, gradient):
        super().__init__()
        deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)
        self.before = nn.Linear(3, 4)
        self.deq = shoal.build(deq, in_features=4, width=6, out_features=2, gradient=gradient)
        self.after = nn.Linear(2, 2)

    def forward(self, x):
        return self.after(self.deq(torch.tanh(self.before(x))))


class Loop(nn.Module):
    """The equilibrium of a cell that is a function, between layers."""

    def __init__(self, gradient):
        super().__init__()
        self.before, self.recurrent, self.after = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        cell = lambda z, x: torch.tanh(0.5 * self.recurrent(z) + x)  # noqa: E731
        self.loop = shoal.Equilibrium(cell, gradient=gradient)

    def forward(self, x):
        x = self.before(x)
        return self.after(self.loop(torch.zeros_like(x), x))


def image():
    return nn.Sequential(nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.GELU(), nn.Flatten())


MODULES = {
    "mlp": (mlp, (3,)),
    "shared": (Shared, (3,)),
    "branching": (Branching, (3,)),
    "around": (lambda: Around(shoal.Implicit()), (3,)),
    "loop": (lambda: Loop(shoal.Implicit()), (3,)),
    "image": (image, (1, 5)),
    "normalized": (lambda: parametrizations.weight_norm(nn.Linear(3, 2)), (3,)),
}


def jacobian(module, x, names):
    """Row by row, the gradient of each output; one sample at a time."""
    rows = []
    parameters = [p for n, p in module.named_parameters() if n in names]
    for one in x.split(1):
        output = module(one).flatten()
        gradients = [
            torch.autograd.grad(o, parameters, retain_graph=True, materialize_grads=True)
            for o in output
        ]
        rows.append(torch.stack([torch.cat([g.flatten() for g in one]) for one in gradients]))
    return torch.stack(rows)


@pytest.mark.thorough("blocks-around", "blocks-loop")
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("memory", [None, 4000], ids=["whole", "blocks"])
def test_the_ntk_is_the_gram_matrix_of_gradients(kind, memory):
    make, shape = MODULES[kind]
    module = seeded(make)
    x1, x2 = inputs(3, *shape), inputs(2, *shape, seed=1)
    names = [name for name, _ in module.named_parameters()]
    left, right = jacobian(module, x1, names), jacobian(module, x2, names)
    outputs = left.shape[1]
    square = torch.einsum("ikp,jkp->ij", left, left) / outputs
    found = shoal.empirical_kernel(module, x1, memory=memory)
    torch.testing.assert_close(found.ntk, square, rtol=1e-8, atol=1e-10)
    assert found.ck is None
    options = {"memory": memory, "diag": True}
    own = shoal.empirical_kernel(module, x1, **options).ntk
    torch.testing.assert_close(own, square.diagonal(), rtol=1e-8, atol=1e-10)
    cross = torch.einsum("ikp,jkp->ij", left, right) / outputs
    found = shoal.empirical_kernel(module, x1, x2, memory=memory).ntk
    torch.testing.assert_close(found, cross, rtol=1e-8, atol=1e-10)
    partners = shoal.empirical_kernel(module, x1[:2], x2, **options).ntk
    torch.testing.assert_close(partners, cross[:2].diagonal(), rtol=1e-8, atol=1e-10)
    samples = ModuleInputs.checked("x1", x1)
    jacobians = Jacobians(module, chosen_parameters(module, None), samples, memory or 2**30)
    flat = left.flatten(0, 1)
    torch.testing.assert_close(jacobians.gram(samples), flat @ flat.T, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("memory", [None, 200_000])
def test_a_wide_sequence_has_the_kernels_of_the_limit(memory):
    """PyTorch's layers, weights drawn as in the NTK parametrization; the CK is f's covariance."""
    width, x = 2048, nn.functional.normalize(inputs(4, 10))
    first, last = nn.Linear(10, width, bias=False), nn.Linear(width, 1, bias=False)
    module = nn.Sequential(first, nn.ReLU(), last).double()
    with torch.no_grad():
        first.weight.copy_(inputs(width, 10, seed=1))
        last.weight.copy_(inputs(1, width, seed=2))
    found = shoal.empirical_kernel(module, x, features="1", memory=memory)
    limit = shoal.kernel(shoal.FullyConnected((shoal.activations.ReLU(),)), x)
    assert (found.ck / width - limit.ck).abs().max() < 0.05
    assert (found.ntk / width - limit.ntk).abs().max() < 0.1  # without the factor 1/√m


def test_parameters_are_chosen_by_name_prefix_and_pattern():
    module, x = seeded(mlp), inputs(4, 3)

    def ntk(*names):
        return shoal.empirical_kernel(module, x, trainable=names or None).ntk

    torch.testing.assert_close(ntk("0") + ntk("2"), ntk())
    torch.testing.assert_close(ntk("0.weight") + ntk("0.bias"), ntk("0"))
    torch.testing.assert_close(ntk("*.bias"), ntk("0.bias") + ntk("2.bias"))
    torch.testing.assert_close(ntk("2.bias"), torch.ones(4, 4).double())
    module[0].requires_grad_(False)
    torch.testing.assert_close(ntk(), ntk("2"))
    torch.testing.assert_close(
        shoal.empirical_kernel(module, x, trainable="all").ntk, ntk("0", "2")
    )
    module.requires_grad_(False)
    assert not ntk().any()


def test_tied_parameters_count_once_under_any_of_their_names():
    module, x = seeded(Shared), inputs(4, 3)
    names = [{"first"}, {"second"}, {"first.weight", "second.weight"}, {"*.weight"}]
    first, *others = [shoal.empirical_kernel(module, x, trainable=name).ntk for name in names]
    for other in others:
        assert torch.equal(first, other)


def test_features_are_those_of_a_submodule_or_a_function():
    module, x1, x2 = seeded(mlp), inputs(5, 3), inputs(5, 3, seed=1)
    with torch.no_grad():
        left, right = (module[1](module[0](x)) for x in (x1, x2))
    for features in ("1", lambda x: torch.tanh(module[0](x))):
        found = shoal.empirical_kernel(module, x1, x2, features=features).ck
        torch.testing.assert_close(found, left @ right.T)
        own = shoal.empirical_kernel(module, x1, x2, features=features, diag=True).ck
        torch.testing.assert_close(own, (left * right).sum(1))
    assert not module[1]._forward_hooks
    net = shoal.build(
        shoal.FullyConnected((shoal.activations.ReLU(),)), in_features=3, width=4
    ).double()
    torch.testing.assert_close(
        shoal.empirical_kernel(net, x1, features=lambda x: 2 * x).ck, 4 * x1 @ x1.T
    )


def test_the_diagonal_of_networks():
    x = inputs(4, 3)
    for architecture in (
        shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8),
        shoal.ResNet(shoal.activations.Softplus(), 2),
    ):
        net = shoal.build(architecture, in_features=3, width=5, out_features=2).double()
        whole, own = (shoal.empirical_kernel(net, x, diag=d) for d in (False, True))
        for matrix, vector in zip(whole, own, strict=True):
            torch.testing.assert_close(vector, matrix.diagonal())
    images = inputs(3, 2, 4)
    conv = shoal.build(
        shoal.ConvResNet(shoal.activations.Softplus(), 2), in_features=2, width=5, pixel_axes=1
    ).double()
    whole, own = (shoal.empirical_kernel(conv, images, diag=d).ntk for d in (False, True))
    torch.testing.assert_close(own, whole.diagonal())


@pytest.mark.parametrize("gradient", [shoal.OneStep(), shoal.Implicit(rtol=0.5)], ids=repr)
@pytest.mark.parametrize("make", [Around, Loop])
def test_gradients_of_networks_inside_are_exact(make, gradient):
    x = inputs(4, 3)
    good, rough = seeded(lambda: make(shoal.Implicit())), seeded(lambda: make(gradient))
    expected = shoal.empirical_kernel(good, x).ntk
    found = shoal.empirical_kernel(rough, x).ntk
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    if make is Around:
        assert rough.deq.last_solve is None
    else:
        assert rough.loop.solution is None
    wrong = jacobian(rough, x, [n for n, _ in rough.named_parameters()])
    wrong = torch.einsum("ikp,jkp->ij", wrong, wrong) / 2
    assert (wrong - expected).abs().max() > 1e-3


def test_words_attention_and_other_dtypes():
    """Inputs may be integers; a transformer's layer in eval mode is one function per sample."""
    embed = nn.Embedding(7, 4)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.1)
    module = seeded(lambda: nn.Sequential(embed, layer, nn.Flatten(), nn.Linear(12, 1)))
    words = torch.tensor([[1, 2, 3], [3, 2, 1], [0, 6, 6]])
    rows = jacobian(module, words, [n for n, _ in module.named_parameters()])[:, 0]
    found = shoal.empirical_kernel(module, words).ntk
    torch.testing.assert_close(found, rows @ rows.T, rtol=1e-8, atol=1e-10)
    module.train()
    with pytest.raises(ValueError, match=r"submodule '1\.self_attn' of"):
        shoal.empirical_kernel(module, words)
    half = seeded(mlp).to(torch.bfloat16)
    assert shoal.empirical_kernel(half, inputs(3, 3).bfloat16()).ntk.dtype == torch.float32


def test_buffers_modes_and_gradients_stay():
    module = seeded(lambda: parametrizations.spectral_norm(nn.Linear(3, 2))).train()
    before, x = copy.deepcopy(module.state_dict()), inputs(4, 3)
    assert shoal.empirical_kernel(module, x).ntk.shape == (4, 4)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert module.training
    assert all(p.grad is None for p in module.parameters())
    assert parametrize.is_parametrized(module)


class Counting(nn.Module):
    """Counts its calls, and notes what it saw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        y = self.layer(x)
        self.mean.copy_(y.detach().mean(0))
        return y


def test_modules_that_write_to_buffers_are_measured():
    module, x = seeded(Counting), inputs(4, 3)
    found = shoal.empirical_kernel(module, x).ntk
    torch.testing.assert_close(found, shoal.empirical_kernel(module.layer, x).ntk)
    assert int(module.calls) == 0


class Centered(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Noisy(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x)


@pytest.mark.parametrize("wrong", [Centered, Noisy])
def test_samples_that_depend_on_others_or_chance_are_refused(wrong):
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 64), wrong()))
    with pytest.raises(ValueError, match="depend on that sample alone"):
        shoal.empirical_kernel(module, inputs(4, 3))


def test_batch_normalization_is_refused_in_training_and_not_in_evaluation():
    module, x = seeded(image).train(), inputs(4, 1, 5)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=r"submodule '1' of .* call network\.eval\(\) first"):
        shoal.empirical_kernel(module, x)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert shoal.empirical_kernel(module.eval(), x).ntk.isfinite().all()


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class Summed(nn.Module):
    def forward(self, x):
        return x.sum()


@pytest.mark.parametrize(
    ("module", "options", "error", "message"),
    [
        (nn.Linear(3, 1), {"trainable": {"wait"}}, ValueError, "there are weight, bias"),
        (nn.Linear(3, 1), {"trainable": ()}, ValueError, "at least one"),
        (nn.Linear(3, 1), {"trainable": {1}}, TypeError, "names of parameters"),
        (nn.Linear(3, 1), {"trainable": "weight"}, TypeError, "a set of names"),
        (nn.Linear(3, 1), {"features": "2"}, ValueError, "one of the submodules"),
        (nn.Linear(3, 1), {"features": 2}, TypeError, "features must be a function"),
        (nn.Linear(3, 1), {"features": torch.sum}, ValueError, "a row for each"),
        (nn.Linear(3, 1), {"diag": 1}, TypeError, "diag"),
        (nn.Linear(3, 1), {"memory": "much"}, ValueError, "memory must be a size"),
        (nn.Linear(3, 1), {"x2": inputs(3, 3), "diag": True}, ValueError, "as many x1 as x2"),
        (nn.Linear(3, 1), {"x2": inputs(3, 3) / 0}, ValueError, "x2 must be finite"),
        (Pair(), {}, TypeError, "must return a tensor"),
        (Summed(), {}, ValueError, "a row for each of its samples"),
    ],
)
def test_bad_arguments(module, options, error, message):
    with pytest.raises(error, match=message):
        shoal.empirical_kernel(module.double(), inputs(4, 3), **options)

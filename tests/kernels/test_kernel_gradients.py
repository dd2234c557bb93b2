"""Gradients of kernel matrices against differences and against autograd of single entries."""

import pytest
import torch
from torch.autograd import gradcheck

from shoal import DEQ, FullyConnected, kernel, kernel_function
from shoal.activations import ELU, GELU, ReLU, Softplus, Tanh


def inputs(count, features, seed=0, *, one_norm=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, dtype=torch.float64, generator=generator)
    return x / x.norm(dim=1, keepdim=True) if one_norm else x


def leaves(architecture, x, y):
    variances = {
        name: torch.tensor(getattr(architecture, name), dtype=torch.float64, requires_grad=True)
        for name in architecture.variances
    }
    points = [t.clone().requires_grad_() for t in (x, y) if t is not None]
    return points, variances


def upstream(rows, columns):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, rows, columns, dtype=torch.float64, generator=generator)


def found_gradients(architecture, x, y, weights, **options):
    points, variances = leaves(architecture, x, y)
    found = kernel(architecture, *points, variances=variances or None, **options)
    total = (weights[0] * found.ck + weights[1] * found.ntk).sum()
    return torch.autograd.grad(total, [*points, *variances.values()])


def gradients_by_entries(architecture, x, y, weights, **options):
    """By the scalar equations of every entry."""
    points, variances = leaves(architecture, x, y)
    function = kernel_function(architecture, variances=variances or None, **options)
    left, right = points[0], points[-1]
    i, j = torch.ones(len(left), len(right)).nonzero(as_tuple=True)
    off = ((i != j) | (y is not None)) & (weights[0, i, j] != 0)
    a, b, c = ((s * t).sum(1) for s, t in ((left, left), (right, right), (left[i], right[j])))
    values = function(a[i[off]], b[j[off]], c[off])
    total = sum((w[i[off], j[off]] * k).sum() for w, k in zip(weights, values, strict=True))
    if y is None:
        for weight, own in zip(weights, function.diagonal(a), strict=True):
            total = total + (weight.diagonal() * own).sum()
    return torch.autograd.grad(total, [*points, *variances.values()])


def differences(architecture, x, y, weights, direction, **options):
    """The derivative along a direction of all inputs and variances, by values alone."""

    def value(step):
        points = [t + step * d for t, d in zip((x, y), direction, strict=False) if t is not None]
        variances = {
            name: torch.tensor(getattr(architecture, name) + step * d, dtype=torch.float64)
            for name, d in zip(architecture.variances, direction[2:], strict=False)
        }
        found = kernel(architecture, *points, variances=variances or None, **options)
        return float((weights[0] * found.ck + weights[1] * found.ntk).sum())

    h = 1e-3
    return (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)


ARCHITECTURES = [
    (DEQ(ReLU(), 0.2, 0.8), {}),
    (DEQ(Tanh(), 0.2, 0.8), {}),
    (DEQ(ELU(0.5), 0.2, 0.8), {}),
    (DEQ(Softplus(), 0.3, 0.5, parametrization="standard"), {"width": 5}),
    (FullyConnected([Tanh(), ReLU()]), {}),
]


@pytest.mark.thorough("ELU", "Softplus", "False-DEQ(activation=Tanh()")
@pytest.mark.parametrize(("architecture", "options"), ARCHITECTURES, ids=repr)
@pytest.mark.parametrize("symmetric", [True, False])
def test_differences(architecture, options, symmetric):
    x, y = inputs(4, 3, 1, one_norm=symmetric), None if symmetric else inputs(3, 3, 2)
    weights = upstream(4, 4 if symmetric else 3)
    direction = [inputs(4, 3, 3), inputs(3, 3, 4), 0.7, -0.4]
    found = found_gradients(architecture, x, y, weights, **options)
    slope = sum(
        float((g * d).sum())
        for g, d in zip(
            found, [d for d, t in zip(direction, (x, y, 1, 1), strict=True) if t is not None],
            strict=False,
        )
    )  # fmt: skip
    expected = differences(architecture, x, y, weights, direction, **options)
    assert slope == pytest.approx(expected, rel=1e-7, abs=1e-8)


@pytest.mark.thorough("trainable", "standard")
@pytest.mark.parametrize("one_norm", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        (DEQ(ReLU(), 0.2, 0.8), {}),
        (DEQ(ReLU(), 0.2, 0.8), {"trainable": {"input"}}),
        (DEQ(ReLU(), 0.2, 0.8), {"trainable": ("recurrent", "readout")}),
        (DEQ.ling2023(0.1, 6), {"width": 7}),
        (DEQ.ling2023(0.1, 6), {}),
        (FullyConnected([ReLU(), ReLU()]), {}),
    ],
    ids=repr,
)
def test_many_entries(architecture, options, symmetric, one_norm):
    x, y = inputs(24, 6, 1, one_norm=one_norm), inputs(11, 6, 2, one_norm=one_norm)
    y = None if symmetric else y
    weights = upstream(24, 24 if symmetric else 11)
    found = found_gradients(architecture, x, y, weights, **options)
    expected = gradients_by_entries(architecture, x, y, weights, **options)
    for left, right in zip(found, expected, strict=True):
        assert (left - right).abs().max() <= 1e-10 * right.abs().max()


def test_gradcheck():
    deq = DEQ(ReLU(), 0.2, 0.8)
    x, y = inputs(5, 3, 1).requires_grad_(), inputs(2, 3, 2).requires_grad_()
    v = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def function(x, y, v):
        return tuple(kernel(deq, x, y, variances={"recurrent_variance": v}))

    assert gradcheck(function, (x, y, v), fast_mode=True)
    assert gradcheck(lambda x: tuple(kernel(deq, x)), (x,), fast_mode=True)
    assert gradcheck(lambda x: tuple(kernel(deq, x, diag=True)), (x,), fast_mode=True)


def test_batches_add_up():
    deq = DEQ(ReLU(), 0.2, 0.8)
    x, y = inputs(4, 3, 1).requires_grad_(), inputs(6, 3, 2).view(2, 3, 3)
    v = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    variances = {"input_variance": v}
    whole = torch.autograd.grad(kernel(deq, x, y, variances=variances).ntk.sum(), (x, v))
    parts = [
        torch.autograd.grad(kernel(deq, x, z, variances=variances).ntk.sum(), (x, v)) for z in y
    ]
    for found, first, second in zip(whole, *parts, strict=True):
        torch.testing.assert_close(found, first + second, rtol=0, atol=1e-10)  # as it is stated


@pytest.mark.parametrize(("phi", "count"), [(ReLU(), 40), (Tanh(), 3)], ids=str)
def test_many_small_matrices(phi, count):
    """They are computed at once, whatever is between different ones."""
    deq = DEQ(phi, 0.2, 0.8)
    x, y = (inputs(count * n, 3, n).view(count, n, 3).requires_grad_() for n in (2, 4))
    together = kernel(deq, x, y)
    alone = [kernel(deq, *pair) for pair in zip(x, y, strict=True)]
    torch.testing.assert_close(together.ck, torch.stack([k.ck for k in alone]))
    for found, expected in zip(
        torch.autograd.grad(together.ntk.sin().sum(), (x, y)),
        torch.autograd.grad(sum(k.ntk.sin().sum() for k in alone), (x, y)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    own = kernel(deq, y).ntk
    assert torch.equal(own, own.mT)


def test_without_gradients_nothing_changes():
    deq, x = DEQ(ReLU(), 0.2, 0.8), inputs(20, 3)
    plain = kernel(deq, x)
    assert not plain.ck.requires_grad
    with torch.no_grad():
        assert not kernel(deq, x.clone().requires_grad_()).ck.requires_grad
    tracked = kernel(deq, x.clone().requires_grad_())
    replaced = kernel(DEQ(ReLU(), 0.5, 0.1), x, variances={
        "recurrent_variance": torch.tensor(0.2, dtype=torch.float64),
        "input_variance": torch.tensor(0.8, dtype=torch.float64),
    })  # fmt: skip
    for one, two, three in zip(plain, tracked, replaced, strict=True):
        assert torch.equal(one, two.detach())
        assert torch.equal(one, three)


def test_single_precision_and_limits_of_memory():
    deq, x, weights = DEQ(ReLU(), 0.2, 0.8), inputs(40, 5), upstream(40, 40)
    exact = found_gradients(deq, x, None, weights)
    strips = found_gradients(deq, x, None, weights, memory=4096)
    single = found_gradients(deq, x.float(), None, weights.float())
    for one, two, three in zip(exact, strips, single, strict=True):
        assert (one - two).abs().max() <= 1e-12 * one.abs().max()
        assert (one - three).abs().max() <= 1e-4 * one.abs().max()


def test_second_derivatives_are_refused():
    x = inputs(3, 2).requires_grad_()
    found = kernel(DEQ(ReLU(), 0.2, 0.8), x).ck.sum()
    (slope,) = torch.autograd.grad(found, x, create_graph=True)
    with pytest.raises(RuntimeError, match="of the first order only"):
        slope.sum().backward()


@pytest.mark.parametrize(
    ("architecture", "variances", "error", "message"),
    [
        (DEQ(ReLU(), 0.2, 0.8), {"gain": torch.tensor(0.1)}, ValueError,
         "among those of DEQ .'recurrent_variance', 'input_variance'., got 'gain'"),
        (FullyConnected([ReLU()]), {"gain": torch.tensor(0.1)}, ValueError, r"\(none\)"),
        (DEQ(ReLU(), 0.2, 0.8), {"input_variance": 0.1}, TypeError, "a floating-point tensor"),
        (DEQ(ReLU(), 0.2, 0.8), {"input_variance": torch.ones(2)}, TypeError, r"of shape \(\)"),
        (DEQ(ReLU(), 0.2, 0.8), {"input_variance": torch.tensor(-1.0)}, ValueError,
         "input_variance must be >= 0, got -1"),
        (DEQ(ReLU(), 0.2, 0.8), torch.tensor(1.0), TypeError, "variances must map names"),
    ],
)  # fmt: skip
def test_bad_variances(architecture, variances, error, message):
    with pytest.raises(error, match=message):
        kernel(architecture, inputs(2, 2), variances=variances)


def test_no_gradients_at_the_edge():
    with pytest.raises(ValueError, match="input_variance = 0 has no gradients"):
        kernel(DEQ(Softplus(), 0.2, 0.0), inputs(2, 2).requires_grad_())


def test_hints():
    with pytest.raises(TypeError, match="variances="):
        DEQ(ReLU(), torch.tensor(0.2), 0.8)
    v = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TypeError, match="x1 must be a tensor where gradients are wanted"):
        kernel(DEQ(ReLU(), 0.2, 0.8), inputs(2, 2).numpy(), variances={"input_variance": v})


@pytest.mark.parametrize(
    ("phi", "trainable"),
    [
        (Tanh(), None),
        pytest.param(GELU(), None, marks=pytest.mark.thorough),
        pytest.param(ReLU(), ["recurrent"], marks=pytest.mark.thorough),
    ],
)
def test_gradients_in_variances_of_many_inputs(phi, trainable):
    """Slopes in all variances, without and with the NTK, against differences."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(260, 6, dtype=torch.float64, generator=generator)
    weights = torch.randn(2, 260, 260, dtype=torch.float64, generator=generator)
    values = {"recurrent_variance": 0.2, "input_variance": 0.4, "bias_variance": 0.1}

    def loss(tensors, share):
        deq = DEQ(phi, 0.2, 0.4, bias_variance=0.1)
        ck, ntk = kernel(deq, x, variances=tensors, trainable=trainable)
        return (weights[0] * ck).sum() + share * (weights[1] * ntk).sum()

    for share in (0.0, 1.0):  # without and with the NTK
        tensors = {
            name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
            for name, value in values.items()
        }
        loss(tensors, share).backward()
        step = {"recurrent_variance": 1e-4, "input_variance": -2e-4, "bias_variance": 5e-5}
        ends = [
            float(loss({n: t.detach() + sign * step[n] for n, t in tensors.items()}, share))
            for sign in (1, -1)
        ]
        along = sum(step[name] * float(tensor.grad) for name, tensor in tensors.items())
        assert along == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-5, abs=1e-9)

"""Modules of several inputs are trained, watched and measured as those of one tensor are."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import shoal
from training.modules import jacobian, seeded


class Attending(nn.Module):
    """Words of a sequence, of which a mask tells some to be left out, and a pair of numbers."""

    def __init__(self):
        super().__init__()
        self.words, self.scale = nn.Embedding(6, 4), nn.Linear(2, 4)
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, words, numbers, mask=None):
        z = self.words(words) + self.scale(torch.stack(numbers, -1))[:, None]
        z, _ = self.attention(z, z, z, key_padding_mask=mask, need_weights=False)
        return self.last(torch.tanh(z.mean(1)))


class Glued(nn.Module):
    """The same module of one tensor, in which all of that stands side by side."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x[:, :3].long(), (x[:, 3], x[:, 4]), x[:, 5:].bool())


def samples(n=7):
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(6, (n, 3), generator=generator)
    numbers = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    mask = torch.rand(n, 3, generator=generator) < 0.4
    mask[:, 0] = False
    y = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return words, (numbers[:, 0], numbers[:, 1]), mask, y


def arranged(how, n=7):
    """A module, its inputs by place or by name or in one tensor, and labels."""
    words, numbers, mask, y = samples(n)
    net = seeded(Attending)
    if how == "names":
        return net, {"mask": mask, "words": words, "numbers": numbers}, y
    if how == "places":
        return net, (words, numbers, mask), y
    return Glued(net), torch.cat([words, torch.stack(numbers, 1), mask], 1).double(), y


WAYS = {
    "descent": {"step_size": 0.1},
    "batches": {
        "optimizer": lambda p: torch.optim.Adam(p, lr=0.02),
        "batch_size": 3,
        "loss": lambda f, y: cross_entropy(f, y.argmax(1)),
    },
}


@pytest.mark.parametrize("how", ["places", "names"])
@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_the_same_module_of_one_tensor(how, way):
    one, x, y = arranged("glued")
    truth = shoal.train(one, x, y, steps=4, monitor=2, **WAYS[way])
    net, x, y = arranged(how)
    run = shoal.train(net, x, y, steps=4, monitor=2, **WAYS[way])
    torch.testing.assert_close(run.losses, truth.losses, rtol=1e-10, atol=1e-12)
    assert set(run.monitors) == set(truth.monitors)
    for name, values in truth.monitors.items():
        torch.testing.assert_close(run.monitors[name], values, rtol=1e-6, atol=1e-9)
    for mine, theirs in zip(net.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_a_watch_looks_at_all_inputs():
    net, x, y = arranged("places")
    row = shoal.Watch(net, x, y).record(0)
    one, glued, _ = arranged("glued")
    rows = jacobian(one, glued)
    least = torch.linalg.eigvalsh(rows @ rows.T)[0].item()
    assert row["least_eigenvalue"] == pytest.approx(max(least, 0.0), rel=1e-5, abs=1e-10)
    assert row["loss"] == pytest.approx(0.5 * (net(*x) - y).square().sum().item())


@pytest.mark.parametrize("memory", [None, 4000], ids=["whole", "blocks"])
def test_the_ntk_is_the_gram_matrix_of_gradients(memory):
    net, x, _ = arranged("places")
    one, glued, _ = arranged("glued")
    rows = jacobian(one, glued).view(7, 2, -1)
    truth = torch.einsum("ikp,jkp->ij", rows, rows) / 2
    for how in (x, arranged("names")[1]):
        found = shoal.empirical_kernel(net, how, memory=memory).ntk
        torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-10)
    own = shoal.empirical_kernel(net, x, diag=True, memory=memory).ntk
    torch.testing.assert_close(own, truth.diagonal(), rtol=1e-8, atol=1e-10)


ONES = torch.ones(7, 2).double()


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            (ONES, ONES[:6]),
            ValueError,
            r"same samples .* \(7, 2\) in x1?\[0\], \(6, 2\) in x1?\[1\]",
        ),
        ((ONES, None), TypeError, r"x1? must be a tensor .* got NoneType in x1?\[1\]"),
        ({"a": ONES, "b": "no"}, TypeError, r"got str in x1?\['b'\]"),
        ({1: ONES}, TypeError, "names of arguments as keys, got"),
        ((ONES, (ONES, ONES / 0)), ValueError, r"x1?\[1\]\[1\] must be finite"),
        ((ONES, torch.tensor(1)), ValueError, r"x1?\[1\] must have samples in its first dimension"),
        ((), ValueError, "same samples in their first dimension, got none"),
        ({}, ValueError, "same samples in their first dimension, got none"),
    ],
)
def test_bad_inputs(x, error, message):
    net = seeded(lambda: nn.Bilinear(2, 2, 1))
    with pytest.raises(error, match=message):
        shoal.Watch(net, x, ONES[:, 0])
    with pytest.raises(error, match=message):
        shoal.empirical_kernel(net, x)


def test_networks_take_one_tensor():
    deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)
    net = shoal.build(deq, in_features=2, width=4, dtype=torch.float64)
    for call in (
        lambda: shoal.train(net, (ONES, ONES), ONES[:, 0], steps=1, step_size=0.1),
        lambda: shoal.Watch(net, (ONES,), ONES[:, 0], loss=cross_entropy),
        lambda: shoal.empirical_kernel(net, (ONES,)),
    ):
        with pytest.raises(TypeError, match="must be a floating-point tensor or a number"):
            call()

"""Decisions of outputs of all shapes, and when they agree."""

import pytest
import torch

from shoal.loops.decisions import decisions_of


def test_tokens_have_a_decision_each():
    logits = torch.randn(4, 6, 5)
    decisions = decisions_of(logits)
    assert decisions.kind == "class"
    assert torch.equal(decisions(logits), logits.argmax(-1))
    other = logits.clone()
    other[1, 2] = -logits[1, 2]
    expected = torch.ones(4, 6, dtype=torch.bool)
    expected[1, 2] = False
    assert torch.equal(decisions.agree(logits, other), expected)


@pytest.mark.parametrize(
    ("shape", "labels", "axis"),
    [
        ((3, 2, 6, 6), None, 1),
        ((3, 9, 9, 10), None, -1),
        ((3, 2, 6, 8), (3, 6, 8), 1),
        ((3, 6, 6, 4), (3, 6, 6), -1),
        ((3, 4, 7), (3, 7), 1),
        ((3, 7), (3,), -1),
    ],
)
def test_labels_and_shapes_tell_the_axis_of_classes(shape, labels, axis):
    y = None if labels is None else torch.randint(2, labels)
    decisions = decisions_of(torch.randn(shape), y)
    assert (decisions.kind, decisions.axis) == ("class", axis)


def test_one_number_is_a_sign_by_its_labels_and_else_a_value():
    logits = torch.randn(8, 1)
    assert decisions_of(logits).kind == "value"
    assert decisions_of(logits, torch.randn(8)).kind == "value"
    signs = decisions_of(logits, torch.randint(2, (8,)).float())
    assert signs.kind == "sign"
    assert torch.equal(signs(logits), (logits > 0).long())
    probabilities = logits.sigmoid()
    halves = decisions_of(probabilities, torch.randint(2, (8,)))
    assert torch.equal(halves(probabilities), signs(logits))
    assert torch.equal(signs.labels(torch.tensor([-1, 1] * 4), signs(logits))[:2, 0],
                       torch.tensor([0, 1]))  # fmt: skip


def test_values_agree_within_a_share_of_their_spread():
    values = 1000 + torch.randn(50, 1, dtype=torch.float64)
    decisions = decisions_of(values)
    assert bool(decisions.agree(values, values + 0.005).all())
    assert not bool(decisions.agree(values, values + 0.05).any())
    assert bool(decisions_of(values[:1]).agree(values[:1], values[:1] + 5).all())


def test_what_is_not_finite_agrees_with_nothing():
    logits = torch.randn(3, 4)
    logits[1, 2] = torch.nan
    logits[2, 0] = -torch.inf  # a masked class
    assert decisions_of(logits).agree(logits, logits)[:, 0].tolist() == [True, False, True]
    assert decisions_of(logits[:, :1]).agree(logits[:, :1] / 0, logits[:, :1] / 0).sum() == 0


def test_trees_and_custom_decisions():
    output = {"halt": torch.randn(3), "logits": torch.randn(3, 4)}
    assert torch.equal(decisions_of(output)(output)[:, 0], output["logits"].argmax(-1))
    pair = (torch.arange(3), torch.randn(3, 4))
    assert torch.equal(decisions_of(pair)(pair)[:, 0], pair[1].argmax(-1))
    top = decisions_of(output, decision=lambda o: o["logits"].topk(2).indices)
    assert top.kind == "label"
    assert top(output).shape == (3, 2)
    assert decisions_of(output, decision="value").kind == "value"


def test_refusals():
    with pytest.raises(ValueError, match="one entry per sample"):
        decisions_of(torch.tensor(1.0))
    with pytest.raises(TypeError, match="decision must return a tensor"):
        decisions_of(torch.randn(3, 4), decision=len)
    decisions = decisions_of(torch.randn(3, 6, 5))
    with pytest.raises(ValueError, match="y must have one label per decision"):
        decisions.labels(torch.zeros(3), torch.zeros(3, 6))

"""Stop rules: their promise over new samples, their runs, and what they refuse."""

import json
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

import shoal
from loops import foreign
from shoal.loops.decisions import decisions_of
from shoal.loops.stopping import calibrated, record_of

torch.manual_seed(0)
WEIGHT = torch.randn(5, 5) / 3


def cell(z: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(z @ WEIGHT + x)


def loop_of(head=None, steps: int = 16) -> shoal.Loop:
    return shoal.Loop(cell, torch.zeros_like, torch.randn(600, 5), head=head, steps=steps)


def test_the_promise_holds_over_splits() -> None:
    loop = loop_of(lambda z: torch.stack([z, z.roll(1, 1)], 1))  # decisions of a sample depend
    x = torch.randn(3000, 5)
    record = record_of(loop, (x,), decisions_of(loop.run(x)), 16)
    broken, savings = 0, []
    for split in range(60):
        order = torch.randperm(3000, generator=torch.Generator().manual_seed(split))
        rule = calibrated(record, order[:700], 0.02, 0.9)
        index = record.names.index(rule.signal)
        below = record.signals[order[700:], :, index] <= rule.threshold
        place = torch.where(below.any(1), below.byte().argmax(1), below.shape[1])
        lost = record.lost[order[700:]].gather(1, place[:, None])
        broken += float(lost.double().mean()) > 0.02
        savings.append(rule.savings)
    assert broken <= 12  # 6 are expected at most; 13 have a probability below 1%
    assert sum(savings) / 60 > 0.4


def test_the_threshold_has_the_bound_of_clopper_and_pearson() -> None:
    loop = loop_of()
    rule = shoal.stop_rule(loop, risk=0.03, confidence=0.9)
    assert rule.calibrated_on == 420
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    (x,) = loop.inputs
    rows = order[120:540]
    whole = loop.run(x[rows]).argmax(1)
    changed = int((loop.run(x[rows], until=rule).argmax(1) != whole).sum())
    assert changed > 0
    bound = binomtest(changed, 420).proportion_ci(0.8, "exact").high
    assert bound <= 0.03


@pytest.mark.thorough("Transformer", "TwoStates")
@pytest.mark.parametrize(
    ("make", "samples"),
    [
        (foreign.LoopedTransformer, foreign.tokens),
        (foreign.TwoStates, foreign.tokens),
        (foreign.ConvolutionWithRecall, foreign.images),
    ],
)
def test_it_stops_models_that_know_nothing_of_it(make, samples) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), samples(100)
    rule = shoal.stop_rule(model, x, risk=0.05)
    loop = shoal.find_loop(model, x[:5])
    assert rule.steps == loop.steps
    new = samples(20)
    _, counts = loop.run(new, until=rule, counts=True)
    assert int(counts.min()) >= 2
    assert int(counts.max()) <= rule.steps
    assert 0 <= rule.savings < 1


def test_a_loop_of_ones_own_stops_alike() -> None:
    loop, x = loop_of(), torch.randn(9, 5)
    rule = shoal.stop_rule(loop, risk=0.05)
    output, counts = loop.run(x, until=rule, counts=True)
    assert len(set(counts.tolist())) > 1
    z, stopping = torch.zeros_like(x), rule.start()
    for _ in range(rule.steps):
        z = cell(z, x)
        if stopping(z, z):
            break
    torch.testing.assert_close(stopping.output, output)
    assert torch.equal(stopping.iterations, counts)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    loop, x = loop_of(), torch.randn(30, 5)
    rule = shoal.stop_rule(loop, risk=0.05)
    rule.save(tmp_path / "rule.json")
    assert json.loads((tmp_path / "rule.json").read_text())["savings"] == rule.savings
    with pytest.raises(ValueError, match="custom decision function cannot be saved"):
        shoal.stop_rule(loop, risk=0.05, decision=lambda z: z).save(tmp_path / "rule.json")
    again = shoal.loops.CalibratedRule.load(tmp_path / "rule.json")
    assert torch.equal(loop.run(x, until=again), loop.run(x, until=rule))
    (tmp_path / "rule.json").write_text("[]")
    with pytest.raises(ValueError, match=r"path must be a file of rule\.save"):
        shoal.loops.CalibratedRule.load(tmp_path / "rule.json")


def test_labels_allow_wrong_decisions_to_change() -> None:
    def turn(z: Tensor, x: Tensor) -> Tensor:  # the first half changes its mind in step 9
        late = (x[:, :1] > 0) & (z[:, 2:] == 8)
        scores = torch.where(late, z[:, :2].flip(1), z[:, :2])
        return torch.cat([scores, z[:, 2:] + 1], 1)

    start = torch.tensor([1.0, 0.0, 0.0])
    loop = shoal.Loop(turn, lambda x: start.repeat(len(x), 1), head=lambda z: z[:, :2], steps=12)
    x = torch.randn(600, 1)
    assert shoal.stop_rule(loop, x).savings < 0.25  # it must wait for step 9
    wrong = torch.zeros(600).long()  # where it changes its mind, it is wrong in the end
    assert shoal.stop_rule(loop, x, y=wrong).savings > 0.5
    assert shoal.stop_rule(loop, x, y=wrong).labeled
    some = torch.cat([wrong, torch.full((300,), -100)])  # the others calibrate nothing
    rule = shoal.stop_rule(loop, torch.cat([x, torch.randn(300, 1)]), y=some)
    assert rule.calibrated_on == 420


def test_what_never_settles_is_run_to_the_end() -> None:
    angle = torch.tensor(2.0)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    loop = shoal.Loop(lambda z, _: z @ turn, lambda x: x, steps=9)
    assert shoal.stop_rule(loop, torch.randn(500, 2)).savings < 0.1


@pytest.mark.parametrize("decision", [None, "sign", "value", lambda z: (z[:, 0] > 0).long()])
def test_decisions_of_all_kinds(decision) -> None:
    rule = shoal.stop_rule(loop_of(lambda z: z[:, :1]), risk=0.05, decision=decision)
    assert 0.1 < rule.savings < 0.9
    assert "fewer iterations" in str(rule)


def test_another_full_count() -> None:
    loop = loop_of(steps=4)
    rule = shoal.stop_rule(loop, risk=0.02, steps=30)
    _, counts = loop.run(torch.randn(50, 5), until=rule, counts=True)
    assert rule.steps == 30
    assert int(counts.max()) > 4


def test_fewest_samples() -> None:
    loop = loop_of()
    with pytest.raises(ValueError, match=r"at least 428 samples .* 70% of them, 299, .* got 427"):
        shoal.stop_rule(loop, torch.randn(427, 5))
    shoal.stop_rule(loop, torch.randn(428, 5))


def test_refusals() -> None:
    x = torch.randn(600, 5)
    with pytest.raises(ValueError, match="Linear has no loop"):
        shoal.stop_rule(nn.Linear(5, 2), x)
    with pytest.raises(ValueError, match="they depend on one another"):
        shoal.stop_rule(foreign.BatchCentered(), foreign.vectors(600))
    with pytest.raises(ValueError, match="pass z0 as a function of the inputs"):
        shoal.stop_rule(shoal.Loop(cell, torch.zeros_like(x), x, steps=9))
    with pytest.raises(TypeError, match="loop must be a Loop or a module"):
        shoal.stop_rule(cell, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be >= 3"):
        shoal.stop_rule(loop_of(), x, steps=2)
    with pytest.raises(ValueError, match="risk must be"):
        shoal.stop_rule(loop_of(), x, risk=1.5)
    with pytest.raises(ValueError, match="y must have one label per decision"):
        shoal.stop_rule(loop_of(), x, y=torch.zeros(600, 2))
    x[3, 1] = torch.nan
    with pytest.raises(ValueError, match="got NaN or infinity for 1 sample: 3"):
        shoal.stop_rule(loop_of(), x)


def test_a_sample_that_is_not_finite_disturbs_no_other() -> None:
    loop, x = loop_of(), torch.randn(9, 5)
    rule = shoal.stop_rule(loop, risk=0.05)
    expected, counts = loop.run(x, until=rule, counts=True)
    x[4, 0] = torch.nan
    output, new_counts = loop.run(x, until=rule, counts=True)
    finite = torch.arange(9) != 4
    torch.testing.assert_close(output[finite], expected[finite])
    assert torch.equal(new_counts[finite], counts[finite])
    assert int(new_counts[4]) == rule.steps

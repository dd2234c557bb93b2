"""Loops that are watched in training."""

import pytest
import torch
from torch import nn

import shoal
from loops import foreign
from shoal.loops import LoopMeasures


def test_a_watch_records_a_loop() -> None:
    torch.manual_seed(0)
    model, x = foreign.Vectors(), foreign.vectors(20)
    y = torch.randint(3, (20,))
    loop = shoal.find_loop(model, x)
    watch = shoal.Watch(
        model, x, y, loss=nn.functional.cross_entropy, gram=False, also=LoopMeasures(loop, x)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(3):
        row = watch.record(step)
        outputs = list(loop.outputs(x, steps=12))
        chosen = torch.stack([output.argmax(1) for output in outputs])
        assert row["agreement"] == float((chosen[5] == chosen[11]).double().mean())
        changes = [[n for n in range(2, 13) if c[n - 1] != c[n - 2]] or [1] for c in chosen.T]
        expected = sum(one[-1] for one in changes) / 20
        assert row["iterations"] == pytest.approx(expected)
        states = list(loop.states(x, steps=12))
        growth = (states[11].norm(dim=1) / states[5].norm(dim=1)).median()
        assert row["growth"] == pytest.approx(float(growth.detach()), rel=1e-5)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert watch.records.monitors["growth"].shape == (3,)
    assert len(set(watch.records.monitors["growth"].tolist())) == 3


def test_a_loop_of_unknown_count_is_refused() -> None:
    loop = shoal.Loop(torch.cos, torch.zeros(3, 1))
    with pytest.raises(ValueError, match="known number of steps"):
        LoopMeasures(loop)

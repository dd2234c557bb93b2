"""How far training moved a model's tangent kernel from that of its reference."""

import pytest
import torch
from torch import nn

import shoal
from diagnosis.models import Classifier, inputs


@pytest.mark.thorough
def test_how_far_training_moved_the_kernel() -> None:
    model, x = Classifier().double(), inputs()
    start = {name: p.clone() for name, p in model.state_dict().items()}
    same = shoal.diagnose(model, None, x, reference=start).kernel_change
    assert same.relative == pytest.approx(0, abs=1e-9)
    assert same.alignment == pytest.approx(1)
    with torch.no_grad():
        for p in model.readout.parameters():
            p.mul_(3)
        for p in model.recurrent.parameters():
            p.add_(0.2 * torch.randn_like(p))
    moved = shoal.diagnose(model, None, x, reference=start)
    kernels = [shoal.empirical_kernel(m, x).ntk for m in (Classifier().double(), model)]
    expected = float((kernels[1] - kernels[0]).norm() / kernels[0].norm())
    assert moved.kernel_change.relative == pytest.approx(expected, rel=1e-9)
    assert moved.kernel_change.alignment < 1
    assert "alignment" in str(moved)


@pytest.mark.thorough
def test_an_aligned_kernel_alone_does_not_make_training_linear() -> None:
    model, x = Classifier().double(), inputs()
    start = {name: p.clone() for name, p in model.state_dict().items()}
    near = shoal.diagnose(model, None, x, reference=start)
    assert any("shoal.design" in remedy.what for remedy in near.remedies)
    with torch.no_grad():
        for p in model.readout.parameters():
            p.mul_(1.5)
    moved = shoal.diagnose(model, None, x, reference=start)
    assert moved.kernel_change.alignment > 0.95
    assert moved.kernel_change.relative > 0.1
    assert not any("shoal.design" in remedy.what for remedy in moved.remedies)


@pytest.mark.parametrize("kind", ["module", "state dictionary"])
def test_a_reference_in_training_mode(kind: str) -> None:
    def made() -> nn.Module:
        model = Classifier().double()
        model.readout = nn.Sequential(nn.Dropout(0.5), model.readout)
        return model

    model, before, x = made(), made(), inputs()
    given = before if kind == "module" else before.state_dict()
    change = shoal.diagnose(model, None, x, reference=given).kernel_change
    assert change.relative == pytest.approx(0, abs=1e-9)
    assert model.training
    assert before.training


def test_a_reference_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="reference must be a state dictionary of the model"):
        shoal.diagnose(Classifier().double(), None, inputs(), reference={"a": inputs()})


class Masked(Classifier):
    """The same of two inputs, one of which says what counts."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.where(mask, x, 0.0))


def test_a_model_of_several_inputs() -> None:
    model, plain, x = Masked().double(), Classifier().double(), inputs()
    start, mask = Classifier().double().state_dict(), x > -0.5
    with torch.no_grad():
        for one in (model, plain):
            one.readout.weight.mul_(2)
    change = shoal.diagnose(model, None, x, mask, reference=start).kernel_change
    truth = shoal.diagnose(plain, None, torch.where(mask, x, 0.0), reference=start).kernel_change
    assert tuple(change) == pytest.approx(tuple(truth), rel=1e-9)

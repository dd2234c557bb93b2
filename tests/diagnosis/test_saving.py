"""What is drawn and saved of a diagnosis."""

from pathlib import Path

import pytest
import torch

import shoal
from diagnosis.models import DTYPE, inputs


def test_pictures_show_every_start_and_no_move_that_was_not_made() -> None:
    pytest.importorskip("matplotlib")
    x = inputs(2, 1).abs() + 0.1
    d = shoal.diagnose(lambda z, x: torch.sqrt(x - z), torch.zeros_like(x), x, starts=9)
    assert any("diverges" in one.counts for one in d.iterations)  # a root of less than zero
    moves = d.plot().axes[0]
    assert len(moves.get_legend().get_texts()) == 9
    for one, line in zip(d.iterations, moves.get_lines()[::2], strict=True):
        drawn = torch.as_tensor(line.get_ydata()).isfinite()
        assert torch.equal(drawn, one.moves.isfinite().all(1))
    broken = shoal.diagnose(lambda z: z * torch.nan, torch.ones(1, 1, dtype=DTYPE))
    assert "no move is a finite number" in [t.get_text() for t in broken.plot().axes[0].texts]


@pytest.mark.thorough
def test_pages_pictures_and_numbers_are_saved(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    x = inputs(3, 2)
    d = shoal.diagnose(lambda z, x: z / 2 + x, torch.zeros_like(x), x)
    for ending in ("html", "json", "png", "svg"):
        d.save(tmp_path / f"found.{ending}")
        assert (tmp_path / f"found.{ending}").stat().st_size > 1000
    page = (tmp_path / "found.html").read_text()
    assert "Does the plain iteration settle?" in page
    assert page.count("<svg") == 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    with pytest.raises(ValueError, match=r"path must end in \.html"):
        d.save(tmp_path / "found.txt")

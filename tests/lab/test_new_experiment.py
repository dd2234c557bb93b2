"""A new experiment is one file: nothing else names it."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal.reproductions
from shoal.cli.app import app
from shoal.lab import registry

FILE = '''
"""How large random numbers are."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.lab import Claim, Criterion, Experiment, grid, register


@register
@dataclass(frozen=True)
class Sizes(Experiment):
    """Mean squares of random numbers."""

    name: ClassVar[tuple[str, str]] = ("gauss1809", "sizes")
    title: ClassVar[str] = "Mean squares of random numbers"
    counts: tuple[int, ...] = (100, 400)

    @classmethod
    def quick(cls):
        return cls(counts=(10,))

    def points(self):
        return grid(count=self.counts)

    def compute(self, point, *, seed, device):
        draws = np.random.default_rng(seed).standard_normal(point["count"])
        return {"square": np.square(draws).mean()}

    def summarize(self, results):
        return {f"{r.point['count']}_square": float(r.arrays["square"]) for r in results}

    def claims(self, summary):
        asked = Criterion("mean square within 0.3 of 1", summary["400_square"], 0.7, 1.3)
        return (Claim("The variance is one", "1", "about one", "Gauss 1809", (asked,)),)

    def plot(self, results):
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot([float(r.arrays["square"]) for r in results])
        return figure
'''


@pytest.fixture
def one_more_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a new paper in shoal/reproductions, with one file."""
    folder = tmp_path / "packages" / "gauss1809"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "sizes.py").write_text(FILE)
    paths = [*shoal.reproductions.__path__, str(folder.parent)]
    monkeypatch.setattr(shoal.reproductions, "__path__", paths)
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))
    yield
    for name in [name for name in sys.modules if "gauss1809" in name]:
        del sys.modules[name]


@pytest.mark.usefixtures("one_more_file")
def test_it_is_listed_run_and_judged(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "Mean squares of random numbers" in runner.invoke(app, ["reproduce", "--json"]).stdout
    options = ["--device", "cpu", "--output", str(tmp_path / "out")]
    full = runner.invoke(app, ["reproduce", "gauss1809", "sizes", *options])
    assert full.exit_code == 0, full.output
    assert "The variance is one: reproduced" in full.output
    (page,) = (tmp_path / "out").glob("*/report.html")
    assert "mean square within 0.3 of 1" in page.read_text(encoding="utf-8")
    quick = runner.invoke(app, ["reproduce", "gauss1809", "sizes", "--quick", *options])
    assert quick.exit_code == 0, quick.output
    assert "The variance is one" not in quick.output  # a verdict needs the full size

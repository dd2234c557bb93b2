"""The error of finite widths falls as the theory says; names, fits and configurations."""

from dataclasses import dataclass

import numpy as np
import pytest

import shoal
from lab.computing import compute
from lab.small import Small
from shoal.core.fields import plain
from shoal.lab import find, register, registered
from shoal.lab.experiment import point_names
from shoal.lab.fits import power_law
from shoal.reproductions.findings.width import WidthError

RELU = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def test_the_error_falls_like_the_root_of_the_width() -> None:
    experiment = WidthError(RELU, widths=(32, 128, 512), draws=12, samples=16, features=16)
    summary = experiment.summarize(compute(experiment))
    for kind in ("ck", "ntk"):
        low, high = summary[f"{kind}_slope_low"], summary[f"{kind}_slope_high"]
        assert low < -0.5 < high
        assert high - low < 0.2


def test_the_figure_shows_all_errors_and_writes_nothing(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = WidthError(RELU, widths=(8, 16), draws=3, samples=4, features=4)
    figure = experiment.plot(compute(experiment))
    (axes,) = figure.axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(axes.lines[0].get_xdata()) == 6
    assert "slope" in axes.get_legend().get_texts()[0].get_text()
    assert list(tmp_path.iterdir()) == []


def test_the_interval_covers_the_slope_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    x = np.repeat([1.0, 2.0, 4.0, 8.0], 5)
    covered = 0
    for _ in range(400):
        low, high = power_law(x, x**-0.5 * np.exp(generator.normal(0, 0.3, 20))).interval
        covered += low < -0.5 < high
    assert 0.92 < covered / 400 < 0.98


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 2], "at least three"),
        ([1, 1, 1], [1, 2, 3], "two different"),
        ([1, 2, 3], [1, 2], "as many entries"),
        ([1, 2, 3], [1, 2, -3], "positive"),
    ],
)
def test_what_no_power_law_can_be_fitted_to(x: list[int], y: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        power_law(x, y)


def test_names_are_found_or_listed() -> None:
    assert find("shoal", "width") == [WidthError]
    assert WidthError in find("shoal")
    assert registered()["shoal", "width"] is WidthError
    with pytest.raises(ValueError, match=r"PAPER must be one of .*shoal.*, got 'whale'"):
        find("whale")
    with pytest.raises(ValueError, match=r"FIGURE of shoal must be one of .*width"):
        find("shoal", "whale")


def test_a_name_is_taken_once() -> None:
    class Another(WidthError):  # noqa: N818
        """Not the experiment that has the name."""

    with pytest.raises(ValueError, match="is that of WidthError already"):
        register(Another)
    assert register(WidthError) is WidthError


def test_points_need_names_of_their_own() -> None:
    @dataclass(frozen=True)
    class Twice(Small):
        def points(self):
            return [{"k": "a"}, {"k": "a"}]

    @dataclass(frozen=True)
    class Path(Small):
        def points(self):
            return [{"k": "a/b"}]

    with pytest.raises(ValueError, match="'ka' twice"):
        point_names(Twice())
    with pytest.raises(ValueError, match="got 'ka/b'"):
        point_names(Path())
    assert point_names(WidthError.quick())[:2] == ["width32-draw0", "width64-draw0"]


def test_configurations_are_plain() -> None:
    described = plain(WidthError(RELU))
    assert described["class"] == "WidthError"
    assert described["architecture"]["activation"] == {"class": "ReLU"}
    assert plain(Small())["class"].endswith("small.Small")
    with pytest.raises(TypeError, match="got <object"):
        plain({"a": object()})

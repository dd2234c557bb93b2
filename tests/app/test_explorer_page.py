"""The page and the command that writes it."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shoal.app.cli import app
from shoal.app.explorer import SCRIPTS, explorer_page, summarize, two_classes
from shoal.app.inputs import PreparedData


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explore", *words])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def text() -> str:
    return explorer_page(two_classes(), command="shoal explore")


def test_it_needs_nothing_else(text: str) -> None:
    assert len(text.encode()) < 1_500_000
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert links == ["data:,"]
    for reach in ("http://www.w3.org/2000/svg", "https://", "fetch(", "XMLHttpRequest", "import("):
        if reach.startswith("http://"):
            assert set(re.findall(r"http://[^\"' ]*", text)) == {reach}  # the name of SVG
        else:
            assert reach not in text


def test_names_of_data_cannot_leave_their_place() -> None:
    evil = '</script><script>alert("x")</script>'
    data = PreparedData(torch.eye(4, dtype=torch.float64) - 0.25, name=evil)
    made = explorer_page(summarize(data))
    assert made.count("<script") == len(SCRIPTS) + 1
    assert "alert(&#34;x&#34;)" in made


def test_an_activation_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"activation must be one of tanh, .*, got 'square'"):
        explorer_page(two_classes(), activation="square")


def test_data_are_summarized() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 5, generator=draw, dtype=torch.float64)
    x *= torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    noise = torch.randn(4000, generator=draw, dtype=torch.float64)
    y = x[:, 0] / 3 + noise  # half of the variance is linear, along the first direction
    x, y = x - x.mean(0), y - y.mean()
    found = summarize(PreparedData(x, y, "made"))
    assert (found.size, found.samples, found.target) == (5, 4000, "the target")
    assert sum(v * s for v, s in zip(found.values, found.shares, strict=True)) == pytest.approx(1)
    assert found.values[-1] == pytest.approx(9 * 5 / 13, rel=0.05)
    assert found.signal[-1] == pytest.approx(0.5, abs=0.05)
    assert sum(found.signal) + found.noise == pytest.approx(1)
    assert found.norms[0] < 1 < found.norms[-1]


def test_features_that_repeat_others_explain_nothing() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(20, 6, generator=draw, dtype=torch.float64)
    y = torch.randn(20, generator=draw, dtype=torch.float64)
    repeated = torch.cat([x, x, x], 1)
    once, thrice = (summarize(PreparedData(t - t.mean(0), y, "made")) for t in (x, repeated))
    assert thrice.noise == pytest.approx(once.noise, rel=1e-9)
    assert sum(thrice.signal) == pytest.approx(sum(once.signal), rel=1e-9)


def test_groups_keep_the_trace_of_many_directions() -> None:
    x = torch.randn(600, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = summarize(PreparedData(x - x.mean(0), name="wide"))
    assert len(found.values) < 150
    assert sum(found.shares) == pytest.approx(1)
    assert sum(v * s for v, s in zip(found.values, found.shares, strict=True)) == pytest.approx(1)
    assert found.target == "a random linear function"
    assert sum(found.signal) == pytest.approx(1)


@pytest.mark.parametrize(("samples", "size"), [(2, 6), (300, 1), (300, 40)])
def test_limits_of_small_data_are_doubted(samples: int, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    page = explorer_page(summarize(PreparedData(x - x.mean(0), name="few")))
    assert ("they say little" in page) == (min(samples, size) < 20)


def test_data_of_zeros_are_refused() -> None:
    with pytest.raises(ValueError, match="data must not be zero everywhere, got nothing"):
        summarize(PreparedData(torch.zeros(3, 2), name="nothing"))


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    out = tmp_path / "new" / "explorer.html"
    options = ["--output", str(out.parent), "--activation", "relu", "--json"]
    code, told = run("digits", "-n", "300", *options)
    document = json.loads(told)
    assert code == 0
    assert document["page"] == str(out)
    assert document["bytes"] == len(out.read_bytes())
    assert document["population"]["samples"] == 300
    assert '"activation":"relu"' in out.read_text(encoding="utf-8")

"""Regressions that several processes share give what one alone does, or the same error in all."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from blocks import page_blocks

import shoal
from learning import shared_work
from ranks import run_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)

# how many processes, and what they do one after the other: to start them is what takes time
QUICK = (2, "regression", "failures")
TWO = (2, "products", "ways", "images", "rounded")
THREE = (3, "regression", "products", "ways")


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What all processes have of each part, from one start of them."""

    @cache
    def start(count, *names):
        folder = tmp_path_factory.mktemp("together")
        outcomes = run_ranks(shared_work.parts, count, folder, names)
        assert [error for _, error in outcomes] == [""] * count
        return {name: [value[name] for value, _ in outcomes] for name in names}

    return start


def assert_shared(found, single):
    """All processes have the same bits, and those of one alone to 1e-12 of the largest."""
    for value in found:
        torch.testing.assert_close(value, found[0], rtol=0, atol=0)
    for name, expected in single.items():
        for here, there in zip(found[0][name], expected, strict=True):
            torch.testing.assert_close(here, there, rtol=0, atol=1e-12 * float(there.abs().max()))


@pytest.mark.parametrize(
    "start",
    [
        QUICK,
        pytest.param(THREE, marks=pytest.mark.thorough),
    ],
)
def test_regression(start, together):
    assert_shared(together(*start)["regression"], shared_work.regression(0))


@pytest.mark.thorough
@pytest.mark.parametrize("start", [TWO, THREE])
def test_products_and_ways_to_solve(start, together):
    found = together(*start)
    assert_shared(found["products"], shared_work.products(0))
    assert_shared(found["ways"], shared_work.ways(0))


@pytest.mark.thorough
def test_images(together):
    assert_shared(together(*TWO)["images"], shared_work.images(0))


@pytest.mark.thorough
def test_kept_in_float32(together):
    single = shared_work.rounded(0)
    for value in together(*TWO)["rounded"]:
        torch.testing.assert_close(value, single, rtol=1e-8, atol=1e-10)  # to the tolerance


def test_what_fails_in_one_fails_in_all(together):
    first, second = together(*QUICK)["failures"]
    assert first == second
    messages, differ = first, "ValueError: the 2 processes must make the same call with the"
    assert [message[:60] for message in messages if not message.startswith(differ)] == [
        "ValueError: ridge must be >= 0, got -1",
        "KeyError: 'enough'",
        "ConvergenceError: the regression did not converge: 2 of 2 ri",
        "ValueError: x must have shape (inputs, 6), got (20, 3)",
    ]
    names = [message.split("differ in: ")[1] for message in messages if message.startswith(differ)]
    assert [name.partition(".")[0] for name in names] == ["x1", "vectors", "x1", "y"]


LOST = r"ConnectionError: process \d of \d lost contact with another one"


def test_a_killed_process_ends_the_others_with_a_message(tmp_path):
    found = run_ranks(shared_work.killed, 2, tmp_path)
    assert found[0] == (None, "")
    assert re.match(LOST, found[1][1])


def test_groups_that_are_none():
    x, y, _ = shared_work.data(5)
    outside = torch.distributed.GroupMember.NON_GROUP_MEMBER  # what new_group returns to others
    with pytest.raises(ValueError, match="a group that contains this process"):
        shoal.kernel_regression(shared_work.DEQ, x, y, ridge=1.0, process_group=outside)
    with pytest.raises(TypeError, match="process_group must be a group of processes, got 3"):
        shoal.kernel_regression(shared_work.DEQ, x, y, ridge=1.0, process_group=3)
    with pytest.raises(ValueError, match="process_group must be 'auto', a group or None"):
        shoal.kernel_operator(shared_work.DEQ, x, process_group="all")


@pytest.mark.thorough
@pytest.mark.parametrize(("which", "launched"), [(0, 1), (2, 2)], ids=["fit.py", "train.py"])
def test_the_programs_of_the_page_under_torchrun(which, launched, tmp_path):
    pytest.importorskip("sklearn")
    page = Path(__file__).parents[2] / "docs" / "several-processes.md"
    program = list(page_blocks(page))[which]
    (tmp_path / "program.py").write_text(program.code, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    found = subprocess.run(
        [*launcher, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert found.stdout == program.output
    assert found.stdout in page.read_text(encoding="utf-8").split("```sh")[launched]

"""Runs whose points several processes share."""

import json

import pytest
import torch

from lab import shared_runs
from lab.small import Small
from ranks import run_ranks
from shoal.lab import Run, execute

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)


@pytest.mark.thorough
def test_processes_share_the_points_of_a_run(tmp_path):
    pytest.importorskip("matplotlib")
    outcomes = run_ranks(shared_runs.experiment, 2, tmp_path, str(tmp_path / "shared"))
    assert outcomes == [((list(range(5)), "the last one fails"), "")] * 2
    one, other = Run(Small(), tmp_path / "shared", "cpu"), Run(Small(), tmp_path / "alone", "cpu")
    execute(other)
    assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in other.files]
    record = json.loads((one.folder / "run.json").read_text())
    assert record["complete"]
    assert record["sessions"][0]["computed"] == 5
    failing = Run(shared_runs.Failing(), tmp_path / "shared" / "failing", "cpu")
    assert failing.finished == 4  # those of the rounds before are kept

"""GPUs that are none."""

import pytest
import torch

from equilibrium.graphs_on_the_cpu import Recorder
from shoal.equilibrium.cuda_graphs import graphs, recurring
from shoal.equilibrium.recurrent import coarse


@pytest.fixture
def late_looks(monkeypatch):
    """Let a look cost as much as some steps, as on a GPU."""

    def cost(steps):
        monkeypatch.setitem(coarse._LOOK, "cpu", steps * coarse._STEP * 1.1)

    return cost


@pytest.fixture
def recorder(monkeypatch, late_looks):
    """Let solves be recorded on the CPU, as on a GPU."""
    late_looks(3)
    found = Recorder()
    monkeypatch.setattr(recurring, "record", found)
    monkeypatch.setattr(graphs, "_on_gpu", torch.is_tensor)
    return found

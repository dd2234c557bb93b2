"""Equilibria in several processes: distributed training and workers of data loaders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shoal
from equilibrium.foreign_cells import Normalized

SCRIPT = """
import sys
import torch, torch.distributed as dist
from equilibrium.foreign_cells import Normalized
import shoal

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
layer = shoal.Equilibrium(Normalized().double())
model = torch.nn.parallel.DistributedDataParallel(layer)
x = torch.randn(4, 4, dtype=torch.float64)[2 * rank : 2 * rank + 2]
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.zeros_like(x), x).square().sum(1).mean().backward()
    optimizer.step()
if rank == 0:
    torch.save(layer.state_dict(), out)
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_train_as_one_does(tmp_path):
    paths = [str(tmp_path / "store"), str(tmp_path / "weights.pt")]
    source = str(Path(shoal.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, str(Path(__file__).parents[1])]),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), *paths], env=environment)
        for rank in range(2)
    ]
    assert [process.wait(300) for process in processes] == [0, 0]
    torch.manual_seed(0)
    layer = shoal.Equilibrium(Normalized().double())
    x = torch.randn(4, 4, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.zeros_like(x), x).square().sum(1).mean().backward()
        optimizer.step()
    for name, found in torch.load(paths[1], weights_only=True).items():
        torch.testing.assert_close(found, layer.state_dict()[name], rtol=1e-8, atol=1e-10)


class Solved(torch.utils.data.Dataset):
    """Equilibria that the workers of a data loader compute."""

    def __init__(self):
        torch.manual_seed(0)
        self.layer = shoal.Equilibrium(Normalized().double()).requires_grad_(False)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        x = torch.full((1, 4), float(index), dtype=torch.float64)
        x[0, 0] = 1.0
        return self.layer(torch.zeros_like(x), x)[0]


@pytest.mark.thorough
def test_workers_of_a_data_loader():
    data = Solved()
    loader = torch.utils.data.DataLoader(
        data, batch_size=2, num_workers=1, multiprocessing_context="spawn"
    )
    found = torch.cat(list(loader))
    torch.testing.assert_close(found, torch.stack([data[i] for i in range(4)]))

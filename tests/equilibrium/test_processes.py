"""Equilibria in several processes: distributed training and workers of data loaders."""

import pytest
import torch

import shoal
from equilibrium import shared_training
from equilibrium.foreign_cells import Normalized
from ranks import run_ranks


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_train_as_one_does(tmp_path):
    alone = shared_training.weights(0, 1)
    for found, error in run_ranks(shared_training.weights, 2, tmp_path, 2):
        assert not error
        # what solves leave, of which Adam makes weights
        torch.testing.assert_close(found, alone, rtol=1e-8, atol=1e-10)


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

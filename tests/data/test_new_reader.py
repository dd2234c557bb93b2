"""A new reader is one file: nothing else names it. And large sets are not converted whole."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal.data.readers
from data.writers import mnist_folder
from shoal import data
from shoal.data.readers import registry

FILE = '''
"""Tables of numbers between blanks."""

import numpy as np

from shoal.data import Dataset
from shoal.data.readers.registry import reads, reads_files
from shoal.data.readers.arrays import table_dataset


@reads_files(".dat")
def read_blanks(path, label):
    table = np.loadtxt(path)
    labels = None if label is None else table[:, int(label)].astype(int)
    return table_dataset(table, labels, name=path.stem, source=str(path))


@reads("steps")
def read_steps(split, folder):
    return table_dataset(np.arange(12.0).reshape(4, 3), np.arange(4) % 2, name="steps", source="")
'''


@pytest.fixture
def one_more_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file in shoal/data/readers."""
    (tmp_path / "blanks.py").write_text(FILE)
    paths = [*shoal.data.readers.__path__, str(tmp_path)]
    monkeypatch.setattr(shoal.data.readers, "__path__", paths)
    monkeypatch.setattr(registry, "_NAMED", dict(registry._NAMED))
    monkeypatch.setattr(registry, "_FILES", dict(registry._FILES))
    yield
    del sys.modules["shoal.data.readers.blanks"]


@pytest.mark.usefixtures("one_more_file")
def test_library_and_analyses_know_it(tmp_path: Path) -> None:
    assert data.load("steps").classes == ("0", "1")
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "few.dat", rng.normal(size=(6, 3)))
    cpu = torch.device("cpu")
    found = data.load_data(str(tmp_path / "few.dat"), dtype=torch.float64, device=cpu)
    assert found.x.shape == (6, 3)
    assert float(found.x.square().sum(1).mean()) == pytest.approx(1)
    np.savetxt(tmp_path / "few.dat", np.repeat(np.eye(2), 3, axis=0))
    labeled = data.load_data(str(tmp_path / "few.dat"), dtype=torch.float64, device=cpu, label="0")
    assert labeled.y.tolist() == [1, 1, 1, 0, 0, 0]
    with pytest.raises(ValueError, match=r"steps.*or a file that ends in \.csv, .*\.dat"):
        data.load_data("whales", dtype=torch.float64, device=cpu)


@pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")
def test_of_large_sets_only_what_is_taken_becomes_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = mnist_folder(tmp_path, 500)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    converted = []
    before = data.scale_pixels

    def counted(dataset: data.Dataset, **options: torch.dtype) -> data.Dataset:
        converted.append(len(dataset))
        return before(dataset, **options)

    monkeypatch.setattr("shoal.data.loading.scale_pixels", counted)
    cpu = torch.device("cpu")
    found = data.load_data("mnist", n=20, dtype=torch.float64, device=cpu, prepared=False)
    assert converted == [20]
    np.testing.assert_array_equal(found.x.numpy(), images[:20].reshape(20, -1) / 255)

"""Readers on random files: what was written comes back, and no damage is more than an error."""

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data.writers import cifar_records, idx, pixels, write
from shoal import data
from shoal.data.dataset import drawn_order

pytestmark = pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TABLES = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=FINITE
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@in_one_folder
@given(x=TABLES, delimiter=st.sampled_from(",;|\t"), gz=st.booleans(), header=st.booleans())
def test_numbers_of_csv_files_come_back_to_the_last_bit(
    tmp_path: Path, x: np.ndarray, delimiter: str, gz: bool, header: bool
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    if header:
        writer.writerow([f"column{i}" for i in range(x.shape[1] + 1)])
    writer.writerows([*map(repr, row.tolist()), k % 2] for k, row in enumerate(x))
    content = file.getvalue().encode()
    path = tmp_path / ("x.csv.gz" if gz else "x.csv")
    path.write_bytes(gzip.compress(content) if gz else content)
    found = data.read_csv(path, label=-1, header=header, delimiter=delimiter, dtype=torch.float64)
    np.testing.assert_array_equal(found.x.numpy(), x)
    assert [found.classes[k] for k in found.labels] == [str(k % 2) for k in range(len(x))]


@in_one_folder
@given(names=st.lists(NAMES, min_size=1, max_size=6))
def test_names_of_classes_come_back(tmp_path: Path, names: list[str]) -> None:
    np.savez(tmp_path / "x.npz", X=np.zeros((len(names), 1)), y=np.array(names))
    found = data.read_numpy(tmp_path / "x.npz")
    assert [found.classes[k] for k in found.labels] == names
    assert list(found.classes) == sorted(set(names))


@in_one_folder
@given(
    x=hnp.arrays(
        st.sampled_from(["u1", "i2", "u4", "f4", "f8"]),
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_arrays_come_back(tmp_path: Path, x: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", x)
    found = data.read_numpy(tmp_path / "x.npy", dtype=torch.float64).x.numpy()
    expected = x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)
    np.testing.assert_array_equal(found.reshape(x.shape), expected)


@in_one_folder
@given(content=st.binary(max_size=400), ending=st.sampled_from([".npy", ".npz", ".csv", ".csv.gz"]))
def test_random_bytes_are_refused_or_a_table(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    path.write_bytes(content)
    read = data.read_numpy if ending.startswith(".np") else data.read_csv
    told = ""
    try:
        assert torch.isfinite(read(path).x).all()
    except ValueError as error:
        told = str(error)
    assert not told or str(path) in told
    assert "\n" not in told


@in_one_folder
@given(place=st.integers(0, 1599), value=st.integers(0, 255), cut=st.integers(0, 40))
def test_a_changed_byte_or_a_cut_is_refused_or_read_as_images(
    tmp_path: Path, place: int, value: int, cut: int
) -> None:
    content = bytearray(idx(pixels(2, 28, 28)))
    content[place % len(content)] = value
    write(tmp_path / "train-images-idx3-ubyte", bytes(content[: len(content) - cut]))
    write(tmp_path / "train-labels-idx1-ubyte", idx(np.arange(2)))
    intact = place % len(content) >= 16 or bytes(content) == idx(pixels(2, 28, 28))
    if cut or not intact:
        with pytest.raises(ValueError, match="train-images"):
            data.load("mnist", folder=tmp_path)
    else:
        found = data.load("mnist", folder=tmp_path, raw=True).x.numpy()
        np.testing.assert_array_equal(found.ravel(), np.frombuffer(content[16:], np.uint8))


@given(rows=st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_choosing_and_scaling_commute(rows: list[int]) -> None:
    _, images, labels = cifar_records(8)
    raw = data.Dataset(
        torch.from_numpy(images),
        torch.from_numpy(labels).long(),
        classes=tuple("0123456789"),
        image_shape=(3, 32, 32),
    )
    chosen = torch.tensor(rows)
    first = raw.take(chosen).pipe(data.scale_pixels, dtype=torch.float64)
    second = raw.pipe(data.scale_pixels, dtype=torch.float64).take(chosen)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.labels, second.labels)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_the_first_samples_have_the_classes_in_their_shares(counts: list[int], seed: int) -> None:
    classes = torch.cat([torch.full((count,), k) for k, count in enumerate(counts)])
    order = drawn_order(len(classes), classes, seed)
    assert sorted(order.tolist()) == list(range(len(classes)))
    for taken in range(len(classes) + 1):
        found = torch.bincount(classes[order[:taken]], minlength=len(counts))
        for k, count in enumerate(counts):
            # each place is jittered within its share, of this class and of each other one
            assert abs(int(found[k]) - taken * count / len(classes)) <= len(counts)

"""NumPy and CSV files of one's own, sound and damaged."""

import gzip
import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import data

X = np.random.default_rng(0).normal(size=(5, 3))


NAMES = [("X", "y"), ("x", "y"), ("features", "labels"), ("X", "labels")]


@pytest.mark.parametrize("names", NAMES)
def test_npz(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "points.npz"
    labels = np.array([7, -1, 7, 30, 7])
    np.savez_compressed(path, **{names[0]: X, names[1]: labels, "other": np.arange(2)})
    found = data.read_numpy(path, dtype=torch.float64)
    assert (found.x.numpy() == X).all()
    assert found.classes == ("-1", "7", "30")
    assert [int(found.classes[k]) for k in found.y.tolist()] == labels.tolist()
    assert (found.name, found.image_shape, found.source) == ("points", None, str(path))


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    np.save(tmp_path / "y.npy", np.array(["dog", "cat", "dog", "dog", "cat"]))
    found = data.read_numpy(tmp_path / "x.npy", tmp_path / "y.npy", dtype=torch.float64)
    assert (found.x.numpy() == X).all()
    assert found.classes == ("cat", "dog")
    assert found.y.tolist() == [1, 0, 1, 1, 0]
    assert "x.npy" in found.source
    assert "y.npy" in found.source


def test_truth_values_are_two_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "signs.npz", X=X, y=X[:, 0] > 0)
    found = data.read_numpy(tmp_path / "signs.npz", dtype=torch.float64)
    assert found.classes == ("False", "True")
    assert found.y.tolist() == (X[:, 0] > 0).astype(int).tolist()


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 3, 6, 5)])
def test_bytes_and_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)
    np.savez(tmp_path / "images.npz", X=pixels, y=np.arange(4) / 8)
    found = data.read_numpy(tmp_path / "images.npz", dtype=torch.float64)
    assert found.image_shape == (1, 6, 5) if len(shape) == 3 else (3, 6, 5)
    np.testing.assert_allclose(found.x.numpy().reshape(shape), pixels / 255, rtol=1e-15)
    assert found.y.tolist() == [0.0, 0.125, 0.25, 0.375]  # real targets
    assert found.classes == ()


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


Y = np.arange(5)
HOLE = np.where(np.arange(15).reshape(5, 3) == 7, np.nan, X)
NPZ = {
    "empty": (b"", "No data left in file"),
    "no archive": (b"whale" * 9, "intact NumPy arrays of numbers, got a file of another kind"),
    "a pickle": (pickle.dumps({"X": 1}), "intact NumPy arrays"),
    "cut": (npz(X=X, y=Y)[:-30], "intact NumPy arrays"),
    "flipped byte": (npz(X=X, y=Y).replace(X.tobytes(), X.tobytes()[::-1]), "Bad CRC-32"),
    "nothing": (npz(), "an array named X, x or features, got none"),
    "other names": (npz(inputs=X, y=Y), "an array named X, x or features, got inputs, y"),
    "a single array": (npy(X), r"an \.npz archive, got a single array"),
    "objects": (npz(X=X.astype(object), y=Y), "Object arrays cannot be loaded"),
    "objects as labels": (npz(X=X, y=Y.astype(object)), "Object arrays cannot be loaded"),
    "text": (npz(X=X.astype(str), y=Y), "samples that are real numbers, got dtype <U"),
    "complex": (npz(X=X + 1j, y=Y), "samples that are real numbers, got dtype complex128"),
    "a vector": (npz(X=X[:, 0], y=Y), r"samples \(n, d\), .* got shape \(5,\)"),
    "no samples": (npz(X=X[:0], y=Y[:0]), r"samples \(n, d\), .* got shape \(0, 3\)"),
    "NaN": (npz(X=HOLE, y=Y), r"finite samples, got nan at \(2, 1\)"),
    "infinite label": (npz(X=X, y=np.full(5, np.inf)), "finite labels, got inf"),
    "other length": (npz(X=X, y=Y[:4]), r"5 labels, one per sample, got shape \(4,\)"),
    "labels in a column": (npz(X=X, y=Y[:, None]), r"5 labels, one per sample, got shape \(5, 1\)"),
    "bytes as labels": (npz(X=X, y=Y.astype("S")), r"labels: numbers or text, got dtype \|S"),
}


@pytest.mark.parametrize(("content", "message"), NPZ.values(), ids=NPZ.keys())
def test_damaged_npz(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "points.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        data.read_numpy(path)
    assert str(path) in str(error.value)


def test_damaged_npy(tmp_path: Path) -> None:
    labels = tmp_path / "y.npy"
    np.save(labels, Y)
    path = tmp_path / "x.npy"
    for content in (npy(X)[:-1], npy(X)[:20], b"", npy(np.array([{}, 1])), b"\x93NUMPY\x09\x09"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.npy: expected intact NumPy arrays"):
            data.read_numpy(path, labels)


def test_arguments_of_read_numpy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end in \.npz or \.npy, got 'points\.mat'"):
        data.read_numpy("points.mat")
    with pytest.raises(ValueError, match=r"labels must be None for an \.npz file"):
        data.read_numpy("x.npz", "y.npy")
    with pytest.raises(FileNotFoundError):
        data.read_numpy(tmp_path / "x.npz")


def test_labels_are_optional(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", X=X, other=Y)
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    for found in (
        data.read_numpy(tmp_path / "x.npy", dtype=torch.float64),
        data.read_numpy(tmp_path / "x.npz", dtype=torch.float64),
        data.read_csv(tmp_path / "x.csv", dtype=torch.float64),
    ):
        np.testing.assert_allclose(found.x.numpy(), X, rtol=1e-15)
        assert found.y is None
        assert repr(found).endswith("no labels)")
        with pytest.raises(ValueError, match="x must have labels, and has none"):
            found.targets()


TABLE = "a,b,kind\n1,2.5,cat\n-3e1,4,dog\n5,6,cat\n"


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (TABLE, {"label": "kind"}),
        (TABLE, {"label": 2}),
        (TABLE, {"label": -1, "header": True}),
        (TABLE.split("\n", 1)[1], {"label": 2}),
        (TABLE.split("\n", 1)[1], {"label": 2, "header": False}),
        (TABLE.replace(",", ";"), {"label": "kind", "delimiter": ";"}),
        (TABLE.replace("\n", "\r\n"), {"label": "kind"}),
        ("\ufeff" + TABLE.replace(",", " , ") + "\n\n", {"label": "kind"}),
        (TABLE.replace("cat", '"cat"'), {"label": "kind"}),
        ("kind,0,1\ncat,1,2.5\ndog,-30,4\ncat,5,6", {"label": "kind"}),
        ("kind,0,1\ncat,1,2.5\ndog,-30,4\ncat,5,6", {"label": 0, "header": True}),
    ],
)
@pytest.mark.parametrize("gz", [False, True])
def test_csv(tmp_path: Path, content: str, options: dict, gz: bool) -> None:
    path = tmp_path / ("table.csv.gz" if gz else "table.csv")
    path.write_bytes(gzip.compress(content.encode()) if gz else content.encode())
    found = data.read_csv(path, dtype=torch.float64, **options)
    assert found.x.tolist() == [[1, 2.5], [-30, 4], [5, 6]]
    assert found.y.tolist() == [0, 1, 0]
    assert found.classes == ("cat", "dog")


def test_labels_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("1,10\n2,9\n3,-1\n")
    found = data.read_csv(path, label=1)
    assert (found.classes, found.y.tolist()) == (("-1", "9", "10"), [2, 1, 0])
    assert data.read_csv(path, label=1, regression=True).y.tolist() == [10.0, 9.0, -1.0]
    path.write_text('1,"two\nlines"\n2,b\n')
    assert data.read_csv(path, label=1).classes == ("b", "two\nlines")


CSV = {
    "empty": ("", {}, "expected data, got an empty file"),
    "empty lines": ("\n\n", {}, "at least one row, got empty lines alone"),
    "header alone": ("a,b\n", {}, "at least one sample, got a header alone"),
    "ragged": ("1,2\n3,4,5\n", {}, "2 cells in each row, got 3 in line 2"),
    "cut": ("1,2,0\n3,4,0\n5", {}, "3 cells in each row, got 1 in line 3"),
    "one column": ("1\n2\n", {}, "at least one of features, separated by ',', got a single column"),
    "NaN": ("1,0\nnan,1\n", {}, "finite numbers, got 'nan' in line 2, column 0"),
    "infinite": ("1,0\n-inf,1\n", {}, "finite numbers, got '-inf' in line 2, column 0"),
    "overflow": ("1,0\n1e999,1\n", {}, "finite numbers, got '1e999' in line 2, column 0"),
    "text": ("1,2,0\n3,x,1\n", {}, "finite numbers, got 'x' in line 2, column 1"),
    "underscores": ("1,0\n1_0,1\n", {}, "finite numbers, got '1_0'"),
    "missing cell": ("1,2,0\n3,,1\n", {}, "finite numbers, got '' in line 2, column 1"),
    "missing label": ("1,2,a\n3,4,\n", {}, "a label in each row, got '' in line 2"),
    "NaN as label": ("1,2,a\n3,4,NaN\n", {}, "a label in each row, got 'NaN' in line 2"),
    "real label": ("1,2,0.5\n3,4,1\n", {}, "say regression=True .*, got '0.5' in line 1"),
    "text as target": ("1,2,0.5\n3,4,x\n", {"regression": True}, "finite numbers, got 'x'"),
    "unclear header": ("0,1,label\n3,4,1\n", {}, "the first row may be a header"),
    "no such column": ("1,2\n3,4\n", {"label": 2}, "a column 2, got 2 columns"),
    "no such name": ("a,b\n3,4\n", {"label": "c"}, "one column named 'c', got the columns a, b"),
    "name twice": ("a,a\n3,4\n", {"label": "a"}, "one column named 'a', got the columns a, a"),
    "open quote": ('1,2\n3,"4', {}, "CSV, got unexpected end of data in line 2"),
    "not UTF-8": (b"1,\xff\xfe\n", {}, "text in UTF-8"),
}


@pytest.mark.parametrize(("content", "options", "message"), CSV.values(), ids=CSV.keys())
def test_damaged_csv(tmp_path: Path, content: str | bytes, options: dict, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        data.read_csv(path, **{"label": -1, **options})
    assert str(path) in str(error.value)


def test_arguments_of_read_csv(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    with pytest.raises(TypeError, match="label must be the name or the index of a column"):
        data.read_csv(path, label=0.5)
    with pytest.raises(ValueError, match="label must be an index if there is no header"):
        data.read_csv(path, label="kind", header=False)
    with pytest.raises(FileNotFoundError):
        data.read_csv(tmp_path / "other.csv", label=0)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_what_is_finite_in_the_file_only_is_refused(
    tmp_path: Path, dtype: torch.dtype | None
) -> None:
    (tmp_path / "large.csv").write_text("a,b,y\n1,2,0\n3,-1e300,1\n")
    with pytest.raises(ValueError, match=r"finite in float\d\d, got -1e\+300 at \(1, 1\)"):
        data.read_csv(tmp_path / "large.csv", label="y", dtype=dtype)
    np.savez(tmp_path / "large.npz", X=np.eye(2), y=np.array([1.0, 1e200]))
    with pytest.raises(ValueError, match=r"large.npz.*got 1e\+200 at \(1,\)"):
        data.read_numpy(tmp_path / "large.npz", dtype=dtype)
    found = data.read_csv(tmp_path / "large.csv", label="y", dtype=torch.float64)
    assert float(found.x[1, 1]) == -1e300


def claiming(shape: tuple[int, ...]) -> bytes:
    """An ``.npy`` file of 100 bytes whose header claims a shape."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(100)


@pytest.mark.parametrize("shape", [(10**9, 1000), (14, 1), (2**40, 2**40), (-1, 3)])
def test_headers_that_claim_too_much_take_no_memory(tmp_path: Path, shape: tuple[int, ...]) -> None:
    claim = claiming(shape)
    y = io.BytesIO()
    np.save(y, np.arange(3))
    (tmp_path / "x.npy").write_bytes(claim)
    (tmp_path / "y.npy").write_bytes(y.getvalue())
    with zipfile.ZipFile(tmp_path / "both.npz", "w") as archive:
        archive.writestr("X.npy", claim)
        archive.writestr("y.npy", y.getvalue())
    tracemalloc.start()
    for paths in [("x.npy", "y.npy"), ("both.npz",)]:
        with pytest.raises(ValueError, match="intact NumPy arrays"):
            data.read_numpy(*(tmp_path / name for name in paths))
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_any_damage_of_an_archive_is_a_value_error(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez(file, X=X, y=np.arange(5))
    whole, path = file.getvalue(), tmp_path / "points.npz"
    refused = 0
    for place in [*range(200), *range(len(whole) - 200, len(whole))]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            data.read_numpy(path)
        except ValueError as error:
            refused += str(path) in str(error)
    assert refused > 200


def test_the_name_of_gzipped_csv(tmp_path: Path) -> None:
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(b"a,y\n1,0\n2,1\n"))
    assert data.read_csv(tmp_path / "table.csv.gz", label="y").name == "table"

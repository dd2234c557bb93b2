"""CSV and NumPy files, sound and damaged."""

import csv
import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import data

X = np.random.default_rng(0).normal(size=(5, 3))
Y = np.arange(5)
HOLE = np.where(np.arange(15).reshape(5, 3) == 7, np.nan, X)
TABLE = "a,b,kind\n1,2.5,cat\n-3e1,4,dog\n5,6,cat\n"
ROWS = TABLE.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (TABLE, {"label": "kind"}),
        (TABLE, {"label": 2}),
        (TABLE, {"label": -1, "header": True}),
        (ROWS, {"label": 2}),
        (ROWS, {"label": 2, "header": False}),
        (TABLE.replace(",", ";"), {"label": "kind", "delimiter": ";"}),
        (TABLE.replace(",", "\t"), {"label": "kind", "delimiter": "\t"}),
        (TABLE.replace("\n", "\r\n"), {"label": "kind"}),
        ("\ufeff" + TABLE.replace(",", " , ") + "\n\n", {"label": "kind"}),
        (TABLE.replace("cat", '"cat"').replace("kind", '"kind"'), {"label": "kind"}),
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
    assert (found.name, found.source) == ("table", str(path))


@pytest.mark.parametrize("header", [False, True])
def test_numbers_of_csv_files_come_back_to_the_last_bit(tmp_path: Path, header: bool) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(40, 4)) * 10.0 ** generator.integers(-300, 300, size=(40, 4))
    file = io.StringIO()
    csv.writer(file).writerows([["a", "b", "c", "d"]] * header + x.tolist())
    (tmp_path / "x.csv").write_text(file.getvalue())
    found = data.read_csv(tmp_path / "x.csv", dtype=torch.float64)
    np.testing.assert_array_equal(found.x.numpy(), x)
    assert found.y is None
    (tmp_path / "x.csv").write_text("height\n1\n2\n")
    assert data.read_csv(tmp_path / "x.csv").x.tolist() == [[1.0], [2.0]]


def test_labels_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("1,10\n2,9\n3,-1\n")
    found = data.read_csv(path, label=1)
    assert (found.classes, found.y.tolist()) == (("-1", "9", "10"), [2, 1, 0])  # by size
    assert data.read_csv(path, label=1, regression=True).y.tolist() == [10.0, 9.0, -1.0]
    path.write_text("1,0.5\n2,9\n3,-1e2\n")
    found = data.read_csv(path, label=1)
    assert (found.classes, found.y.tolist()) == ((), [0.5, 9.0, -100.0])
    path.write_text('1,"two\nlines, a comma and a ""quote"""\n2,b\n')
    assert data.read_csv(path, label=1).classes == ("b", 'two\nlines, a comma and a "quote"')
    path.write_text("1,a\n2,17\n3,b2\n")
    assert data.read_csv(path, label=1).classes == ("17", "a", "b2")


CSV = {
    "empty": ("", {}, "expected data, got an empty file"),
    "empty lines": ("\n\n", {}, "at least one row, got empty lines alone"),
    "header alone": ("a,b\n", {}, "at least one sample, got a header alone"),
    "ragged": ("1,2\n3,4,5\n", {}, "2 cells in each row, got 3 in line 2"),
    "cut": ("1,2,0\n3,4,0\n5", {}, "3 cells in each row, got 1 in line 3"),
    "one column": ("1\n2\n", {}, "several columns, separated by ',', got a single column"),
    "other delimiter": ("1;a\n2;b\n", {"label": None}, "got '2;b' in line 2, column 0"),
    "NaN": ("1,0\nnan,1\n", {}, "finite numbers, got 'nan' in line 2, column 0"),
    "NaN first": ("nan,nan\n1,1\n", {"label": None}, "got 'nan' in line 1, column 0"),
    "infinite": ("1,0\n-inf,1\n", {}, "finite numbers, got '-inf' in line 2, column 0"),
    "overflow": ("1,0\n1e999,1\n", {}, "finite numbers, got '1e999' in line 2, column 0"),
    "text": ("1,2,0\n3,x,1\n", {}, "finite numbers, got 'x' in line 2, column 1"),
    "text behind labels": ("1,2,0\n3,4,x\n", {"label": 0}, "got 'x' in line 2, column 2"),
    "long text": (f"1,0\n{'x' * 999},1\n", {}, r"got 'xx+\.\.\.x+' in line 2, column 0$"),
    "underscores": ("1,0\n1_0,1\n", {}, "finite numbers, got '1_0'"),
    "missing cell": ("1,2,0\n3,,1\n", {}, "finite numbers, got '' in line 2, column 1"),
    "missing label": ("1,2,a\n3,4,\n", {}, "a label in each row, got '' in line 2, column 2"),
    "NaN as label": ("1,2,a\n3,4,NaN\n", {}, "a label in each row, got 'NaN' in line 2"),
    "text as target": ("1,2,0.5\n3,4,x\n", {}, "numbers as labels, got 'x' in line 2, column 2"),
    "infinite target": ("1,2,0.5\n3,4,inf\n", {}, "numbers as labels, got 'inf' in line 2"),
    "text for regression": ("1,2,1\n3,4,x\n", {"regression": True}, "got 'x' in line 2, column 2"),
    "unclear header": ("0,1,label\n3,4,1\n", {}, "the first row may be a header"),
    "no such column": ("1,2\n3,4\n", {"label": 2}, "a column for label=2, got 2 columns"),
    "no such name": ("a,b\n3,4\n", {"label": "c"}, "label='c', got the columns 'a', 'b'"),
    "name twice": ("a,a\n3,4\n", {"label": "a"}, "one column for label='a', got the columns"),
    "open quote": ('1,2\n3,"4', {}, "CSV, got unexpected end of data in line 2"),
    "not UTF-8": (b"1,\xff\xfe\n", {}, "text in UTF-8"),
}


@pytest.mark.parametrize(("content", "options", "message"), CSV.values(), ids=CSV)
def test_damaged_csv(tmp_path: Path, content: str | bytes, options: dict, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        data.read_csv(path, **{"label": -1, **options})
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label": 0.5}, TypeError, "label must be the name or the index of a column"),
        ({"label": True}, TypeError, "label must be the name or the index of a column"),
        ({"label": "kind", "header": False}, ValueError, "label must be an index if there is no"),
        ({"header": 1}, TypeError, "header must be True or False, got 1"),
        ({"regression": None}, TypeError, "regression must be True or False, got None"),
        ({"delimiter": ", "}, ValueError, "delimiter must be one character, got ', '"),
        ({"dtype": torch.int64}, TypeError, "dtype must be a floating-point"),
    ],
)
def test_arguments_of_read_csv(tmp_path: Path, options: dict, error: type, message: str) -> None:
    (tmp_path / "table.csv").write_text(TABLE)
    with pytest.raises(error, match=message):
        data.read_csv(tmp_path / "table.csv", **{"label": 2, **options})


@pytest.mark.parametrize("names", [("X", "y"), ("x", "y"), ("features", "labels")])
def test_npz(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "points.npz"
    labels = np.array([7, -1, 7, 30, 7])
    np.savez_compressed(path, **{names[0]: X, names[1]: labels, "other": np.array([{}])})
    found = data.read_numpy(path, dtype=torch.float64)
    assert (found.x.numpy() == X).all()
    assert found.classes == ("-1", "7", "30")
    assert [int(found.classes[k]) for k in found.y.tolist()] == labels.tolist()
    assert (found.name, found.source) == ("points", str(path))


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    np.save(tmp_path / "y.npy", np.array(["dog", "cat", "dog", "dog", "cat"]))
    found = data.read_numpy(tmp_path / "x.npy", tmp_path / "y.npy", dtype=torch.float64)
    assert (found.x.numpy() == X).all()
    assert (found.classes, found.y.tolist()) == (("cat", "dog"), [1, 0, 1, 1, 0])
    assert "x.npy" in found.source
    assert "y.npy" in found.source
    np.save(tmp_path / "y.npy", X[:, 0] > 0)
    found = data.read_numpy(tmp_path / "x.npy", tmp_path / "y.npy")
    assert (found.classes, found.y.tolist()) == (("False", "True"), (X[:, 0] > 0).tolist())
    assert data.read_numpy(tmp_path / "x.npy").y is None


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 3, 6, 5)])
def test_bytes_and_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)
    np.savez(tmp_path / "images.npz", X=pixels, y=np.arange(4) / 8)
    found = data.read_numpy(tmp_path / "images.npz", dtype=torch.float64)
    assert found.x.shape == ((4, 1, 6, 5) if len(shape) == 3 else shape)
    np.testing.assert_allclose(found.x.numpy().reshape(shape), pixels / 255, rtol=1e-15)
    assert (found.y.tolist(), found.classes) == ([0.0, 0.125, 0.25, 0.375], ())  # real targets


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(*shape: int) -> bytes:
    """An ``.npy`` file of 100 bytes whose header claims a shape."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(100)


NUMPY = {
    "empty": ("x.npz", b"", "intact NumPy arrays"),
    "no archive": ("x.npz", b"whale" * 9, "intact NumPy arrays"),
    "a pickle": ("x.npz", pickle.dumps({"X": 1}), "intact NumPy arrays"),
    "cut": ("x.npz", npz(X=X, y=Y)[:-30], "intact NumPy arrays"),
    "flipped": ("x.npz", npz(X=X).replace(X.tobytes(), X.tobytes()[::-1]), "Bad CRC-32"),
    "nothing": ("x.npz", npz(), "an array named X, x or features, got none"),
    "other names": ("x.npz", npz(inputs=X, y=Y), "X, x or features, got inputs, y"),
    "objects": ("x.npz", npz(X=X.astype(object), y=Y), "Object arrays cannot be loaded"),
    "object labels": ("x.npz", npz(X=X, y=Y.astype(object)), "Object arrays cannot be loaded"),
    "text": ("x.npz", npz(X=X.astype(str), y=Y), "finite real numbers, got dtype <U"),
    "complex": ("x.npz", npz(X=X + 1j, y=Y), "finite real numbers, got dtype complex128"),
    "a vector": ("x.npz", npz(X=X[:, 0], y=Y), r"samples \(n, d\), .* got shape \(5,\)"),
    "no samples": ("x.npz", npz(X=X[:0], y=Y[:0]), r"samples .* got shape \(0, 3\)"),
    "NaN": ("x.npz", npz(X=HOLE, y=Y), r"finite real numbers, got nan at \(2, 1\)"),
    "infinite label": ("x.npz", npz(X=X, y=np.full(5, np.inf)), r"finite .*, got inf at \(0,\)"),
    "other length": ("x.npz", npz(X=X, y=Y[:4]), r"5 labels, one per sample, got shape \(4,\)"),
    "column": ("x.npz", npz(X=X, y=Y[:, None]), r"5 labels, one per sample, got shape \(5, 1\)"),
    "bytes": ("x.npz", npz(X=X, y=Y.astype("S")), r"numbers or text, got dtype \|S"),
    "claim in an archive": ("x.npy", claiming(10**9, 1000), "intact NumPy arrays"),
    "cut array": ("x.npy", npy(X)[:-1], "intact NumPy arrays"),
    "cut header": ("x.npy", npy(X)[:20], "intact NumPy arrays"),
    "empty array": ("x.npy", b"", "intact NumPy arrays"),
    "pickled array": ("x.npy", npy(np.array([{}, 1])), "Object arrays cannot be loaded"),
    "strange shape": ("x.npy", claiming(-1, 3), "intact NumPy arrays"),
}


@pytest.mark.parametrize(("name", "content", "message"), NUMPY.values(), ids=NUMPY)
def test_damaged_numpy_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        data.read_numpy(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_no_pickle_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    for name in ("x.npz", "x.npy"):
        array = np.array([[Touch(mark)]], dtype=object)
        (tmp_path / name).write_bytes(npz(X=array) if name == "x.npz" else npy(array))
        with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
            data.read_numpy(tmp_path / name)
        (tmp_path / name).write_bytes(pickle.dumps(Touch(mark)))
        with pytest.raises(ValueError, match="intact NumPy arrays"):
            data.read_numpy(tmp_path / name)
    assert not mark.exists()


def test_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond 2 GiB, here 1 KiB, are refused before they are expanded."""
    monkeypatch.setattr("shoal.data.tables._LARGEST", 2**10)
    (tmp_path / "zeros.csv").write_bytes(b"0,0\n" * 257)
    (tmp_path / "zeros.csv.gz").write_bytes(gzip.compress(b"0,0\n" * 257))
    np.savez_compressed(tmp_path / "zeros.npz", X=np.zeros((10, 100)))
    np.save(tmp_path / "zeros.npy", np.zeros((10, 100)))
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match="expected at most 1024 bytes, got"):
            (data.read_csv if ".csv" in path.name else data.read_numpy)(path)
    (tmp_path / "zeros.csv.gz").write_bytes(gzip.compress(b"0,0\n" * 256))
    assert len(data.read_csv(tmp_path / "zeros.csv.gz")) == 256


def test_arguments_of_read_numpy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end in \.npz or \.npy, got 'points\.mat'"):
        data.read_numpy("points.mat")
    with pytest.raises(ValueError, match=r"labels must be None for an \.npz file"):
        data.read_numpy("x.npz", "y.npy")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y[:4])
    with pytest.raises(ValueError, match=r"y\.npy: expected 5 labels, one per sample"):
        data.read_numpy(tmp_path / "x.npy", tmp_path / "y.npy")


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_numbers_must_be_finite_in_the_dtype(tmp_path: Path, dtype: torch.dtype | None) -> None:
    (tmp_path / "large.csv").write_text("a,b,y\n1,2,0\n3,-1e300,1\n")
    with pytest.raises(ValueError, match=r"finite in torch.float\d\d, got -1e\+300 at \(1, 1\)"):
        data.read_csv(tmp_path / "large.csv", label="y", dtype=dtype)
    np.savez(tmp_path / "large.npz", X=np.eye(2), y=np.array([1.0, 1e200]))
    with pytest.raises(ValueError, match=r"large.npz.*got 1e\+200 at \(1,\)"):
        data.read_numpy(tmp_path / "large.npz", dtype=dtype)
    found = data.read_csv(tmp_path / "large.csv", label="y", dtype=torch.float64)
    assert float(found.x[1, 1]) == -1e300


@pytest.mark.parametrize("name", ["none.csv", "none.csv.gz", "none.npy", "none.npz"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        (data.read_csv if ".csv" in name else data.read_numpy)(tmp_path / name)

"""CSV and NumPy files, sound, strange and damaged."""

import csv
import gzip
import io
import pickle
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from shoal import data

X = np.random.default_rng(0).normal(size=(5, 3))
Y = np.arange(5)
HOLE = np.where(np.arange(15).reshape(5, 3) == 7, np.nan, X)
TABLE = "a,b,kind\n1,2.5,cat\n-3e1,4,dog\n5,6,cat\n"
ROWS = TABLE.split("\n", 1)[1]


class Read(NamedTuple):
    """What a file must be read as; all of it in float64."""

    x: list[list[float]] = [[1, 2.5], [-30, 4], [5, 6]]  # noqa: RUF012
    y: list[float] | None = [0, 1, 0]  # noqa: RUF012
    classes: tuple[str, ...] = ("cat", "dog")
    note: str = ""


SAME = Read()
KIND: dict[str, Any] = {"label": "kind"}
SIX = "a,t\n" + "".join(f"{i},{i % 2}.0000\n" for i in range(10))  # whole numbers, five times each
STRANGE: dict[str, tuple[str | bytes, dict[str, Any], Read | str]] = {
    # what is read
    "plain": (TABLE, KIND, SAME),
    "label by index": (TABLE, {"label": 2}, SAME),
    "label from the end": (TABLE, {"label": -1, "header": True}, SAME),
    "no header": (ROWS, {"label": 2, "header": False}, SAME),
    "semicolons": (TABLE.replace(",", ";"), KIND, SAME),
    "semicolons, told": (TABLE.replace(",", ";"), {**KIND, "sep": ";"}, SAME),
    "tabs": (TABLE.replace(",", "\t"), KIND, SAME),
    "bars": (TABLE.replace(",", "|"), KIND, SAME),
    "blanks": (TABLE.replace(",", "   "), KIND, SAME),
    "decimal commas": (
        TABLE.replace(",", ";").replace(".", ","),
        KIND,
        SAME._replace(note="Column 'b' has decimal commas."),
    ),
    "Windows lines": (TABLE.replace("\n", "\r\n"), KIND, SAME),
    "byte order mark and blanks": ("\ufeff" + TABLE.replace(",", " , ") + "\n\n", KIND, SAME),
    "UTF-16": (TABLE.encode("utf-16"), KIND, SAME),
    "quotes": (TABLE.replace("cat", '"cat"').replace("kind", '"kind"'), KIND, SAME),
    "numbers in quotes": (TABLE.replace("6", '"6"'), KIND, SAME),
    "separator in quotes": (
        TABLE.replace("cat", '"c,t"'),
        KIND,
        SAME._replace(classes=("c,t", "dog")),
    ),
    "lines of empty cells": (TABLE + ",,\n,,\n", KIND, SAME),
    "names that are numbers": ("kind,0,1\ncat,1,2.5\ndog,-30,4\ncat,5,6", KIND, SAME),
    "names that are years": (TABLE.replace("a,b", "2019,2020"), {"label": 2, "header": True}, SAME),
    "target that is a year": (
        TABLE.replace("a,b,kind", "2019,2020,2021"),
        {"label": "2021", "header": True},
        SAME,
    ),
    "index as text": (ROWS, {"label": "2", "header": False}, SAME),
    "column without a name": (
        TABLE.replace("\n", ",\n"),
        {**KIND, "drop": ["column 3"]},
        SAME,
    ),
    "index of pandas": (
        ",a,b,kind\n0,1,2.5,cat\n1,-30,4,dog\n2,5,6,cat\n",
        KIND,
        SAME._replace(note="The first column has no name and numbers the rows"),
    ),
    "column left out": (
        TABLE.replace("b,", "b,id,").replace(",cat", ",x7,cat").replace(",dog", ",z,dog"),
        {**KIND, "drop": ["id"]},
        SAME,
    ),
    "rows left out": (
        TABLE + "7,,dog\n?,1,cat\n8,9,NA\n",
        {**KIND, "drop_missing": True},
        SAME._replace(note="3 of 6 rows have missing values and are left out."),
    ),
    "text of two values": (
        "a,s,t\n1,m,0.5\n2,f,1\n3,m,2\n",
        {"label": "t"},
        Read([[1, 1], [2, 0], [3, 1]], [0.5, 1, 2], (), "is text with 2 values"),
    ),
    "text of three values": (
        "s,t\nx,1\ny,2\nz,0.5\n",
        {"label": "t"},
        Read([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [1, 2, 0.5], ()),
    ),
    "truth values": (
        "a,t\n1,True\n2,False\n",
        {"label": "t"},
        Read([[1], [2]], [1, 0], ("False", "True")),
    ),
    "whole numbers are classes": (
        SIX,
        {"label": "t"},
        Read([[i] for i in range(10)], [0, 1] * 5, ("0", "1"), "2 classes"),
    ),
    "whole numbers as numbers": (
        SIX,
        {"label": "t", "task": "regression"},
        Read([[i] for i in range(10)], [0, 1] * 5, ()),
    ),
    "few of a whole number": (
        SIX + "9,2\n",
        {"label": "t"},
        Read(
            [[i] for i in range(10)] + [[9]], [0, 1] * 5 + [2], (), "because 2 occurs only 1 times"
        ),
    ),
    "many whole numbers": (
        "a,t\n" + "".join(f"{i},{i + 20}\n" for i in range(30)),
        {"label": "t"},
        Read([[i] for i in range(30)], list(range(20, 50)), (), "real numbers."),
    ),
    "whole numbers as classes": (
        "1,10\n2,9\n3,-1\n",
        {"label": 1, "header": False, "task": "classification"},
        Read([[1], [2], [3]], [2, 1, 0], ("-1", "9", "10")),
    ),  # by size
    "classes of two kinds": (
        "a,t\n1,a\n2,17\n3,b\n",
        {"label": "t"},
        Read([[1], [2], [3]], [1, 0, 2], ("17", "a", "b")),
    ),
    "constant column": ("a,b\n1,7\n2,7\n", {}, Read([[1, 7], [2, 7]], None, ())),
    "copies": ("a,b\n1,7\n1,7\n", {}, Read([[1, 7], [1, 7]], None, ())),
    "one sample": ("a,b\n1,7\n", {}, Read([[1, 7]], None, ())),
    "one class": ("a,t\n1,x\n2,x\n", {"label": "t"}, Read([[1], [2]], [0, 0], ("x",))),
    "one column": ("height\n1\n2\n", {}, Read([[1], [2]], None, ())),
    # what is refused, with the remedy
    "years": (
        "2019,2020\n1,2\n3,4\n",
        {},
        r"the first row \('2019', '2020'\) may be names or a sample: say header",
    ),
    "label in the first sample": (
        "1,2,7\n3,4,8\n",
        {"label": "2"},
        "say header=True or header=False",
    ),
    "half a header": ("0,1,kind\n3,4,cat\n", {"label": 2}, "say header=True or header=False"),
    "missing, perhaps a header": ("nan,nan\n1,1\n", {}, "say header=True or header=False"),
    "all text": ("a,b\nx,y\nz,w\n", {}, "say header=True or header=False"),
    "empty": ("", {}, "expected data, got an empty file"),
    "empty lines": ("\n\n", {}, "at least one row, got empty lines alone"),
    "header alone": ("a,b\n", {}, "at least one sample, got a header alone"),
    "ragged": ("a,b\n1,2\n3,4,5\n", {}, r"2 cells in each row \(separator ','\), got 3 in line 3"),
    "title": ("Table 1\na,b\n1,2\n", {}, r"1 cell in each row .*, got 2 in line 2: .* or line 1"),
    "cut": ("a,b,c\n1,2,0\n3,4,0\n5", {}, "3 cells in each row .*, got 1 in line 4"),
    "target alone": ("kind\n1\n2\n", KIND, "columns besides the label, separated by ',', got none"),
    "missing": (
        TABLE + "7,,dog\n",
        KIND,
        r"1 of 4 rows .* column 'b' \('' in line 5\).*drop_missing=True",
    ),
    "missing target": (TABLE + "7,8,NaN\n", KIND, r"'kind' \(.*drop_missing=True, or fill"),
    "empty target": ("a,b,kind\n1,2,\n3,4,\n", KIND, "the target column 'kind' is empty"),
    "infinite": (TABLE + "-inf,8,cat\n", KIND, "column 'a' .*drop_missing=True"),
    "overflow": (
        TABLE + "1e999,8,cat\n",
        KIND,
        "column 'a' holds numbers and text such as '1e999'",
    ),
    "nothing but holes": ("a,b\n1,\n,2\n", {"drop_missing": True}, "every row has a missing value"),
    "empty column": (
        "a,b,\n1,2,\n3,4,\n",
        {},
        "column 'column 2' is empty; leave it out with drop",
    ),
    "a word among numbers": (
        TABLE + "x,8,cat\n",
        KIND,
        "column 'a' holds numbers and text such as 'x' in line 5.*drop='a'",
    ),
    "underscores": (TABLE + "1_0,8,cat\n", KIND, "numbers and text such as '1_0'"),
    "dates": (
        "day,t\n2020-01-02,1.5\n2020-01-03,2\n",
        {"label": "t"},
        "column 'day' holds dates or times, such as '2020-01-02' in line 2.*drop='day'",
    ),
    "times": ("at,t\n12:30,1.5\n7:00,2\n", {"label": "t"}, "column 'at' holds dates or times"),
    "free text": (
        "name,t\n" + "".join(f"n{i},{i / 2}\n" for i in range(30)),
        {"label": "t"},
        "column 'name' holds 30 different texts, such as 'n0' in line 2.*drop='name'",
    ),
    "names as target": (
        "t,name\n" + "".join(f"{i / 2},n{i}\n" for i in range(30)),
        {"label": "name"},
        "expected classes in 'name', got 30 different values in 30 rows",
    ),
    "a word among targets": (
        "a,t\n1,0.5\n2,x\n",
        {"label": "t"},
        "numbers in the target column 't', got 'x' in line 3",
    ),
    "text for regression": (
        TABLE,
        {**KIND, "task": "regression"},
        "numbers in the target column 'kind'",
    ),
    "no such column": (TABLE, {"label": 7}, "a column with index 7, got 3 columns"),
    "no such name": (
        TABLE,
        {"label": "c"},
        "one column named 'c', got the columns 'a', 'b', 'kind'",
    ),
    "name twice": ("a,a\n3,4\n", {"label": "a"}, "one column named 'a'"),
    "name without a header": (
        ROWS,
        {"label": "kind", "header": False},
        "without a header columns have",
    ),
    "nothing to drop": (TABLE, {**KIND, "drop": ["z"]}, "one column named 'z'"),
    "open quote": ('a,b\n3,"4', {}, "CSV, got unexpected end of data in line 2"),
    "UTF-16 without a mark": (
        TABLE.encode("utf-16-le"),
        KIND,
        "text in UTF-8, got zero bytes; save it as 'CSV UTF-8'",
    ),
    "Latin 1": ("Größe,b\n1,2\n".encode("latin-1"), {}, "text in UTF-8, .*save it as 'CSV UTF-8'"),
}


@pytest.mark.parametrize(("content", "options", "wanted"), STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("gz", [False, True])
def test_tables_are_right_or_refused_with_a_remedy(
    tmp_path: Path, content: str | bytes, options: dict, wanted: Read | str, gz: bool
) -> None:
    path = tmp_path / ("table.csv.gz" if gz else "table.csv")
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if gz and raw else raw)
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted) as error:
            data.read_csv(path, **options)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
        return
    found = data.read_csv(path, dtype=torch.float64, **options)
    assert found.x.tolist() == wanted.x
    assert (None if found.y is None else found.y.tolist()) == wanted.y
    assert found.classes == wanted.classes
    assert wanted.note in " ".join(found.notes)
    assert (found.name, found.source) == ("table", str(path))


@pytest.mark.parametrize("header", [False, True])
def test_numbers_of_csv_files_come_back_to_the_last_bit(tmp_path: Path, header: bool) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(40, 4)) * 10.0 ** generator.integers(-300, 300, size=(40, 4))
    file = io.StringIO()
    csv.writer(file).writerows([["a", "b", "c", "d"]] * header + x.tolist())
    (tmp_path / "x.csv").write_text(file.getvalue())
    found = data.read_csv(tmp_path / "x.csv", header=header, dtype=torch.float64)
    np.testing.assert_array_equal(found.x.numpy(), x)
    assert found.columns == (("a", "b", "c", "d") if header else ("0", "1", "2", "3"))


@pytest.mark.thorough
def test_a_million_rows_are_read_in_seconds(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(1_000_000, 3))
    np.savetxt(tmp_path / "x.csv", x, delimiter=";", header="a;b;c", comments="", fmt="%.6f")
    begin = time.process_time()
    found = data.read_csv(tmp_path / "x.csv", label="c", dtype=torch.float64)
    assert time.process_time() - begin < 30
    np.testing.assert_allclose(found.x.numpy(), x[:, :2], atol=1e-6)
    assert found.columns == ("a", "b")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label": 0.5}, TypeError, "label must be the name or the index of a column"),
        ({"label": True}, TypeError, "label must be the name or the index of a column"),
        ({"header": 1}, TypeError, "header must be True or False, got 1"),
        ({"drop_missing": None}, TypeError, "drop_missing must be True or False, got None"),
        ({"sep": ", "}, ValueError, "sep must be one character, got ', '"),
        ({"task": "clustering"}, ValueError, "task must be one of"),
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
    labels = np.repeat([7, -1, 30], 5)[::-1]
    np.savez_compressed(
        path, **{names[0]: np.tile(X, (3, 1)), names[1]: labels, "other": np.array([{}])}
    )
    found = data.read_numpy(path, dtype=torch.float64)
    assert (found.x.numpy() == np.tile(X, (3, 1))).all()
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
    monkeypatch.setattr("shoal.data.arrays._LARGEST", 2**10)
    (tmp_path / "zeros.csv").write_bytes(b"0,0\n" * 257)
    (tmp_path / "zeros.csv.gz").write_bytes(gzip.compress(b"0,0\n" * 257))
    np.savez_compressed(tmp_path / "zeros.npz", X=np.zeros((10, 100)))
    np.save(tmp_path / "zeros.npy", np.zeros((10, 100)))
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match="expected at most 1024 bytes, got"):
            (data.read_csv if ".csv" in path.name else data.read_numpy)(path)
    (tmp_path / "zeros.csv.gz").write_bytes(gzip.compress(b"0,0\n" * 256))
    assert len(data.read_csv(tmp_path / "zeros.csv.gz", header=False)) == 256


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

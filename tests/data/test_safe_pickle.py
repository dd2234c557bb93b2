"""Nothing in a pickle is ever run."""

import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from data.writers import array, cifar_pickle, dictionary, pixels, text, write
from shoal import data
from shoal.data.safe_pickle import read_plain_pickle


class Creates:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path, how: str) -> None:
        self.path, self.how = path, how

    def __reduce__(self) -> tuple:
        if self.how == "open":
            return open, (str(self.path), "w")
        if self.how == "exec":
            return exec, (f"open({str(self.path)!r}, 'w').close()",)
        if self.how == "numpy":
            return np.savetxt, (str(self.path), [1])
        return os.system, (f"{sys.executable} -c \"open({str(self.path)!r}, 'w')\"",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("how", ["open", "exec", "system", "numpy"])
def test_a_malicious_pickle_is_not_executed(tmp_path: Path, how: str, protocol: int) -> None:
    victim = tmp_path / "created"
    content = pickle.dumps({"data": Creates(victim, how), "labels": [1]}, protocol=protocol)
    write(tmp_path / "data_batch_1", content)
    with (
        pytest.warns(data.UnofficialDataWarning),
        pytest.raises(ValueError, match=r"data_batch_1: expected .* got the name "),
    ):
        data.load("cifar-10", folder=tmp_path)
    assert not victim.exists()


@pytest.mark.parametrize("how", ["open", "exec", "system", "numpy"])
def test_that_pickle_would_create_the_file(tmp_path: Path, how: str) -> None:
    victim, source = tmp_path / "created", tmp_path / "source"
    source.write_bytes(pickle.dumps(Creates(victim, how)))
    code = f"import pickle; pickle.load(open({str(source)!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert victim.exists()


@pytest.mark.parametrize(
    ("instructions", "what"),
    [
        (b"\x82\x01", "EXT1"),
        (b"(cos\nsystem\nU\x04echoo", "OBJ"),
        (b"(U\x04echoios\nsystem\n", "INST"),
        (b"cnumpy\nndarray\n)\x81", "NEWOBJ"),
        (b"Pwhale\n", "PERSID"),
        (b"K\x01Q", "BINPERSID"),
        (b"G\x3f\xf0\0\0\0\0\0\0", "BINFLOAT"),
        (b"\x8f", "EMPTY_SET"),
        (b"K\x012", "DUP"),
        (b"K\x01r\xff\xff\xff\x7f", "the memory place 2147483647"),
        (b"cos\nsystem\n", "the name os.system"),
        (b"cbuiltins\neval\n", "the name builtins.eval"),
        (b"cnumpy\nload\n", "the name numpy.load"),
        (b"cnumpy\nndarray.tofile\n", "the name numpy.ndarray.tofile"),
        (b"c_codecs\nencode\n", "the name _codecs.encode"),
        (b"cnumpy\nndarray\n}b", "state for a function"),
        (b"cnumpy\nndarray\nN}\x86b", "state for a function"),
    ],
)
def test_other_instructions_and_names_are_refused(instructions: bytes, what: str) -> None:
    content = b"\x80\x02}(" + text(b"data") + instructions + b"u."
    with pytest.raises(ValueError, match="expected a pickled dictionary") as error:
        read_plain_pickle(Path("file"), content)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"cnumpy\ndtype\n", "something else"),
        (b"cnumpy\ndtype\n(U\x02u1tR", "something else"),
        (array(pixels(2, 3), code=b"f8"), "type b'f8'"),
        (array(pixels(2, 3), shape=()), r"the shape \(\)"),
        (array(pixels(2, 3)).replace(b"tb\x89U", b"tb\x88U"), "another order"),
        (array(pixels(2, 3)).replace(b"K\x01(K\x02K\x03t", b"K\x01K\x02"), "the shape 2"),
        (b"cnumpy.core.multiarray\n_reconstruct\n)R", "something else"),
        (b"cnumpy.core.multiarray\n_reconstruct\n)R}b", "something else"),
    ],
)
def test_odd_arrays_are_refused(value: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plain_pickle(Path("file"), dictionary({b"data": value}))


def test_plain_values_and_arrays_agree_with_pickle() -> None:
    content = cifar_pickle(pixels(3, 3072), [7, 8, 9])
    found = read_plain_pickle(Path("file"), content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy has renamed what the official files name
        expected = pickle.loads(content, encoding="bytes")
    assert list(found) == [key.decode() for key in expected]
    assert (found["data"] == expected[b"data"]).all()
    assert found["labels"] == expected[b"labels"] == [7, 8, 9]
    assert found["filenames"] == expected[b"filenames"]


def doubled(steps: int) -> bytes:
    """A tuple of a tuple twice, again and again; they take a few bytes each."""
    return b"K\x01" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(steps))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}(" + doubled(45) + b"K\x01u.",  # as a key, which is hashed
        dictionary({b"data": array(pixels(2, 3072)), b"labels": b"](" + doubled(45) + b"e"}),
        dictionary({b"labels": b"]q\0(h\0e"}),  # in itself
        b"\x80\x04}(" + b"K\x01" + b"\x94h\x00\x86" + b"\x94h\x01\x86" + b"K\x01u.",
        b"\x80\x02}(" + b"K\x01" + b"\x85" * 500_000 + b"K\x01u.",
        b"\x80\x02}(" + b"K\x01" * 10**6 + b"u.",
    ],
)
def test_small_pickles_cannot_expand_without_end(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"container in two places|more instructions"):
        read_plain_pickle(Path("file"), content)


def test_text_may_be_in_two_places() -> None:
    name, images = "the same text", pixels(2, 6)
    value = {"a": name, "b": [name, name], "data": images, "more": images + 1, name: 1}
    for protocol in (2, 3, 4):
        content = pickle.dumps(value, protocol=protocol)
        if protocol == 2:  # which has arrays in another encoding
            content = pickle.dumps({"a": name, "b": [name, name]}, protocol=protocol)
        found = read_plain_pickle(Path("file"), content)
        assert found["b"] == [name, name]


@pytest.mark.parametrize("protocol", [3, 4])
def test_files_that_python_3_has_written(protocol: int) -> None:
    images = pixels(2, 3072)
    content = pickle.dumps({"data": images, "labels": [1, 2]}, protocol=protocol)
    found = read_plain_pickle(Path("file"), content)
    assert (found["data"] == images).all()
    assert found["labels"] == [1, 2]

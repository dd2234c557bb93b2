"""Tables as they come: files of all kinds, columns in different units, rows sorted by class."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets

import shoal
from shoal.app.inputs import PreparedData, load_inputs
from shoal.app.report import find
from shoal.app.sections import Subject
from shoal.app.theory_sections import EQUIVALENTS, KERNELS, SPECTRUM

RELU = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8)  # whose kernels need no set-up
TANH = shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8)


def raw(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A real table with all classes in their order, as they often are."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.argsort(y, kind="stable")
    return x[order], y[order]


def table(name: str, **options: bool | int | None) -> PreparedData:
    x, y = raw(name)
    np.savez(f"{name}.npz", X=x, y=y)
    return load_inputs(f"{name}.npz", **options)


def test_files_of_all_kinds_are_the_same_data() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3)).round(6)
    np.save("x.npy", x)
    np.savez("x.npz", X=x)
    rows = [",".join(map(str, row)) for row in x.tolist()]
    text = "\n".join(["a,b,c", *rows])
    named = "\n".join(["a,b,c,kind", *(f"{row},k{i % 2}" for i, row in enumerate(rows))])
    real = "\n".join(["a,b,c,t", *(f"{row},{i / 2}" for i, row in enumerate(rows))])
    Path("x.csv").write_text(text)
    Path("x.csv.gz").write_bytes(gzip.compress(text.encode()))
    Path("named.csv").write_text(named)
    Path("real.csv").write_text(real)
    Path("bare.csv").write_text("\n".join(rows))
    sources = [("x.npy", None), ("x.npz", None), ("x.csv", None), ("x.csv.gz", None)]
    sources += [("bare.csv", None), *(("named.csv", column) for column in ("kind", "3", "-1"))]
    sources += [("real.csv", "t")]
    wanted = x - x.mean(0)
    wanted /= np.sqrt((wanted**2).sum(1).mean())
    for source, label in sources:
        reading = {"header": False} if source == "bare.csv" else {}
        found = load_inputs(source, label=label, reading=reading, standardize=False)
        assert found.name == source
        assert found.x.numpy() == pytest.approx(wanted, rel=1e-10)
    assert load_inputs("named.csv", label="kind").classes == ("k0", "k1")
    assert load_inputs("real.csv", label="t").y.tolist() == (np.arange(12) / 2).tolist()


@pytest.mark.parametrize("size", [2.0**600, 2.0**-600])
def test_the_scale_of_the_data_does_not_matter(size: float) -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    np.save("x.npy", x)
    np.save("other.npy", size * x)
    first, other = (load_inputs(name).x.numpy() for name in ("x.npy", "other.npy"))
    assert other == pytest.approx(first, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "different"),
    [("wine", True), ("breast_cancer", True), ("iris", False), ("digits", False)],
)
def test_columns_in_different_units_are_standardized(name: str, different: bool) -> None:
    data = table(name)
    assert data.standardized is different
    assert any("standardized" in note for note in data.notes) is different
    x = data.x.numpy()
    assert np.square(x).sum(1).mean() == pytest.approx(1)
    if different:
        assert x.std(0) == pytest.approx(x.shape[1] ** -0.5)
    for wanted in (True, False):
        assert table(name, standardize=wanted).standardized is wanted


def test_columns_that_are_kept_have_their_shares() -> None:
    kept, x = table("wine", standardize=False), raw("wine")[0]
    shares = kept.x.var(0) / kept.x.var(0).sum()
    assert shares.numpy() == pytest.approx(x.var(0) / x.var(0).sum())
    assert "12 of 13 columns have a range below a tenth of the largest" in kept.notes[-1]


def test_named_images_have_one_scale() -> None:
    data = load_inputs("digits", n=50)
    assert not data.standardized
    assert data.notes == ("The first 50 of 1797 samples.",)
    assert data.drawn(8).tolist() == list(range(8))


def test_extreme_and_constant_columns_are_standardized() -> None:
    plain = np.random.default_rng(0).normal(size=(50, 4))
    constant = np.full((50, 1), 0.1)  # whose mean is not it but for rounding
    np.save("x.npy", np.hstack([plain * [1e300, 1e-300, 1.0, 1e8], constant]))
    found = load_inputs("x.npy").x.numpy()
    expected = (plain - plain.mean(0)) / plain.std(0) / 2
    assert found[:, :4] == pytest.approx(expected, rel=1e-10)
    assert (found[:, 4] == 0).all()


def test_however_many_are_drawn_classes_have_their_shares() -> None:
    sizes = np.array([59, 71, 48])
    labels = torch.as_tensor(np.repeat([0, 1, 2], sizes))
    x = torch.randn(178, 2)
    for seed in range(5):
        order = PreparedData(x, labels, classes=("a", "b", "c"), seed=seed).drawn()
        assert sorted(order.tolist()) == list(range(178))
        for count in (3, 8, 40, 100, 177):
            drawn = np.bincount(labels[order[:count]], minlength=3)
            assert np.abs(drawn - count * sizes / 178).max() < 2
    assert sorted(PreparedData(x, seed=3).drawn().tolist()) == list(range(178))


def test_few_samples_of_a_sorted_file_are_of_all_classes() -> None:
    x, y = raw("wine")
    for seed in (None, 1):
        data = table("wine", n=8, seed=seed)
        assert set(data.y.tolist()) == {0, 1, 2}
        told = f"8 of 178 samples, drawn with seed {seed or 0}, of each class its share."
        assert data.notes[1] == told
        assert data.y.tolist() == y[list(data.rows)].tolist()
    everything = table("wine")
    assert everything.rows is None
    assert everything.y.tolist() == y.tolist()  # in the order of the file
    some = table("wine", prepared=False, n=20)
    assert some.x.numpy() == pytest.approx(x[list(some.rows)])


def test_kernels_of_raw_tables_are_remarked() -> None:
    def notes(data: PreparedData) -> tuple[str, ...]:
        return find(KERNELS, Subject(data, RELU)).notes

    told = notes(table("wine", standardize=False))
    assert told[0].startswith("The effective rank is 1.96 (CK), of at most 178")
    assert notes(table("wine")) == ()
    (singular,) = notes(PreparedData(torch.eye(5).double()[[0, 1, 2, 2]]))
    assert singular.startswith("Singular to rounding in float64: CK, NTK.")


@pytest.mark.thorough
def test_what_the_data_contradict_is_told() -> None:
    for section, data, words in (
        (EQUIVALENTS, table("wine", standardize=False), "The squared norms of x vary by 131%"),
        (SPECTRUM, table("wine"), "which holds for 31% (CK), 33% (NTK)"),
    ):
        found = find(section, Subject(data, TANH))
        assert found.holds is False
        assert words in found.check


def test_labels_of_one_class_are_refused(tmp_path) -> None:
    (tmp_path / "one.csv").write_text("a,b,kind\n1,2,x\n2,3,x\n3,5,x\n")
    with pytest.raises(ValueError, match=r"labels of one\.csv must have two classes or more"):
        load_inputs(str(tmp_path / "one.csv"), label="kind")

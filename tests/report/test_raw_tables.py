"""Tables as they come: columns in different units, rows sorted by class, and what they refute."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run
from sklearn import datasets

import shoal
from shoal.data import Dataset, load_data
from shoal.data.dataset import drawn_order
from shoal.data.transforms.tables import scales, standardized
from shoal.report import Findings, Section, Subject
from shoal.report.accuracy import ACCURACY
from shoal.report.accuracy import _contradicted as learned_nothing
from shoal.report.certificate import CERTIFICATE, _contradicted
from shoal.report.designs import DESIGN
from shoal.report.equivalents import EQUIVALENTS
from shoal.report.kernels import KERNELS
from shoal.report.spectra import SPECTRUM

TANH = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)
RELU = shoal.DEQ(shoal.ReLU(), 0.2, 0.8)  # whose kernels need no set-up
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real tables as files, with all classes in their order, as they often are."""
    place = tmp_path_factory.mktemp("tables")
    for name in ("wine", "breast_cancer", "iris", "digits"):
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        order = np.argsort(y, kind="stable")
        np.savez(place / f"{name}.npz", X=x[order], y=y[order])
    return place


def table(folder: Path, name: str, **options: bool | int | None) -> Dataset:
    return load_data(str(folder / f"{name}.npz"), dtype=torch.float64, device=CPU, **options)


def find(section: Section, data: Dataset, architecture: shoal.Architecture = RELU) -> Findings:
    return section.find(Subject(architecture, data))


@pytest.mark.parametrize(
    ("name", "different"),
    [("wine", True), ("breast_cancer", True), ("iris", False), ("digits", False)],
)
def test_columns_in_different_units_are_standardized(
    folder: Path, name: str, different: bool
) -> None:
    data = table(folder, name)
    assert data.standardized is different
    assert any("standardized" in note for note in data.notes) is different
    x = data.x.numpy()
    assert np.square(x).sum(1).mean() == pytest.approx(1)
    if different:
        assert x.std(0) == pytest.approx(x.shape[1] ** -0.5)
    for wanted in (True, False):
        assert table(folder, name, standardize=wanted).standardized is wanted
    raw = datasets.load_wine().data
    kept = table(folder, "wine", standardize=False)
    shares = kept.x.var(0) / kept.x.var(0).sum()
    assert shares.numpy() == pytest.approx(raw.var(0) / raw.var(0).sum())
    assert "12 of 13 columns have a range below a tenth of the largest" in kept.notes[0]


def test_named_images_have_one_scale() -> None:
    data = load_data("digits", n=50, dtype=torch.float64, device=CPU)
    assert not data.standardized
    assert data.notes == ("The first 50 of 1797 samples.",)
    assert data.drawn(8).tolist() == list(range(8))


def test_extreme_columns_are_standardized() -> None:
    generator = np.random.default_rng(0)
    plain = generator.normal(size=(50, 4))
    sizes = np.array([1e300, 1e-300, 1.0, 1e8])
    x = torch.as_tensor(plain * sizes)
    constant = torch.full((50, 1), 0.1).double()  # whose mean is not it but for rounding
    assert scales(x).small == 3
    found = standardized(torch.cat([x, constant], 1)).numpy()
    expected = (plain - plain.mean(0)) / plain.std(0)
    assert found[:, :4] == pytest.approx(expected, rel=1e-10)
    assert (found[:, 4] == 0).all()
    assert scales(constant) == (0, 0, 1)


def test_however_many_are_drawn_classes_have_their_shares() -> None:
    sizes = np.array([59, 71, 48])
    labels = torch.as_tensor(np.repeat([0, 1, 2], sizes))
    for seed in range(5):
        order = drawn_order(178, labels, seed)
        assert sorted(order.tolist()) == list(range(178))
        for count in (3, 8, 40, 100, 177):
            drawn = np.bincount(labels[order[:count]], minlength=3)
            assert np.abs(drawn - count * sizes / 178).max() < 2
    assert (drawn_order(178, labels, 0) == drawn_order(178, labels, 0)).all()
    assert (drawn_order(178, labels, 0) != drawn_order(178, labels, 1)).any()
    assert drawn_order(4, labels[:4], None).tolist() == [0, 1, 2, 3]
    assert sorted(drawn_order(9, None, 3).tolist()) == list(range(9))


def test_few_samples_of_a_sorted_file_are_of_all_classes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.report.certificate._WIDTH", 100)
    x, y = np.load(folder / "wine.npz")["X"], np.load(folder / "wine.npz")["y"]
    for seed in (None, 1):
        data = table(folder, "wine", n=8, seed=seed)
        assert set(data.y.tolist()) == {0, 1, 2}
        assert (
            data.notes[0]
            == f"8 of 178 samples, drawn with seed {seed or 0}, of each class its share."
        )
        assert data.rows is not None
        assert data.y.tolist() == y[list(data.rows)].tolist()
    everything = table(folder, "wine")
    assert everything.rows is None
    assert everything.y.tolist() == y.tolist()  # in the order of the file
    assert set(everything.y[everything.drawn(8)].tolist()) == {0, 1, 2}
    found = find(CERTIFICATE, everything)
    assert "8 samples, seed 0, 3 classes" in next(
        r.meaning for r in found.rows if r.quantity == "targets"
    )
    raw = load_data(str(folder / "wine.npz"), dtype=torch.float64, device=CPU, prepared=False, n=20)
    assert raw.x.numpy() == pytest.approx(x[list(raw.rows)])


def test_samples_of_one_class_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.report.certificate._WIDTH", 100)
    data = Dataset(torch.eye(9).double(), torch.zeros(9).long(), classes=("a", "b"))
    assert "All 8 samples are of one class." in find(CERTIFICATE, data).warnings


def test_kernels_of_raw_tables_are_doubted(folder: Path) -> None:
    raw = find(KERNELS, table(folder, "wine", standardize=False)).warnings
    assert raw[0].startswith("The effective rank is 1.96 (CK), of at most 178")
    assert find(KERNELS, table(folder, "wine")).warnings == ()
    close = torch.eye(6).double()
    close[0, 1] = 1 - 2e-6
    close[1, 0] = 1
    (ill,) = find(KERNELS, Dataset(close)).warnings
    assert re.match(r"The condition is [1-9]\.\de\+1[123] \(CK\): ", ill)
    (singular,) = find(KERNELS, Dataset(torch.eye(5).double()[[0, 1, 2, 2]])).warnings
    assert singular.startswith("Singular to rounding in float64: CK, NTK.")


@pytest.mark.thorough
def test_equivalents_that_are_far_from_the_kernels_are_doubted(folder: Path) -> None:
    far, spread = find(EQUIVALENTS, table(folder, "wine", standardize=False)).warnings
    assert far.startswith("The equivalent is ")
    assert spread.startswith("The squared norms of x vary by 131%")
    x = torch.randn(60, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert find(EQUIVALENTS, Dataset(x / 200**0.5)).warnings == ()


@pytest.mark.thorough
def test_a_spike_that_is_a_hill_is_doubted(folder: Path) -> None:
    found = find(SPECTRUM, table(folder, "wine"), TANH)
    ntk = found.numbers["ntk"]
    assert ntk["atom_mass"] > 0.9  # one spike is predicted
    low, high = ntk["middle"]
    assert high / low > 20  # where the data have a broad hill
    assert ntk["as_predicted"] < 0.5
    (warning,) = found.warnings
    assert warning.startswith("Of the eigenvalues 31% (CK), 33% (NTK) are within a factor of 2")
    assert "it has 93% of them at 0.12, and the middle 80% are from 0.009 to 0.4" in warning


def test_gaussian_data_do_not_contradict_their_spectrum() -> None:
    x = torch.randn(900, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(0)
    linear = shoal.FullyConnected([shoal.Identity()])
    found = find(SPECTRUM, Dataset(x / x.square().sum(1).mean().sqrt()), linear)
    assert found.numbers["ck"]["as_predicted"] == pytest.approx(1)  # zeros, but for rounding, too
    assert found.warnings == ()


@pytest.mark.slow
def test_designs_that_have_another_kernel_on_the_data_have_no_tick(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.report.designs._KINDS", (("ntk", "moments"), ("ck", "sphere")))
    found = find(DESIGN, table(folder, "breast_cancer", standardize=False), TANH)
    marks = {row.quantity: row.holds for row in found.rows if row.holds is not None}
    far = {name: one["gap"] > 0.05 for name, one in found.numbers.items()}
    assert far["ntk_moments"]
    assert marks["NTK, moments"] is False
    assert marks["CK, sphere"] is True
    assert "(NTK, moments)" in found.warnings[0]


@pytest.mark.thorough
def test_what_learns_nothing_is_doubted() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, dtype=torch.float64, generator=generator)
    y = (torch.rand(40, generator=generator) < 0.3).long()  # chance alone
    found = find(ACCURACY, Dataset(x, y, classes=("a", "b")))
    assert found.numbers["constant"] == pytest.approx(1 - y[3::4].double().mean())
    right = torch.tensor([[0.7, 0.7], [0.8, 0.8]])
    scores = {"deq": right, "naive": right}
    assert list(learned_nothing(0.7, scores, {"deq": 0.8, "naive": 0.75})) == []
    ((name, none),) = learned_nothing(0.72, scores, {"deq": 0.72, "naive": 0.8})
    assert (
        none
        == "DEQ: infinitely wide, it scores 72.0%; the same answer for all samples scores 72.0%."
    )
    assert name == "deq"
    ((_, unlike),) = learned_nothing(0.7, scores, {"deq": 0.95, "naive": 0.8})
    assert unlike == "DEQ: 80.0% at width 512 are not 95.0%."


def test_a_loss_above_its_bound_is_told() -> None:
    bound = torch.tensor([1.0, 0.5, 0.25])
    kept = {"measured": bound / 2, "bound": bound, "predicted": bound / 2}
    assert list(_contradicted(kept)) == []
    above, unlike = _contradicted(kept | {"measured": torch.tensor([0.5, 0.6, float("nan")])})
    assert above.startswith("The loss after 1 steps is 0.6, above the bound")
    assert "was predicted" in unlike


def test_warnings_are_in_the_text_the_numbers_and_the_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["analyze", str(folder / "wine.npz"), "--no-standardize", "--activation", "relu"]
    command += ["--only", "kernels"]
    shown = run(*command, "--output", "o").stdout
    document = json.loads(Path("o/analysis.json").read_text())
    page = Path("o/report.html").read_text()
    (warning,) = document["warnings"]["kernels"]
    assert warning.startswith("The effective rank is")
    assert f"! Kernels at infinite width: {warning}" in shown
    assert page.count(warning) == 2  # above all, and in the section
    (note,) = document["data"]["notes"]
    assert note.startswith("12 of 13 columns")
    assert note in shown.replace("\n", " ").replace("  ", " ")
    assert note in page
    again = json.loads(run(*command[:2], *command[3:], "--json", "-n", "50", "--seed", "3").stdout)
    assert again["warnings"] == {}
    assert again["data"]["standardized"]
    assert (again["data"]["samples"], again["data"]["seed"]) == (50, 3)


def test_certificates_say_which_rows_they_are_about(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["certify", str(folder / "iris.npz"), "-n", "6", "--width", "60", "--json"]
    found = json.loads(run(*command, "--standardize", code=3).stdout)["data"]
    y = np.load(folder / "iris.npz")["y"]
    assert np.bincount(y[found["rows"]]).tolist() == [2, 2, 2]
    assert found["standardized"]
    assert not json.loads(run(*command, code=3).stdout)["data"]["standardized"]
    assert "with --raw" in run(*command, "--raw", "--standardize", code=2).stderr

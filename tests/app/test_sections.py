"""The sections of an analysis, against scikit-learn, closed forms and brute force."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, confusion_matrix, r2_score

import shoal
from shoal.app.answer_sections import COLUMNS, COMPARISON, ERRORS, MORE_DATA, verdict
from shoal.app.comparison import CONSTANT, LAYER, LINEAR, LOOP, RBF, Score, compare
from shoal.app.inputs import PreparedData
from shoal.app.report import SECTIONS, find
from shoal.app.sections import Subject
from shoal.app.theory_sections import EQUIVALENTS, SPECTRUM

RELU = shoal.DEQ("relu", 0.2, 0.8)
LINEAR_NET = shoal.DEQ("identity", 0.0, 1.0)  # whose CK is the Gram matrix


def points(n: int = 120, p: int = 4, seed: int = 0) -> torch.Tensor:
    x = torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = x - x.mean(0)
    return x / x.square().sum(1).mean().sqrt()


def table(x: torch.Tensor, y: torch.Tensor, **options: Any) -> PreparedData:
    names = tuple("abcdefgh"[: x.shape[1]])
    return PreparedData(x, y, name="points", columns=names, **options)


def noisy(x: torch.Tensor, size: float = 0.5) -> torch.Tensor:
    noise = torch.randn(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    return 100 + 5 * x[:, 0] + 5 * size * noise / x.shape[1] ** 0.5


def test_predictions_are_those_of_regressions_without_the_fold() -> None:
    x = points()
    y = noisy(x)
    contest = compare(table(x, y), RELU)
    for fold in range(5):
        test = (contest.folds == fold).numpy()
        kernels = {
            LOOP: shoal.kernel(RELU, x).ntk.numpy(),
            LAYER: shoal.kernel(shoal.FullyConnected(["relu"]), x).ntk.numpy() * 0.8,
            LINEAR: (x @ x.T).numpy(),
        }
        target, mean = y.numpy()[~test], y.numpy()[~test].mean()
        for name, kernel in kernels.items():
            fit = contest.fits[name][fold]
            inner = kernel[np.ix_(~test, ~test)]

            def left_out(ridge: float, inner=inner, target=target, mean=mean) -> float:
                inverse = np.linalg.inv(inner + ridge * np.eye(len(inner)))
                return float(np.square(inverse @ (target - mean) / np.diag(inverse)).mean())

            near = [left_out(fit.ridge * factor) for factor in (0.4, 1.0, 2.5)]
            if name != LAYER:  # whose kernel is another multiple
                assert near[1] == pytest.approx(fit.loo, rel=1e-8)
                assert near[1] <= min(near)
                alpha = np.linalg.solve(inner + fit.ridge * np.eye(len(inner)), target - mean)
                wanted = kernel[np.ix_(test, ~test)] @ alpha + mean
                found = contest.predictions[name][test, 0].numpy()
                assert found == pytest.approx(wanted, rel=1e-7)
        model = Ridge(alpha=contest.fits[LINEAR][fold].ridge, fit_intercept=False)
        model.fit(x.numpy()[~test], target - mean)
        wanted = model.predict(x.numpy()[test]) + mean
        assert contest.predictions[LINEAR][test, 0].numpy() == pytest.approx(wanted, rel=1e-7)


def test_scores_are_those_of_scikit_learn() -> None:
    x = points()
    y = noisy(x)
    contest = compare(table(x, y), RELU)
    for name in (LOOP, LAYER, RBF, LINEAR, CONSTANT):
        wanted = r2_score(y, contest.predictions[name][:, 0])
        assert contest.score(name).mean == pytest.approx(wanted, abs=1e-12)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long()
    classified = compare(table(x, labels, classes=("r", "s", "t")), RELU)
    for name in (LOOP, LINEAR, CONSTANT):
        decisions = classified.predictions[name].argmax(1)
        score = classified.score(name)
        assert score.mean == pytest.approx(accuracy_score(labels, decisions))
        assert score.error == pytest.approx((score.mean * (1 - score.mean) / 119) ** 0.5)
    found = find(ERRORS, Subject(table(x, labels, classes=("r", "s", "t")), RELU))
    decisions = classified.predictions[classified.kernel].argmax(1)
    assert found.numbers["confusion"] == confusion_matrix(labels, decisions).tolist()
    assert found.rows[0].value == f"{int((decisions != labels).sum())} of 120"


def test_the_choice_is_paid_for() -> None:
    """Of pure noise nothing is learned, however many kernels are tried."""
    x = points(seed=3)
    contest = compare(table(x, noisy(x[:, [1, 0]] * 0, 1.0)))
    assert contest.score(LOOP).mean < 0.1
    assert "nothing was learned" in verdict(contest)


@pytest.mark.parametrize("rare", [(1,), (1, 2)])
def test_a_class_of_one_sample(rare: tuple[int, ...]) -> None:
    """The folds without it have one class, or another one that is as rare."""
    labels = torch.tensor([*rare, *[0] * 40])
    classes = ("a", "b", "c")[: len(rare) + 1]
    contest = compare(table(points(len(labels)), labels, classes=classes), RELU)
    assert contest.score(LINEAR).mean == contest.score(CONSTANT).mean
    assert "nothing was learned" in verdict(contest)


def test_verdicts() -> None:
    x = points(200)
    linear = compare(table(x, noisy(x, 0.1)), RELU)
    words = verdict(linear)
    assert words.startswith("R² on 200 samples: loop 0.9")
    assert "No evidence that the loop helps on this data." in words
    assert words.endswith("is simpler.") or "use that" in words
    assert "-0.000" not in words
    linear.predictions[LINEAR] = linear.targets
    linear.predictions[LAYER] = linear.targets + 0.1 * linear.data.x[:, :1]
    linear.predictions[LOOP] = linear.targets + 0.2 * linear.data.x[:, :1]
    words = verdict(linear)
    assert "hurts on this data, by 0.00" in words
    assert "± 0.000." not in words  # as many digits as an error needs
    assert ". Ridge regression is better by 0.00" in words
    contest = compare(table(x, (x[:, 0] > 0).long(), classes=("no", "yes")), RELU)
    assert verdict(contest).startswith("Accuracy on 200 samples: loop 9")
    better = contest.predictions[LAYER].clone()
    contest.predictions[LOOP] = contest.targets
    assert contest.kernel == LOOP
    assert "The loop helps on this data, by " in verdict(contest)
    contest.predictions[LOOP] = -contest.targets
    contest.predictions[LAYER] = better
    assert "The loop hurts on this data, by " in verdict(contest)
    contest.predictions[RBF] = contest.targets
    assert verdict(contest).endswith(": use that.")


@pytest.mark.parametrize("classes", [False, True])
def test_the_column_that_matters_is_found(classes: bool) -> None:
    x = points(200)
    y = (x[:, 2] > 0).long() if classes else 3 * x[:, 2]
    data = table(x, y, classes=("n", "y") if classes else ())
    found = find(COLUMNS, Subject(data, RELU))
    assert found.rows[0].quantity == "c"
    lost = {name: Score(**score) for name, score in found.numbers["lost"].items()}
    assert lost["c"].mean > 0.3
    # a shuffled column that alone matters leaves twice the variance, or the error of chance
    assert lost["c"].mean == pytest.approx(0.45 if classes else 2, rel=0.3)
    assert max(abs(lost[name].mean) for name in "abd") < 0.05
    assert find(COLUMNS, Subject(replace(data, columns=()), RELU)).rows[0].value == "none"


def test_errors_with_more_data_are_those_of_regressions() -> None:
    x = points(900)
    y = noisy(x)
    found = find(MORE_DATA, Subject(table(x[:300], y[:300]), RELU))
    assert found.holds
    assert found.numbers["sizes"][-3:] == [150, 300, 600]
    ridge, variance = found.numbers["ridge"], y[:300].var(correction=0)
    plain = shoal.DEQ("relu", 0.0, 0.8)
    centered = y - y[:300].mean()
    for size, predicted in zip((150, 300), found.numbers["unexplained"][-3:], strict=False):
        kernel = shoal.kernel(plain, x).ntk
        rows = slice(0, size)
        inner = kernel[rows, rows] + ridge * torch.eye(size)
        outputs = kernel[600:, rows] @ torch.linalg.solve(inner, centered[rows])
        measured = float((outputs - centered[600:]).square().mean() / variance)
        assert predicted == pytest.approx(measured, rel=0.25)


def test_a_section_whose_check_fails_shows_nothing() -> None:
    x = points(60) * torch.logspace(0, 2, 60, dtype=torch.float64)[:, None]  # norms that vary
    found = find(EQUIVALENTS, Subject(PreparedData(x), RELU))
    assert found.holds is False
    assert (found.rows, found.panel, found.notes) == ((), None, ())
    assert "must be within 20%" in found.check
    assert found.numbers["ntk_error"] > 0.2


def test_a_check_on_the_data_outweighs_a_warning() -> None:
    x = points(60) * torch.linspace(0.5, 1.5, 60, dtype=torch.float64)[:, None]
    found = find(EQUIVALENTS, Subject(PreparedData(x / x.norm(dim=1).square().mean().sqrt()), RELU))
    assert found.holds is (max(found.numbers["ck_error"], found.numbers["ntk_error"]) <= 0.2)
    assert "squared norms of x vary" in " ".join((*found.notes, found.check))


def test_the_limit_of_white_data_is_the_marchenko_pastur_law() -> None:
    n, p = 300, 30
    x = torch.linalg.qr(points(n, p)).Q  # a covariance that is a multiple of the identity
    x = x * (n / p) ** 0.5  # rows of mean squared norm one
    found = find(SPECTRUM, Subject(PreparedData(x), LINEAR_NET)).numbers["ck"]
    size = n / (n - 1)  # of the covariance, which is estimated without bias
    assert found["upper_end"] == pytest.approx(size * (1 + (n / p) ** 0.5) ** 2, rel=1e-6)
    assert found["atom_mass"] == pytest.approx(1 - p / n)
    assert found["largest"] == pytest.approx(n / p, rel=1e-9)
    assert found["spikes"] == 0


def test_gaussian_data_have_the_predicted_spectrum() -> None:
    distances = [
        find(SPECTRUM, Subject(PreparedData(points(n, 20)), LINEAR_NET)).numbers["ck"]["distance"]
        for n in (100, 900)
    ]
    assert 2 < distances[0] / distances[1] < 4.5  # about 3: errors of the covariance, 1/√n


def test_sections_that_do_not_apply_say_why() -> None:
    few = Subject(PreparedData(torch.eye(4).double()), RELU)
    assert find(SPECTRUM, few).rows[0].value == "none"
    assert "--label COLUMN" in find(COMPARISON, few).rows[0].meaning
    x = points(30)
    constant = Subject(table(x, torch.ones(30).double()), RELU)
    assert find(COMPARISON, constant).rows[0].meaning == "the target is constant"
    small = Subject(table(x[:10], x[:10, 0]), RELU)
    assert "20 samples" in find(ERRORS, small).rows[0].meaning


@pytest.mark.thorough
@pytest.mark.parametrize("phi", ["relu", "hermite:0,1,0.1"])
def test_sections_say_something_of_every_activation(phi: str) -> None:
    from shoal.app.options import make_architecture

    x = points(60)
    subject = Subject(table(x, noisy(x)), make_architecture(phi, 0.1, 0.8))
    for section in SECTIONS:
        found = find(section, subject)
        assert found.rows or found.error or found.check

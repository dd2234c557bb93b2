"""Regression on whole datasets, in a size that takes seconds."""

import numpy as np
import pytest
import torch

import shoal
from shoal.lab import find
from shoal.reproductions.findings.regression import Regression


@pytest.fixture(scope="module")
def quick(quick_run):
    return quick_run(Regression)


def test_all_solvers_find_the_same_function(quick) -> None:
    summary = quick.summary
    for dataset in ("digits", "mixture"):
        exact = summary[f"{dataset}_ntk_cholesky_0.05_accuracy"]
        assert exact > 0.85
        for solver in ("none", "diagonal", "nystrom", "equivalent", "combined"):
            key = f"{dataset}_ntk_{solver}_0.05"
            assert summary[f"{key}_converged"] == 1
            assert summary[f"{key}_residual"] <= 1e-6
            assert summary[f"{key}_accuracy"] == pytest.approx(exact, abs=0.004)
            assert f"{key}_likelihood" not in summary


def test_the_accuracy_is_that_of_a_dense_solution(quick) -> None:
    train, test = (
        shoal.data.load("digits", split=s, dtype=torch.float64) for s in ("train", "test")
    )
    x, new = (torch.nn.functional.normalize(d.x.flatten(1)) for d in (train, test))
    x, y = x[:300], torch.nn.functional.one_hot(train.y[:300].long(), 10).double()
    deq = quick.experiment.architecture
    matrix = shoal.kernel(deq, x).ck + 0.05 * torch.eye(300, dtype=torch.float64)
    found = shoal.kernel(deq, new, x).ck @ torch.linalg.solve(matrix, y)
    accuracy = float((found.argmax(1) == test.y).double().mean())
    assert quick.summary["digits_ck_cholesky_0.05_accuracy"] == accuracy


def test_preconditioners_save_steps_where_they_should(quick) -> None:
    summary = quick.summary
    steps = {
        (dataset, solver): summary[f"{dataset}_ntk_{solver}_0.05_steps"]
        for dataset in ("digits", "mixture")
        for solver in ("none", "nystrom", "equivalent")
    }
    assert steps["digits", "nystrom"] < steps["digits", "equivalent"] < steps["digits", "none"]
    assert steps["mixture", "equivalent"] < steps["mixture", "nystrom"] < steps["mixture", "none"]


def test_the_figure_has_a_panel_for_each_dataset_and_ridge(quick) -> None:
    figure = quick.experiment.plot(quick.results)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert len(axes.lines) == 5
        assert all(np.isfinite(line.get_ydata()).all() for line in axes.lines)


def test_it_is_known_by_its_name() -> None:
    assert find("shoal", "regression") == [Regression]
    assert len(Regression().points()) == 3 * 7 * 3

"""The experiments on Du 2018, in a small size."""

import math

import numpy as np
import pytest
import torch

import shoal
from lab.computing import compute
from shoal.lab import find
from shoal.reproductions.du2018.convergence import LinearConvergence
from shoal.reproductions.du2018.depth import DepthEigenvalue
from shoal.reproductions.du2018.setting import KINDS, Data


def test_both_are_registered() -> None:
    assert set(find("du2018")) == {DepthEigenvalue, LinearConvergence}


@pytest.mark.thorough
def test_eigenvalues_fall_like_the_square_of_the_depth() -> None:
    """Exactly so for residuals so small that features do not change with the depth."""
    experiment = DepthEigenvalue(depths=(2, 3, 4), samples=3, features=8, constant=1e-3)
    results = compute(experiment)
    summary = experiment.summarize(results)
    assert math.isclose(summary["resnet_slope"], -2, abs_tol=1e-3)
    assert math.isclose(summary["convolutional_slope"], -2, abs_tol=1e-3)
    assert 0.1 < summary["fully_connected_factor"] < 0.5
    (axes,) = experiment.plot(results).axes
    assert axes.get_xscale() == axes.get_yscale() == "log"


@pytest.mark.thorough("fully", "conv")
@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_that_of_a_wide_network(kind: str) -> None:
    data = Data(kind, 3, 8, 0)
    architecture = data.architecture(shoal.Tanh(), 2, 0.9)
    x = data.inputs()
    options = {"pixel_axes": 1} if x.dim() > 2 else {}
    draws, width = 8, 500
    grams = []
    for seed in range(draws):
        net = shoal.build(
            architecture,
            in_features=x.shape[1],
            width=width,
            seed=seed,
            dtype=torch.float64,
            **options,
        )
        grams.append(shoal.empirical_kernel(net, x, trainable={"layer2"}).ntk.detach())
    least = torch.stack([torch.linalg.eigvalsh(gram)[0] for gram in grams])
    error, bias = float(least.std()) / draws**0.5, float(grams[0].diagonal().mean()) / width
    assert abs(data.limit(architecture) - float(least.mean())) < 4 * error + bias


def test_losses_stay_below_their_bound_and_gram_matrices_in_place(quick_run) -> None:
    _, experiment, results = quick_run(LinearConvergence)
    summary = experiment.summarize(results)
    for kind in ("fully_connected", "resnet", "convolutional"):
        assert summary[f"{kind}_below_bound"] == 1
        assert summary[f"{kind}_drift_slope_high"] < 0
    first = results[0].arrays
    assert first["losses"].shape == first["bound"].shape == (41,)
    assert np.array_equal(first["steps"], np.arange(0, 41, 8))
    assert first["drift"][0] == 0
    assert len(experiment.plot(results).axes) == 6

"""Products in reduced precision, against the matrix in float64."""

import pytest
import torch

import shoal
from kernels.points import inputs

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


@pytest.mark.thorough
def test_regressions_meet_their_tolerance_in_float64():
    x = inputs(1400, 5, one_norm=True)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
    exact = shoal.kernel(RELU, x).ntk + 1e-3 * torch.eye(1400).double()
    method = shoal.learning.ConjugateGradients(
        shoal.learning.Nystrom(100, precision=torch.float16),
        tolerance=1e-10,
        precision=torch.float32,
    )
    fit = shoal.kernel_regression(
        RELU, x, y, ridge=1e-3, center=False, method=method, memory="11MiB"
    )
    assert float(((y - exact @ fit.coefficients).norm(dim=0) / y.norm(dim=0)).max()) < 1.01e-10
    whole = shoal.learning.ConjugateGradients(shoal.learning.Nystrom(100), tolerance=1e-10)
    single = shoal.kernel_regression(RELU, x, y, ridge=1e-3, center=False, method=whole)
    steps = int(fit.report.iterations.max()), int(single.report.iterations.max())
    assert steps[0] <= 1.5 * steps[1]  # what sweeps of refinement cost
    torch.testing.assert_close(fit.coefficients, single.coefficients, rtol=1e-6, atol=1e-6)

"""Built-in activations against what their functions alone tell."""

import pytest
import torch

from activations.test_activations import BUILT_IN
from shoal.activations import Hermite, plain


@pytest.mark.parametrize("name", BUILT_IN)
def test_slopes_and_kinks(name):
    phi = BUILT_IN[name]
    x = torch.linspace(-5.93, 6.11, 101, dtype=torch.float64)
    size = 1 + float(phi(x).abs().max())
    found = phi.derivative(x)
    assert float((found - plain.derivative(phi, x)).abs().max()) <= 1e-7 * size
    if not isinstance(phi, Hermite):
        assert plain.lipschitz(phi) == pytest.approx(phi.lipschitz, rel=1e-6)
        jumps = [kink.location for kink in phi.kinks if abs(kink.jumps[1]) > 2e-3]
        assert plain.kinks(phi) == pytest.approx(jumps, abs=1e-3)

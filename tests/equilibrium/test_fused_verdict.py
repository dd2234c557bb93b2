"""The verdict of one kernel of a GPU against that of the operations of torch."""

import pytest
import torch

from shoal import Picard
from shoal.equilibrium.solvers.limits import Limits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SOLVERS = [
    Picard(),
    Picard(rtol=1e-6, atol=0.0),
    Picard(rtol=1e-4, atol=1e-3),
    Picard(rtol=0.0, atol=1e-2),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("width", [1, 37, 2500])
@pytest.mark.parametrize(
    "case", ["usual", "unsolved", "grown", "nothing", "nan", "infinite", "no start", "no value"]
)
def test_both_judge_alike(solver, width, case):
    from shoal.equilibrium.cuda_graphs.fused_verdict import fused_verdict

    generator = torch.Generator().manual_seed(0)
    scale = 10.0 ** torch.linspace(-18, 12, 11)[:, None]
    noise = [scale * torch.randn(11, width, generator=generator) for _ in range(4)]
    start, value = noise[0], noise[0] + noise[1]
    z = value + 1e-3 * noise[2]
    image = z + (0.5 if case == "unsolved" else 1e-7) * noise[3]
    if case == "grown":
        z = 1e7 * z
    elif case == "nothing":
        start, value, z, image = (torch.zeros_like(z) for _ in range(4))
    elif case in ("nan", "infinite"):
        image[3] = float(case[:3])
    elif case.startswith("no "):
        (start if case == "no start" else value)[3] = torch.nan
    limits = Limits.of(solver, width, z.dtype)
    seen, residual = fused_verdict(limits, (value.cuda(), start.cuda()), (image.cuda(), z.cuda()))
    expected, exact = limits.verdict((value, start), (image, z))
    same = {"rtol": 1e-6, "atol": 0.0, "equal_nan": True}  # tolerances are numbers of float32
    torch.testing.assert_close(residual.cpu(), exact, **same)
    torch.testing.assert_close(seen.cpu(), expected, **same)

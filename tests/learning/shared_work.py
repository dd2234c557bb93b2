"""What several processes do together, for the tests."""

import os
import signal
from typing import Any

import torch

import shoal

DEQ = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
RIDGE = 0.05
PRECONDITIONERS = [
    shoal.learning.Nystrom(40),
    None,
]


def data(size: int = 300) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and new inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size + 20, 6, dtype=torch.float64, generator=generator)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)
    return x[:size], y[:size], x[size:]


def method(preconditioner: Any = PRECONDITIONERS[0]) -> shoal.learning.ConjugateGradients:
    """Conjugate gradients to the last digits."""
    return shoal.learning.ConjugateGradients(preconditioner, tolerance=1e-13)


def parts(rank: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Several of these functions, one after the other."""
    return {name: globals()[name](rank) for name in names}


def images(rank: int) -> dict[str, Any]:  # noqa: ARG001
    """Products with a kernel of images, and a regression."""
    x = torch.randn(14, 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    network = shoal.ConvResNet(shoal.activations.ReLU(), depth=2)
    fit = shoal.kernel_regression(network, x[:9], x[:9, 0], ridge=RIDGE, method=method(None))
    product = shoal.kernel_operator(network, x).ntk @ x[:, 0]
    return {"images": [product, fit.predict(x[9:])]}


def products(rank: int) -> dict[str, Any]:  # noqa: ARG001
    """Of operators, kept as a whole and not at all, symmetric and not."""
    x, y, new = data()
    found = {}
    for memory in ("1GiB", "200KiB"):
        own = shoal.kernel_operator(DEQ, x, memory=memory)
        cross = shoal.kernel_operator(DEQ, new, x, memory=memory).ck
        found[memory] = [own.ck @ y, own.ntk @ y, own.ntk @ y[:, 0], cross @ y]
        found[memory] += [own.ntk.to_dense(), cross.to_dense(), own.ntk.diagonal()]
    found["solution"] = [shoal.kernel_operator(DEQ, x).ntk.solve(y, shift=RIDGE, rtol=1e-13)]
    return found


def regression(rank: int, device: str = "cpu") -> dict[str, Any]:
    """All that is learned from a regression."""
    x, y, new = (part.to(device) for part in data())
    steps: list[Any] = []
    options = {"ridge": RIDGE, "method": method(), "on_progress": steps.append}
    fit = shoal.kernel_regression(DEQ, x, y, **options)
    assert bool(steps) == (rank == 0)
    gcv = fit.estimate_gcv(probes=4)
    array = torch.from_numpy(fit.predict(new.cpu().numpy()))
    return {
        "solution": [fit.coefficients.cpu()],
        "predictions": [fit.predict(new).cpu(), array],
        "variances": [fit.variance(new).cpu()],
        # a standard error is rounded as the estimates are that it is the spread of
        "estimates": [torch.tensor([*gcv], dtype=torch.float64)],
    }


def ways(rank: int) -> dict[str, Any]:  # noqa: ARG001
    """Regressions with other preconditioners, and with a factorization."""
    x, y, new = data()
    found = {}
    for near in PRECONDITIONERS[1:]:
        fit = shoal.kernel_regression(DEQ, x, y, ridge=RIDGE, method=method(near))
        found[str(near)] = [fit.coefficients, fit.predict(new)]
    fit = shoal.kernel_regression(DEQ, x, y, ridge="loo", method="cholesky")
    found["cholesky"] = [fit.coefficients, fit.predict(new), fit.variance(new)]
    found["likelihood"] = [torch.tensor(fit.log_marginal_likelihood, dtype=torch.float64)]
    return found


def rounded(rank: int) -> list[torch.Tensor]:  # noqa: ARG001
    """A regression that keeps float32, with fewer bytes than the matrix has."""
    x, y, new = data()
    chosen = shoal.learning.ConjugateGradients(
        shoal.learning.Nystrom(40), tolerance=1e-12, precision=torch.float32
    )
    fit = shoal.kernel_regression(DEQ, x, y, ridge=RIDGE, method=chosen, memory="12MiB")
    return [fit.coefficients, fit.predict(new)]


def failures(rank: int) -> list[str]:
    """What each process is told if one or all of them go wrong; the group works on after it."""
    x, y, new = data(200)
    last = torch.distributed.get_world_size() - 1

    def interrupted(progress: Any) -> None:
        if progress.stage == "solve" and progress.step == 3:
            raise KeyError("enough")

    def fit(**options: Any) -> Any:
        given = {"ridge": RIDGE, "method": method(), "on_progress": None, **options}
        return shoal.kernel_regression(DEQ, x, y, **given)

    one = fit()
    classes = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1, 2] if rank else [0, 0, 1, 1, 2, 2]]
    attempts = [
        lambda: fit(ridge=-1.0 if rank == last else RIDGE),
        lambda: fit(on_progress=interrupted),
        lambda: fit(method=shoal.learning.ConjugateGradients(None, tolerance=1e-13, max_steps=2)),
        lambda: one.predict(new if rank == 0 else new[:, :3]),
        lambda: one.predict(new + rank),
        lambda: shoal.kernel_operator(DEQ, x).ck @ (y + rank),
        lambda: shoal.kernel_operator(DEQ, x + rank),
        lambda: shoal.kernel_regression(DEQ, x[:6], classes, ridge=RIDGE),
    ]
    told = []
    for attempt in attempts:
        try:
            attempt()
        except (ValueError, KeyError, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    torch.testing.assert_close(one.predict(new), fit().predict(new), rtol=0, atol=0)
    return told


def killed(rank: int) -> None:
    """A regression in which the first process is killed after a few steps."""

    def die(progress: Any) -> None:
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    x, y, _ = data(150)
    shoal.kernel_regression(
        DEQ, x, y, ridge=RIDGE, method=method(None), on_progress=None if rank else die
    )

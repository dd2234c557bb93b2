"""Training of linear models, whose way is known in closed form, on random problems."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal

few = settings(max_examples=8)


def problem(seed: int, samples: int, features: int, outputs: int):
    """A linear model with inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(features, outputs, bias=False).double()
    tensors = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((outputs, features), (samples, features), (samples, outputs))
    )
    weight, x, y = tensors
    with torch.no_grad():
        model.weight.copy_(weight)
    return model, x, y


PROBLEMS = st.builds(
    problem,
    seed=st.integers(0, 2**31),
    samples=st.integers(1, 6),
    features=st.integers(1, 5),
    outputs=st.integers(1, 3),
)


@few
@given(given_problem=PROBLEMS, share=st.floats(0.05, 1.9), steps=st.integers(1, 12))
def test_descent_of_a_linear_model_is_that_of_its_kernel(given_problem, share, steps) -> None:
    model, x, y = given_problem
    start = (model(x) - y).detach()
    kernel = x @ x.T
    step_size = share / float(torch.linalg.eigvalsh(kernel)[-1])
    run = shoal.train(model, x, y, step_size=step_size, steps=steps, monitor=False)
    factor = torch.eye(len(x), dtype=torch.float64) - step_size * kernel
    expected = [
        float((torch.linalg.matrix_power(factor, k) @ start).square().sum()) / 2
        for k in range(steps + 1)
    ]
    assert run.losses.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-20)
    assert (run.losses.diff() <= 1e-12 * run.losses[0]).all()  # below 2/λ_max it never rises


@few
@given(given_problem=PROBLEMS, batch=st.integers(1, 6), seed=st.integers(0, 5))
def test_an_epoch_of_mini_batches_takes_every_sample_once(given_problem, batch, seed) -> None:
    model, x, y = given_problem
    batch = min(batch, len(x))
    seen: list[torch.Tensor] = []

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(labels)
        return (output - labels).square().sum() / 2

    steps = -(-len(x) // batch)
    shoal.train(
        model,
        x,
        y,
        optimizer=lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.5),
        batch_size=batch,
        steps=steps,
        seed=seed,
        loss=loss,
        monitor=False,
    )
    rows = [row for part in seen if len(part) < len(x) or batch == len(x) for row in part.tolist()]
    assert sorted(rows[: len(x)]) == sorted(y.tolist())

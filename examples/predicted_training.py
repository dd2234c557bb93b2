"""Draw how DEQs of growing width follow the predicted training of the infinitely wide one.

Usage: python examples/predicted_training.py [FIGURE.png]
"""

import math
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch

import shoal
from shoal.experiments.figures import COLORS, style

STEPS = [*range(21), *range(22, 61, 2), *range(65, 151, 5)]
DEQ = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=1.0)


def circle(angles):
    """Points on the unit circle."""
    return torch.stack([torch.cos(angles), torch.sin(angles)], 1)


def train(width, seed, x, y, x_test, step_size):
    """Losses of a finite network and what it predicts in the end, measured and predicted."""
    net = shoal.build(
        DEQ,
        in_features=2,
        width=width,
        seed=seed,
        dtype=torch.float64,
        solver=shoal.Picard(rtol=1e-6),
        warm_start=True,
    )
    schedule = {"steps": STEPS, "step_size": step_size}
    predicted = shoal.gradient_flow(DEQ, x, y, x_test, initial=net, **schedule)
    optimizer = torch.optim.SGD(net.parameters(), lr=step_size)
    losses = []
    for _ in range(STEPS[-1] + 1):
        optimizer.zero_grad()
        loss = 0.5 * (net(x)[:, 0] - y).square().sum()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return [losses[k] for k in STEPS], net(x_test)[:, 0], predicted


def draw(path):
    """Train, predict and draw."""
    angles = torch.tensor([-2.6, -1.9, -1.3, -0.2, 0.5, 1.2, 2.4], dtype=torch.float64)
    grid = torch.linspace(-math.pi, math.pi, 181, dtype=torch.float64)
    x, y, x_test = circle(angles), torch.sin(2 * angles), circle(grid)
    training = shoal.gradient_flow(DEQ, x, y, times=0).training
    step_size = 0.5 * training.max_step_size
    curve = shoal.gradient_flow(DEQ, x, y, x_test, steps=STEPS, step_size=step_size)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
        for color, width in zip(COLORS, (16, 128, 1024), strict=False):
            losses, values, predicted = train(width, 1, x, y, x_test, step_size)
            left.plot(STEPS, losses, color=color, label=f"width {width}")
            left.plot(STEPS, predicted.loss, color=color, linestyle=":")
            right.plot(grid, values, color=color, linewidth=1)
            right.plot(grid, predicted.test_mean[-1], color=color, linewidth=1, linestyle=":")
        left.plot(STEPS, curve.loss, color="black", linestyle="--", label="expected")
        left.set(yscale="log", xlabel="step", ylabel="training loss", title="Loss")
        left.legend(title="dotted: predicted for this network")
        mean, std = curve.test_mean[-1], curve.test_std[-1]
        right.plot(grid, mean, color="black", linestyle="--", label="mean ± 2 std")
        right.fill_between(grid, mean - 2 * std, mean + 2 * std, color="black", alpha=0.12)
        right.plot(angles, y, "o", color="black", markersize=4)
        right.set(xlabel="angle of the input", ylabel="output", title=f"After {STEPS[-1]} steps")
        right.legend(loc="lower left")
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "predicted_training.png"))

"""Predict how a DEQ will train, without training it, and compare.

Networks of growing width follow the prediction of the infinitely wide one, each from its own
initial function. Takes about ten seconds.

    python examples/predicted_training.py [--output predicted_training.png]

It prints:

    width   loss after 20 steps: predicted, measured   largest gap of the functions
       16                         0.0007    0.1290                           0.22
      128                         0.0001    0.0029                           0.16
     1024                         0.0049    0.0047                           0.07
"""

import argparse
import math

import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="predicted_training.png", help="where to save the figure")
output = parser.parse_args().output

STEPS = [*range(21), *range(22, 61, 2), *range(65, 151, 5)]

# %% Seven points of a circle.
angles = torch.tensor([-2.6, -1.9, -1.3, -0.2, 0.5, 1.2, 2.4], dtype=torch.float64)
grid = torch.linspace(-math.pi, math.pi, 181, dtype=torch.float64)
x, x_test = (torch.stack([torch.cos(a), torch.sin(a)], 1) for a in (angles, grid))
y = torch.sin(2 * angles)

# %% At infinite width: the mean and the spread over initial weights.
deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=1.0)
step_size = 0.5 * shoal.gradient_flow(deq, x, y, times=0).training.max_step_size
schedule = {"steps": STEPS, "step_size": step_size}
wide = shoal.gradient_flow(deq, x, y, x_test, **schedule)
mean, spread = wide.test_mean[-1], wide.test_std[-1]

with style():
    figure = Figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2)
    print("width   loss after 20 steps: predicted, measured   largest gap of the functions")
    for color, width in zip(COLORS, (16, 128, 1024), strict=False):
        net = shoal.build(
            deq, in_features=2, width=width, seed=1, dtype=torch.float64,
            solver=shoal.Picard(rtol=1e-6), warm_start=True,
        )  # fmt: skip
        predicted = shoal.gradient_flow(deq, x, y, x_test, initial=net, **schedule)
        optimizer = torch.optim.SGD(net.parameters(), lr=step_size)
        losses = []
        for _ in range(STEPS[-1] + 1):
            optimizer.zero_grad()
            loss = 0.5 * (net(x)[:, 0] - y).square().sum()
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        values = net(x_test)[:, 0].detach()
        gap = (values - predicted.test_mean[-1]).abs().max()
        print(f"{width:5} {predicted.loss[20]:30.4f} {losses[20]:9.4f} {gap:30.2f}")
        left.plot(STEPS, [losses[k] for k in STEPS], color=color, label=f"width {width}")
        left.plot(STEPS, predicted.loss, color=color, linestyle=":")
        right.plot(grid, values, color=color, linewidth=1)
        right.plot(grid, predicted.test_mean[-1], color=color, linewidth=1, linestyle=":")
    left.plot(STEPS, wide.loss, color="black", linestyle="--", label="expected")
    left.set(yscale="log", xlabel="step", ylabel="training loss", title="Loss")
    left.legend(title="dotted: predicted for this network")
    right.plot(grid, mean, color="black", linestyle="--", label="mean ± 2 std")
    right.fill_between(grid, mean - 2 * spread, mean + 2 * spread, color="black", alpha=0.12)
    right.plot(angles, y, "o", color="black", markersize=4)
    right.set(xlabel="angle of the input", ylabel="output", title=f"After {STEPS[-1]} steps")
    right.legend(loc="lower left")
    figure.savefig(output, dpi=160)

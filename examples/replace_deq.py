"""Replace a deep equilibrium model by one hidden layer that has its kernel, on digits.

A DEQ solves an equation for every input, forward and backward. Its design has the same neural
tangent kernel and solves none: wide networks of both kinds train alike. A plain layer with the
DEQ's activation does not. Takes about ten seconds.

    python examples/replace_deq.py [--output replace_deq.png]

It prints:

    network          accuracy    loss  ms per step
    DEQ                 87.5%  0.0930          ...
    design              87.5%  0.0932          ...
    plain layer         87.8%  0.0873          ...
    infinite width      88.1%  0.0893
"""

import argparse
import time

import torch
from matplotlib.figure import Figure

import shoal
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="replace_deq.png", help="where to save the figure")
output = parser.parse_args().output
STEPS, STEP_SIZE = 60, 2.0

# %% Digits of norm 1: the design is exact there.
train, test = (shoal.data.load("digits", split=s) for s in ("train", "test"))
mean = train.x.mean(0)
x, x_test = (torch.nn.functional.normalize((d.x - mean).flatten(1)) for d in (train, test))
x, y = x[:500], torch.nn.functional.one_hot(train.y[:500]).float()

# %% The DEQ, the layer that has its NTK, and a layer that one might take without thinking.
deq = shoal.DEQ("swish", recurrent_variance=0.2, input_variance=0.8)
networks = {
    "DEQ": deq,
    "design": shoal.design(deq, input_norm=1.0, which="ntk", method="sphere").architecture,
    "plain layer": shoal.FullyConnected([deq.activation]),
}

# %% Train all weights of each, with the same step size, and no output at the start.
losses, seconds = {}, {}
print(f"{'network':15} {'accuracy':>9} {'loss':>7} {'ms per step':>12}")
for name, architecture in networks.items():
    net = shoal.build(architecture, in_features=64, width=512, out_features=10, seed=1)
    with torch.no_grad():
        start, start_test = net(x), net(x_test)
    optimizer = torch.optim.SGD(net.parameters(), lr=STEP_SIZE)
    losses[name], begin = [], time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0.5 * (net(x) - start - y).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        losses[name].append(loss.item())
    seconds[name] = (time.perf_counter() - begin) / STEPS
    with torch.no_grad():
        right = ((net(x_test) - start_test).argmax(1) == test.y).float().mean()
    print(f"{name:15} {right:9.1%} {loss:7.4f} {1e3 * seconds[name]:12.1f}")

# %% What theory says of infinitely wide DEQs and designs, without training one.
wide = shoal.gradient_flow(
    deq, x.double(), y.double(), x_test.double(), steps=range(STEPS), step_size=STEP_SIZE,
    initial="zero", reduction="mean",
)  # fmt: skip
right = (wide.test_mean[-1].argmax(1) == test.y).float().mean()
print(f"{'infinite width':15} {right:9.1%} {wide.loss[-1]:7.4f}")

# %% The losses, and what a step costs.
with style():
    figure = Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for (name, values), color, line in zip(losses.items(), COLORS, ("-", "--", ":"), strict=False):
        left.plot(values, line, color=color, label=name)
    left.plot(range(0, STEPS, 5), wide.loss[::5], "k.", label="predicted for the first two")
    left.set(xlabel="step", ylabel="training loss", title="They train alike")
    left.legend()
    right.barh(list(seconds), [1e3 * s for s in seconds.values()], color=COLORS[: len(seconds)])
    right.set(xlabel="milliseconds per step", title="What a step costs")
    right.invert_yaxis()
    figure.savefig(output, dpi=160)

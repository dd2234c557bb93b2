"""Prove that gradient descent will train a network, then train it and watch the promises.

The certificate counts all rounding errors and names the step size. A refusal names the first
condition that fails, and what would mend it. Takes about ten seconds.

    python examples/certified_training.py [--output certified_training.png]

It prints:

    ordinary start: travel fails
    remedy: a zero readout (readout_scale=0) with smaller labels; more width; less similar inputs

    zero readout: True, every step multiplies the loss by 0.618 or less

    condition        value        bound
    contraction      0.113  <         1
    rank              1.29  <        21
    readout            387  >         0
    step size     0.000488 <=  0.000498
    remainder         59.4  <       387
    travel          0.0248 >=   0.00423

    finished after 30 steps, promises kept:
      distance.input       True
      distance.readout     True
      distance.recurrent   True
      equilibrium          True
      gain                 True
      least_eigenvalue     True
      loss                 True
"""

import argparse

import torch

import shoal

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="certified_training.png", help="where to save the figure")
output = parser.parse_args().output

# %% Four inputs of norm √d, as in Ling 2023.
generator = torch.Generator().manual_seed(0)
x = torch.randn(4, 100, generator=generator, dtype=torch.float64)
x = 10 * torch.nn.functional.normalize(x)
y = 0.1 * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
deq = shoal.DEQ.ling2023(weight_variance=0.001, in_features=100)


def network(readout_scale: float) -> shoal.networks.Network:
    """A DEQ with 800 units."""
    return shoal.build(
        deq, in_features=100, width=800, readout_scale=readout_scale, dtype=torch.float64
    )


# %% An ordinary start is refused; a readout of zero is what the refusal asks for.
refusal = shoal.certify(network(1.0), x, y)
print(f"ordinary start: {refusal.first_failure.name} fails")
print(f"remedy: {refusal.first_failure.remedy}\n")
net = network(0.0)
certificate = shoal.certify(net, x, y)
print(f"zero readout: {certificate.holds}, every step multiplies the loss by", end=" ")
print(f"{certificate.rate:.3f} or less\n")
print(f"{'condition':12} {'value':>9}    {'bound':>9}")
for c in certificate.conditions:
    print(f"{c.name:12} {c.value:9.3g} {c.relation:>2} {c.bound:9.3g}")

# %% The run keeps what was promised.
run = shoal.train(net, x, y, steps=30, monitor=5, certificate=certificate)
print(f"\n{run.status} after {run.steps} steps, promises kept:")
for name, kept in run.kept.items():
    print(f"  {name:20} {kept}")
run.plot().savefig(output, dpi=110)

"""How far designs are from their DEQs on data: by moments and on the sphere, for four activations.

python benchmarks/designs.py [samples]

Prints relative differences of kernel matrices in spectral norm, σ_a² = 0.2, σ_b² = 0.8; an asterisk
marks a design that is only the nearest one. Designs by moments are for the centered DEQ.
"""

import sys

import torch

import shoal

count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
mixture, _ = shoal.GaussianMixture.ling2024(400).sample(count, seed=0, shuffle=True)
digits = shoal.data.load("digits", dtype=torch.float64).x.flatten(1)
images = (digits - digits.mean(0))[:count]
datasets = {}
for name, x in {"mixture": mixture, "digits": images}.items():
    datasets[name] = x / x.square().sum(1).mean().sqrt()
    datasets[f"{name}, norm 1"] = torch.nn.functional.normalize(x)

print(f"{'DEQ, kernel, method':28}", *(f"{name:>16}" for name in datasets))
for phi in (
    shoal.activations.Tanh(),
    shoal.activations.ReLU(),
    shoal.activations.Swish(),
    shoal.activations.Softplus(),
):
    deq = shoal.DEQ(phi, recurrent_variance=0.2, input_variance=0.8)
    for which in ("ck", "ntk"):
        for method in ("moments", "sphere"):
            # all data have a mean squared norm of one: one design is for all of them
            d = shoal.design(deq, input_norm=1.0, which=which, method=method)
            gaps = [
                f"{d.gap(x).relative:.0e}{'' if d.feasible else '*'}" for x in datasets.values()
            ]
            label = f"{type(phi).__name__}, {which.upper()}, {method}"
            print(f"{label:28}", *(f"{gap:>16}" for gap in gaps), flush=True)

"""A Gaussian process with 60,000 samples, exactly solved in seconds: the kernel's equivalent.

python examples/gaussian_process.py [samples]
"""

import math
import sys
import time

import torch

import shoal

count, features = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000, 784
mixture = shoal.GaussianMixture.ling2024(features)
x, labels = mixture.sample(count + 1000, seed=0, dtype=torch.float32, shuffle=True)
y = (2.0 * labels - 1.0).float()
train, test = slice(0, count), slice(count, None)

# %% The kernel of an infinitely deep and wide network, in the memory of the samples.
start = time.perf_counter()
deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
eq = shoal.equivalent(deq, x[train])
print(f"{eq.ck}, {time.perf_counter() - start:.1f} s")
print(f"measured error, CK and NTK: {eq.error().ck:.1%}, {eq.error().ntk:.1%}")

# %% The noise with the largest marginal likelihood; one factorization serves all.
print("\nnoise    log marginal likelihood / n")
best = (-math.inf, 0.0)
for noise in (0.01, 0.03, 0.1, 0.3, 1.0):
    start = time.perf_counter()
    weights = eq.ck.solve(y[train], shift=noise)
    quadratic = float(y[train].double() @ weights.double())
    volume = float(eq.ck.logdet(shift=noise))
    value = -(quadratic + volume + count * math.log(2 * math.pi)) / (2 * count)
    best = max(best, (value, noise))
    print(f"{noise:5.2f} {value:12.4f}     {time.perf_counter() - start:.1f} s")

# %% Prediction: the equivalent between new inputs and old, whose classes nobody knows.
weights = eq.ck.solve(y[train], shift=best[1])
predicted = eq.cross(x[test]).ck @ weights
accuracy = float((predicted.sign() == y[test]).float().mean())
print(f"\nnoise {best[1]}: {accuracy:.1%} of {len(predicted)} new inputs are classified rightly")

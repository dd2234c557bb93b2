"""Kernels of convolutional residual networks by their recursion, written with loops."""

import itertools
import math

import torch

from shoal.activations import ReLU, Sine, Softplus, Tanh

# the trapezoidal rule, which converges exponentially for analytic functions times a density
NODES = torch.linspace(-9.5, 9.5, 191, dtype=torch.float64)
WEIGHTS = 0.1 * torch.exp(-NODES.square() / 2) / math.sqrt(2 * math.pi)


def expectations(sigma, slope, a, b, c):
    """E[σ(u)], E[σ(v)], E[σ(u)σ(v)], E[σ'(u)σ'(v)] by a product rule."""
    u = math.sqrt(a) * NODES
    rest = math.sqrt(max(b - c * c / a, 0.0)) if a else math.sqrt(b)
    v = (c / a if a else 0.0) * u[:, None] + rest * NODES
    value, derivative = (sigma(v) * WEIGHTS).sum(1), (slope(v) * WEIGHTS).sum(1)
    first, second = (sigma(u) * WEIGHTS).sum(), (value * WEIGHTS).sum()
    return (
        first,
        second,
        (sigma(u) * value * WEIGHTS).sum(),
        (slope(u) * derivative * WEIGHTS).sum(),
    )


def relu_expectations(a, b, c):
    """The same for ReLU, in closed form (Cho & Saul 2009)."""
    root = math.sqrt(a * b)
    angle = math.acos(max(-1.0, min(1.0, c / root))) if root else math.pi / 2
    mean = root * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    first, second = (math.sqrt(t / (2 * math.pi)) for t in (a, b))
    return first, second, mean, (math.pi - angle) / (2 * math.pi)


ACTIVATIONS = {
    ReLU(): (relu_expectations, 2.0),
    Softplus(): (
        lambda a, b, c: expectations(torch.nn.functional.softplus, torch.sigmoid, a, b, c),
        1 / float((torch.nn.functional.softplus(NODES) ** 2 * WEIGHTS).sum()),
    ),
    Tanh(): (
        lambda a, b, c: expectations(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2, a, b, c),
        1 / float((torch.tanh(NODES) ** 2 * WEIGHTS).sum()),
    ),
    Sine(): (
        lambda a, b, c: expectations(torch.sin, torch.cos, a, b, c),
        2 / (1 - math.exp(-2)),
    ),
}


class Reference:
    """The recursion as it is written, with loops, for two images of shape (channels, *sides)."""

    def __init__(self, architecture, x, y):
        self.architecture = architecture
        self.expect, self.normalization = ACTIVATIONS[architecture.activation]
        self.sides = x.shape[1:]
        self.pixels = list(itertools.product(*map(range, self.sides)))
        reach = architecture.patch_size // 2
        self.steps = list(itertools.product(range(-reach, reach + 1), repeat=len(self.sides)))
        self.x, self.y = x, y

    def patches(self, values):
        """Both patches move together."""
        result = {}
        for p, q in itertools.product(self.pixels, repeat=2):
            moved = ((self.moved(p, k), self.moved(q, k)) for k in self.steps)
            result[p, q] = sum(values[r, s] for r, s in moved if r is not None and s is not None)
        return result

    def moved(self, p, k):
        place = tuple(i + j for i, j in zip(p, k, strict=True))
        if self.architecture.padding == "circular":
            return tuple(i % n for i, n in zip(place, self.sides, strict=True))
        inside = all(0 <= i < n for i, n in zip(place, self.sides, strict=True))
        return place if inside else None

    def kernels(self, trainable):
        """CK and NTK."""
        both = [(self.x, self.x), (self.y, self.y), (self.x, self.y)]
        pairs = list(itertools.product(self.pixels, repeat=2))
        features = [
            {(p, q): float(u[(slice(None), *p)] @ v[(slice(None), *q)]) for p, q in pairs}
            for u, v in both
        ]
        means = [dict.fromkeys(self.pixels, 0.0) for _ in range(2)]
        tangent = dict.fromkeys(pairs, 0.0)
        for layer in range(1, self.architecture.depth + 1):
            scale = self.architecture.residual_scale / self.architecture.depth
            scale = math.sqrt(self.normalization) if layer == 1 else scale
            below = [self.patches(values) for values in features]
            spread = self.patches(tangent)
            new = [{}, {}, {}]
            for p, q in pairs:
                for k, (left, right) in enumerate(((0, 0), (1, 1), (0, 1))):
                    a, b, c = below[left][p, p], below[right][q, q], below[k][p, q]
                    first, second, value, slope = self.expect(a, b, c)
                    cross = means[left][p] * second + means[right][q] * first
                    skipped = features[k][p, q] if layer > 1 else 0.0
                    new[k][p, q] = float(skipped + scale * cross + scale**2 * value)
                own = below[2][p, q] if f"layer{layer}" in trainable else 0.0
                tangent[p, q] += float(scale**2 * slope * (spread[p, q] + own))
            for k in range(2):
                for p in self.pixels:
                    variance = below[k][p, p]
                    means[k][p] += float(scale * self.expect(variance, variance, variance)[0])
            features = new
        return sum(features[2].values()), sum(tangent.values())

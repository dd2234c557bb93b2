"""Kernels of fully connected networks from the library neural-tangents; imports nothing of shoal.

    python -m venv nt && nt/bin/pip install neural-tangents==0.6.5 "jax<=0.5.3" "jaxlib<=0.5.3"
    nt/bin/python -P tests/oracles/neural_tangents.py tests/oracles/neural_tangents.json

``-P`` because this file has the library's name. Version 0.6.5 does not import with a later jax.
Takes some seconds.

The networks are x^(l) = m^{-1/2} sigma_l(W_l x^(l-1)), f(x) = a^T x^(L) with standard Gaussian
W_l and a and no biases. neural-tangents divides the first layer by the square root of the number
of features, which its ``W_std`` takes back.

Structure of the JSON
---------------------
``versions``
    of neural-tangents, jax and jaxlib.
``inputs``
    The exact float64 inputs: four of norm 1, others of norm 0.1 to 10; an opposite pair, a pair
    1e-3 from opposite, and pairs of directions that differ by 1e-3 and 1e-6.
``cases``
    ``{"activations": [one per layer], "trainable": [groups] or null for all, "ck": ..., "ntk":
    ...}``; the kernels are the rows of the upper triangles, ``rows[i][j - i]`` for inputs i <= j.
    LeakyReLU has the slope 0.1 of the negative part, Abs is the absolute value.

neural-tangents has no option for weights that are not trained. Where ``trainable`` is not null,
layers are applied one by one, and what an untrained one adds to the NTK is left out.
"""

import argparse
import json
import math
import re
from pathlib import Path

import jax
import jaxlib
import neural_tangents
import numpy as np
from neural_tangents import stax

TURN = 1e-3
UNIT, ACROSS = np.array([0.5, 0.5, 0.5, 0.5]), np.array([0.5, -0.5, 0.5, -0.5])
INPUTS = np.array(
    [
        UNIT,
        math.cos(TURN) * UNIT + math.sin(TURN) * ACROSS,
        -UNIT,
        [0.6, 0.0, -0.8, 0.0],
        [-6.0, 0.0, 8.0, 0.01],  # nearly opposite to the one before
        [1.0, -2.0, 2.0, 0.0],
        [2.0, -4.0, 4.0, 6e-6],  # nearly parallel to the one before
        [0.06, 0.0, 0.0, -0.08],
    ]
)
LAYERS = {
    "ReLU": stax.Relu,
    "LeakyReLU": lambda: stax.LeakyRelu(0.1),
    "Abs": stax.Abs,
    "Erf": stax.Erf,
    "GELU": stax.Gelu,
    "Sine": stax.Sin,
    "Cosine": stax.Cos,
}
DEPTHS = (1, 2, 3, 10)
MIXED = ("Erf", "ReLU", "Sine", "GELU", "LeakyReLU")


def dense(layer: int):
    """The weights of a layer, counted from zero."""
    return stax.Dense(1, W_std=math.sqrt(INPUTS.shape[1]) if layer == 0 else 1.0)


def kernels(activations):
    """CK and NTK of the network with all weights trained."""
    layers = [f for k, name in enumerate(activations) for f in (dense(k), LAYERS[name]())]
    _, _, kernel_fn = stax.serial(*layers, dense(len(activations)))
    return kernel_fn(INPUTS, None, ("nngp", "ntk"))


def share(activations, trainable):
    """CK and NTK with some groups of weights trained."""
    groups = [f"layer{k + 1}" for k in range(len(activations))] + ["readout"]
    kernel = INPUTS
    for layer, group in enumerate(groups):
        _, _, kernel_fn = stax.serial(dense(layer))
        below, kernel = kernel, kernel_fn(kernel)
        if group not in trainable:
            kernel = kernel.replace(ntk=below.ntk if layer else 0 * kernel.ntk)
        if layer < len(activations):
            _, _, kernel_fn = stax.serial(LAYERS[activations[layer]]())
            kernel = kernel_fn(kernel)
    return kernel.nngp, kernel.ntk


def upper(matrix):
    """The rows of the upper triangle, as lists of float64."""
    values = np.asarray(matrix)
    assert values.dtype == np.float64
    return [row[i:].tolist() for i, row in enumerate(values)]


def case(activations, trainable):
    """One entry of ``cases``."""
    ck, ntk = share(activations, trainable) if trainable else kernels(activations)
    return {
        "activations": activations,
        "trainable": trainable,
        "ck": upper(ck),
        "ntk": upper(ntk),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    jax.config.update("jax_enable_x64", True)
    networks = [(name,) * depth for name in LAYERS for depth in DEPTHS] + [MIXED]
    shares = [(group,) for group in ("readout", *(f"layer{k + 1}" for k in range(len(MIXED))))]
    shares.append(("readout", "layer2", "layer5"))
    cases = [case(network, None) for network in networks]
    cases += [case(MIXED, trainable) for trainable in shares]
    document = {
        "versions": {
            "neural-tangents": neural_tangents.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
        },
        "inputs": INPUTS.tolist(),
        "cases": cases,
    }
    # repr of a float64 is its shortest decimal that reads back exactly: up to 17 digits
    text = json.dumps(document, indent=1)
    text = re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)
    out.write_text(text + "\n")


if __name__ == "__main__":
    main()

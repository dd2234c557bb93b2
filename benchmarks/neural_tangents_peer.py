"""CK and NTK of fully connected networks by neural-tangents: seconds, as JSON on one line.

PYTHON benchmarks/neural_tangents_peer.py [--samples N] [--features P] [--depths L ...]
    [--activation NAME] [--repeats R]

PYTHON is an interpreter that has neural-tangents, in an environment of its own (see
tests/oracles/neural_tangents.py); shoal is not imported. Both kernels are computed in one compiled
function, in float64, on the device and with the threads that jax chooses. ``product`` is the time
of the matrix product x @ x.T, for comparison; all times but ``compile`` are the best of several
runs after a first one.
"""

import argparse
import json
import math
import time
from collections.abc import Callable

import jax
import neural_tangents
import numpy as np
from jax import Array
from neural_tangents import stax

LAYERS = {"ReLU": stax.Relu, "Erf": stax.Erf, "GELU": stax.Gelu, "Sine": stax.Sin}


def best(function: Callable[[Array], object], x: Array, repeats: int) -> float:
    """The shortest of several times after a first run, in seconds."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function(x))
        times.append(time.perf_counter() - start)
    return min(times[1:])


def network(activation: str, depth: int, x: Array, repeats: int) -> dict[str, float]:
    """The times of one depth; pre-activations of the first layer have variance ‖x‖²."""
    layers = [stax.Dense(1, W_std=math.sqrt(x.shape[1]))]
    for _ in range(depth):
        layers += [LAYERS[activation](), stax.Dense(1)]
    _, _, kernel_fn = stax.serial(*layers)
    start = time.perf_counter()
    compiled = jax.jit(lambda x: kernel_fn(x, None, ("nngp", "ntk"))).lower(x).compile()
    compilation = time.perf_counter() - start
    return {"depth": depth, "compile": compilation, "run": best(compiled, x, repeats)}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--activation", choices=sorted(LAYERS), default="ReLU")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    shape = (options.samples, options.features)
    x = jax.device_put(np.random.default_rng(0).standard_normal(shape) / math.sqrt(shape[1]))
    result = vars(options) | {
        "versions": {"neural-tangents": neural_tangents.__version__, "jax": jax.__version__},
        "device": str(x.device),
        "product": best(jax.jit(lambda x: x @ x.T), x, options.repeats),
        "networks": [
            network(options.activation, depth, x, options.repeats) for depth in options.depths
        ],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

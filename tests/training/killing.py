"""Train with a checkpoint in children that are killed at random moments; a script for the tests.

python killing.py FILE KILLS: prints the number of steps in the file after each kill.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open

import shoal
from training import modules


def run(steps, path=None, **options):
    """Adam on mini-batches of a network with dropout and batch statistics."""
    net = modules.restless()
    torch.manual_seed(0)
    given = {"optimizer": torch.optim.Adam, "batch_size": 4, "monitor": 7, "checkpoint": path}
    return shoal.train(net, *modules.data(), steps=steps, **given, **options), net


def finished(path):
    """The number of steps in a checkpoint, which must be whole."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        assert all(bool(file.get_tensor(name).isfinite().all()) for name in file.keys())  # noqa: SIM118
        return json.loads(file.metadata()["facts"])["made"]


def main(path, kills):
    """Kill so many children; each lives for a random time from its first step on."""
    run(1)  # what is loaded at the first use is loaded once
    moments = random.Random(5)
    for _ in range(kills):
        before, child = finished(path), os.fork()
        if not child:
            run(10**9, path, checkpoint_seconds=0.0)
            os._exit(1)
        while finished(path) == before:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sys.stdout.write(f"{finished(path)}\n")
        sys.stdout.flush()  # what is left would be written by each child


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

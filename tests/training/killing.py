"""Trains in children that are killed at random moments; a script for the tests.

python killing.py FOLDER KILLS SEED: every child is a process of its own, ended by SIGKILL.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open

import shoal
from training.small import GAO, data, network

STEPS = 60


def run(path=None, steps=STEPS, **options):
    """The run that is interrupted, and its network."""
    net = network(GAO, 48, dtype=torch.float32)
    x, y = data(GAO, dtype=torch.float32)
    options = {"step_size": 0.05, "monitor": 7, "checkpoint_seconds": 0.0} | options
    return shoal.train(net, x, y, steps=steps, checkpoint=path, **options), net


def finished(path):
    """How many steps a checkpoint has."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return len(file.get_tensor("ledger.losses"))


def main(folder, kills, seed):
    """Kill so many children, and say how many steps were made after each."""
    path, moments = Path(folder) / "run.safetensors", random.Random(seed)
    run(steps=1)  # what is loaded on the first use is loaded once
    counts = []
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            run(path)
            os._exit(0)
        before, start = finished(path), time.monotonic()
        while finished(path) in (before, 0) and time.monotonic() - start < 20:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        counts.append(finished(path))
    sys.stdout.write(" ".join(map(str, counts)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

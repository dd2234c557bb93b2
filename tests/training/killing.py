"""Trains in children that are killed at random moments; a script for the tests.

python killing.py FOLDER KILLS SEED KIND: every child is a process of its own, ended by SIGKILL.
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
from training.small import GAO, data, network

STEPS = 60


def run(kind, path=None, steps=STEPS):
    """The run that is interrupted, and its network."""
    options = {"monitor": 7, "checkpoint_seconds": 0.0, "checkpoint": path, "steps": steps}
    if kind == "descent":
        net, samples = network(GAO, 48, dtype=torch.float32), data(GAO, dtype=torch.float32)
        return shoal.train(net, *samples, step_size=0.05, **options), net
    net, samples = modules.restless(), modules.data()
    options |= {"optimizer": torch.optim.Adam, "batch_size": 4}
    torch.manual_seed(4)  # of the dropout
    return shoal.train(net, *samples, **options), net


def finished(path):
    """How many steps a checkpoint has."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["facts"])["made"]


def main(folder, kills, seed, kind):
    """Kill so many children, and say how many steps were made after each."""
    path, moments = Path(folder) / "run.safetensors", random.Random(seed)
    run(kind, steps=1)  # what is loaded on the first use is loaded once
    counts = []
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            run(kind, path)
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
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

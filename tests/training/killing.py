"""Trains in two processes side by side, which are killed again and again; a script for the tests.

python killing.py FOLDER KILLS SEED KIND: kills one of the two at a random moment, by SIGKILL, and
begins it anew, so many times. Says after each kill which process it was and what steps it had made.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

import shoal
from training import modules
from training.small import GAO, data, network

NUMBERS = (0, 1)  # of the processes
ENDLESS = 10**9  # steps, which end with the process


def checkpoint_of(folder, number):
    """The file of a process, beside that of the other."""
    return Path(folder) / f"{number}.safetensors"


def run(kind, number, path=None, **options):
    """The training of a process, another one for each number, and its network."""
    options |= {"monitor": 7, "checkpoint": path}
    if kind == "descent":
        net = network(GAO, 48, dtype=torch.float32, seed=number)
        return shoal.train(net, *data(GAO, dtype=torch.float32), step_size=0.05, **options), net
    net = modules.restless()
    torch.manual_seed(number)  # of the dropout
    options |= {"optimizer": torch.optim.Adam, "batch_size": 4, "seed": number}
    return shoal.train(net, *modules.data(), **options), net


def finished(path):
    """How many steps a checkpoint has."""
    if not path.exists():
        return 0
    with path.open("rb") as file:  # safe_open opens it twice, between which it may be replaced
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["facts"])["made"]


def begun(kind, number, path):
    """A child that trains for as long as it and its parent live."""
    parent = os.getpid()
    if child := os.fork():
        return child
    try:
        orphan = lambda _: os.getppid() == parent or os._exit(1)  # noqa: E731
        run(kind, number, path, steps=ENDLESS, checkpoint_seconds=0.0, progress=orphan)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def ended(child):
    """Kill a child that is alive."""
    if os.waitpid(child, os.WNOHANG) != (0, 0):
        sys.exit("a child ended by itself")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def next_step(path, child):
    """Wait until a child has made a step; the seconds that it took."""
    start, before = time.monotonic(), finished(path)
    while finished(path) == before:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            sys.exit("a child ended by itself")
        time.sleep(0.001)
    return time.monotonic() - start


def main(folder, kills, seed, kind):
    """Kill so many children."""
    moments = random.Random(seed)
    run(kind, 0, steps=1)  # what is loaded on the first use is loaded once
    paths = [checkpoint_of(folder, number) for number in NUMBERS]
    children = [begun(kind, number, paths[number]) for number in NUMBERS]
    for _ in range(kills):
        number = moments.choice(NUMBERS)
        took = next_step(paths[number], children[number])
        time.sleep(moments.uniform(0, took))
        ended(children[number])
        sys.stdout.write(f"{number} {finished(paths[number])}\n")
        sys.stdout.flush()  # what is left would be written by each child
        children[number] = begun(kind, number, paths[number])
    for child in children:
        ended(child)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

"""Runs an experiment in children that are killed at random moments; a script for the tests.

python killing.py FOLDER KILLS SEED: every child is a process of its own, ended by SIGKILL.
"""

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import shoal
from shoal.lab import Run, execute
from shoal.reproductions.findings.width import WidthError


def main(folder: str, kills: int, seed: int) -> None:
    """Kill so many children, and say how many points were finished after each."""
    relu = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
    one = Run(replace(WidthError.quick(), architecture=relu), Path(folder), "cpu")
    moments = random.Random(seed)
    counts = []
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            execute(one)
            os._exit(0)
        # from the start of this attempt, or from the moment at which it made progress
        before, start = one.finished, time.monotonic()
        if moments.random() < 0.7 and before < len(one.files):
            while one.finished == before and time.monotonic() - start < 600:  # on a busy machine
                time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        counts.append(one.finished)
    sys.stdout.write(" ".join(map(str, counts)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

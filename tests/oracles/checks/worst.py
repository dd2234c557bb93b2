"""What a check has found."""

import time

import mpmath as mp
from mpmath import mpf


def say(*what):
    print(*what, flush=True)  # noqa: T201


class Worst:
    """Keeps the largest error of one check."""

    def __init__(self, label, limit):
        self.label, self.limit, self.error, self.where, self.count = label, limit, 0, None, 0
        self.start = time.time()

    def see(self, stored, value, scale, where):
        error = abs(mpf(stored) - value) / scale
        self.count += 1
        if error >= self.error:
            self.error, self.where = error, where

    def done(self):
        say(f"{self.label:34s} {self.count:5d} values, worst {mp.nstr(self.error, 3):>10s}"
            f" at {self.where} ({time.time() - self.start:.0f} s)")  # fmt: skip
        assert self.error <= self.limit, self.label

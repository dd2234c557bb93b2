"""Numbers beside the means of measurements, in their standard errors."""

import numpy as np


def assert_near_mean(value: object, samples: object, *, errors: float = 4.0, more: float = 0.0):
    """The mean of the samples (along the first axis) is the value, but for its standard errors.

    Args:
        value: What the mean shall be.
        samples: Independent measurements.
        errors: How many standard errors they may be apart.
        more: What the value itself may be off, for other reasons.
    """
    drawn = np.asarray(samples, dtype=np.float64)
    error = drawn.std(0, ddof=1) / np.sqrt(len(drawn))
    away = np.abs(drawn.mean(0) - np.asarray(value, dtype=np.float64))
    assert np.all(away <= errors * error + more), (away / error, away, more)

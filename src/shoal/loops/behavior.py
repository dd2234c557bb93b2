"""What an output does in the long run: it converges, cycles, wanders, drifts or diverges."""

import torch
from torch import Tensor

from shoal.loops.curve import LONGEST_PERIOD, Recording

BEHAVIORS = ("converges", "cycles", "wanders", "drifts", "diverges")
_SMALL = 0.01  # path of the second half, over the spread of outputs, that counts as rest
_SAME = 0.05  # distance of states a period apart, over a move
_WINDOWS = 8
_GROWS = 4.5  # ratio of the paths of two octaves: 2 for constant moves, 4 for quadratic growth
_FALLS = 0.8  # the same ratio of a path that ends; 1 for logarithmic growth
_FADES = 0.7  # ratio of the last and the first moves of a series that ends
_STRAIGHT = 0.5  # share of a path that is covered between its ends


def behaviors(run: Recording, scale: float) -> list[tuple[str, int]]:
    """The behavior of each sample's output, and the period of its cycle, or zero.

    Args:
        run: The recording.
        scale: Spread of the outputs of different samples.
    """
    norms = torch.stack(run.norms).cpu()
    if not run.moves:
        finite = norms[-1].isfinite().tolist()
        return [("converges" if one else "diverges", 0) for one in finite]
    moves = torch.stack(run.moves).cpu()
    recent = torch.stack(list(run.recent)).cpu()
    across = torch.linalg.vector_norm(recent[-1] - run.halfway.cpu(), dim=1)
    return [
        _behavior(moves[:, row], norms[:, row], recent[:, row], float(across[row]), scale)
        for row in range(moves.shape[1])
    ]


def _behavior(
    moves: Tensor, norms: Tensor, recent: Tensor, across: float, scale: float
) -> tuple[str, int]:
    """The behavior of one sample, and its period."""
    if not bool(norms.isfinite().all()):
        return "diverges", 0
    half, quarter = len(moves) // 2, len(moves) // 4
    later, earlier = float(moves[half:].sum()), float(moves[quarter:half].sum())
    if later <= _SMALL * scale:
        return "converges", 0
    if later > _GROWS * earlier and norms[-1] > 2 * norms[half]:
        return "diverges", 0
    if _decays(moves):
        return "converges", 0
    period = _period(recent)
    if period:
        return "cycles", period
    if later < _FALLS * earlier:
        return "converges", 0
    return ("drifts" if across > _STRAIGHT * later else "wanders"), 0


def _decays(moves: Tensor) -> bool:
    """Whether moves fall like a geometric series, by a factor that does not tend to one."""
    windows = moves.tensor_split(_WINDOWS)[2:]
    if not all(len(one) for one in windows):
        return False
    largest = torch.stack([one.max() for one in windows]).clamp_min(1e-300)
    factors = largest[1:] / largest[:-1]
    falls = bool((factors < 1).all()) and bool(largest[-1] < _FADES * largest[0])
    return falls and bool(factors[-1] < factors[:-1].mean() + 0.03)


def _period(recent: Tensor) -> int:
    """The shortest period of the last outputs; zero if there is none."""
    for period in range(2, min(LONGEST_PERIOD, (len(recent) - 1) // 2) + 1):
        apart = torch.linalg.vector_norm(recent[period:] - recent[:-period], dim=1)
        move = torch.linalg.vector_norm(recent[1:] - recent[:-1], dim=1).max()
        if bool((apart[-period:] <= _SAME * move).all()):
            return period
    return 0

"""Work side by side: in several threads, in each of which torch has one, or on a device."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_T = TypeVar("_T")
_R = TypeVar("_R")


def side_by_side(
    work: Callable[[_T], _R], items: Sequence[_T], *, in_threads: bool = True
) -> Iterator[_R]:
    """Do work on each item, in as many threads as torch has; yields what it gives, in order.

    Threads of torch that have worked together on a product stay awake for a while and get in the
    way of what comes next. Here none of them work together: each thread does all that is to be done
    with its items.
    """
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    if not in_threads or threads == 1 or len(items) == 1:
        for item in items:
            yield work(item)
        return

    def alone() -> None:
        torch.set_num_threads(1)  # of this thread
        torch.set_grad_enabled(gradients)

    pool = ThreadPoolExecutor(min(threads, len(items)), initializer=alone)
    try:
        waiting = deque(pool.submit(work, item) for item in items)
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what threads that come later begin with


def one_behind(begun: Iterable[Callable[[], _R]]) -> Iterator[_R]:
    """End each piece of work after the next has begun: a device that is waited for has work left.

    Args:
        begun: Begins pieces of work, one by one; each is what ends it.
    """
    last = None
    for end in begun:
        if last is not None:
            yield last()
        last = end
    if last is not None:
        yield last()

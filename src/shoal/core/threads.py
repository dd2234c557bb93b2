"""Work side by side: in several threads with one thread of torch each, or on a device."""

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
    """Do work on each item, in as many threads as torch has; yields the results in order.

    Threads of torch that have worked together on a product stay awake for a while and delay the
    next operations. Here each thread does all the work on its items alone.
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
        torch.set_num_threads(threads)  # the default of later threads


def one_behind(begun: Iterable[Callable[[], _R]]) -> Iterator[_R]:
    """End each piece of work after the next has begun: a device that is waited for has work left.

    Args:
        begun: An iterator that begins the pieces one by one and yields the function that ends each.
    """
    last = None
    for end in begun:
        if last is not None:
            yield last()
        last = end
    if last is not None:
        yield last()

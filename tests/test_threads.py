"""Work side by side in threads: all of it, with torch's settings as they were."""

import threading

import pytest
import torch

from shoal.core.threads import one_behind, side_by_side


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_all_is_done(threads):
    seen, inside = [], []

    def work(item):
        seen.append(item)
        inside.append((torch.get_num_threads(), torch.is_grad_enabled(), threading.get_ident()))

    with torch.no_grad():
        assert len(list(side_by_side(work, range(20)))) == 20
    assert sorted(seen) == list(range(20))
    assert {count for count, *_ in inside} == {1}
    assert not any(gradients for _, gradients, _ in inside)
    assert len({ident for *_, ident in inside}) <= threads
    assert torch.get_num_threads() == threads
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [threads]


def test_a_failure_is_raised_and_ends_the_work(threads):
    done = []

    def work(item):
        if item == 2:
            raise ValueError("the third")
        done.append(item)

    with pytest.raises(ValueError, match="the third"):
        list(side_by_side(work, range(1000)))
    assert len(done) < 999
    assert torch.get_num_threads() == threads


def test_each_is_ended_after_the_next_has_begun():
    seen = []

    def begin(item):
        seen.append(("begun", item))
        return lambda: seen.append(("ended", item)) or item

    assert list(one_behind(map(begin, range(3)))) == [0, 1, 2]
    begun, ended = ([(word, k) for k in range(3)] for word in ("begun", "ended"))
    assert seen == [begun[0], begun[1], ended[0], begun[2], ended[1], ended[2]]
    assert list(one_behind([])) == []

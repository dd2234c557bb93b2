"""What stands in for CUDA graphs where there is no GPU: the same operations on the same memory."""

from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.equilibrium.cuda_graphs.graphs import Recording


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Notes operations; doing them again reads the tensors that were read, wherever those are now.

    Like a graph, and unlike the function that was recorded, it knows nothing of modules or names.
    """

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        kwargs = kwargs or {}
        # detached: of a parameter whose data are exchanged, a graph has the memory
        held = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        made = function(*args, **kwargs)
        self.operations.append((function, *held, tensors_in(made)))
        return made

    def replay(self):
        for function, args, kwargs, before in self.operations:
            given = {t.untyped_storage().data_ptr() for t in tensors_in((args, kwargs))}
            for new, old in zip(tensors_in(function(*args, **kwargs)), before, strict=True):
                if old.untyped_storage().data_ptr() not in given:
                    old.detach().copy_(new)


class Recorder:
    """Records, and counts how often that and its replays happen, and what is left of it."""

    def __init__(self):
        self.captures = self.replays = 0
        self.kept = WeakSet()

    def __call__(self, function, tensors):
        def capture(run):
            run()
            with Tape() as tape:
                run()
            self.captures += 1

            def replay():
                self.replays += 1
                tape.replay()

            return replay

        with torch.inference_mode(mode=False), torch.no_grad():
            found = Recording(function, tensors, capture)
        self.kept.add(found)
        return found

"""Training of finite networks, by ``train`` or any other loop, watched by the theory."""

from shoal.training.promises import Promises
from shoal.training.records import Records, TrainingError, TrainingRun
from shoal.training.train import TrainingProgress, train
from shoal.training.watch import Watch

__all__ = [
    "Promises",
    "Records",
    "TrainingError",
    "TrainingProgress",
    "TrainingRun",
    "Watch",
    "train",
]

"""Training of finite networks, by ``train`` or any other loop, watched by the theory."""

from shoal.training.monitor import Monitor
from shoal.training.progress import TrainingProgress
from shoal.training.promises import Promises
from shoal.training.result import Records, TrainingError, TrainingRun
from shoal.training.train import train
from shoal.training.watch import Watch

__all__ = [
    "Monitor",
    "Promises",
    "Records",
    "TrainingError",
    "TrainingProgress",
    "TrainingRun",
    "Watch",
    "train",
]

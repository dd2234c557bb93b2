"""Training of finite networks by gradient descent and gradient flow, watched by the theory."""

from shoal.training.monitor import Monitor
from shoal.training.progress import TrainingProgress
from shoal.training.promises import Promises
from shoal.training.result import TrainingError, TrainingRun
from shoal.training.verb import train

__all__ = ["Monitor", "Promises", "TrainingError", "TrainingProgress", "TrainingRun", "train"]

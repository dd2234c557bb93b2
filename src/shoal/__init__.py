"""shoal finds the shallow network inside an infinitely deep one."""

from shoal import activations, architectures, gaussian
from shoal.activations import *  # noqa: F403
from shoal.architectures import *  # noqa: F403
from shoal.exceptions import AccuracyError, ConvergenceError

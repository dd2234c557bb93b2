"""shoal: networks that iterate, their exact kernels, and the shallow networks inside them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core import AccuracyError, ConvergenceError, ConvergenceWarning
from shoal.core.version import __version__ as __version__

if TYPE_CHECKING:  # from the modules that define them, which mypy would take for the functions
    from shoal import (
        activations,
        adapters,
        architectures,
        data,
        equilibrium,
        gaussian,
        learning,
    )
    from shoal.activations import Activation
    from shoal.architectures import (
        DEQ,
        Architecture,
        ConvDEQ,
        ConvNet,
        ConvResNet,
        FullyConnected,
        ImplicitNetwork,
        LoopedNetwork,
        ResNet,
    )
    from shoal.asymptotics import GaussianMixture, centered
    from shoal.asymptotics.coefficients import coefficients
    from shoal.asymptotics.equivalent import equivalent
    from shoal.asymptotics.spectrum import spectrum
    from shoal.certificates.certify import certify
    from shoal.designs.design import design
    from shoal.equilibrium import (
        Anderson,
        Broyden,
        Equilibrium,
        Implicit,
        Neumann,
        NewtonKrylov,
        OneStep,
        Picard,
        Reversible,
        Unrolled,
        jacobian_penalty,
    )
    from shoal.equilibrium.fixed_point import fixed_point
    from shoal.kernels import kernel, kernel_function, kernel_operator
    from shoal.learning import gradient_flow, kernel_regression, learning_curve
    from shoal.loops import Loop
    from shoal.loops.diagnose import diagnose
    from shoal.loops.distill import distill
    from shoal.loops.find import find_loop
    from shoal.loops.stopping import stop_rule
    from shoal.networks import GainConstraint, MonotoneCell, export, load, save
    from shoal.networks.build import build
    from shoal.networks.empirical_kernel import empirical_kernel
    from shoal.training import TrainingError, Watch
    from shoal.training.train import train

__all__ = [
    "DEQ",
    "AccuracyError",
    "Activation",
    "Anderson",
    "Architecture",
    "Broyden",
    "ConvDEQ",
    "ConvNet",
    "ConvResNet",
    "ConvergenceError",
    "ConvergenceWarning",
    "Equilibrium",
    "FullyConnected",
    "GainConstraint",
    "GaussianMixture",
    "Implicit",
    "ImplicitNetwork",
    "Loop",
    "LoopedNetwork",
    "MonotoneCell",
    "Neumann",
    "NewtonKrylov",
    "OneStep",
    "Picard",
    "ResNet",
    "Reversible",
    "TrainingError",
    "Unrolled",
    "Watch",
    "activations",
    "adapters",
    "architectures",
    "build",
    "centered",
    "certify",
    "coefficients",
    "data",
    "design",
    "diagnose",
    "distill",
    "empirical_kernel",
    "equilibrium",
    "equivalent",
    "export",
    "find_loop",
    "fixed_point",
    "gaussian",
    "gradient_flow",
    "jacobian_penalty",
    "kernel",
    "kernel_function",
    "kernel_operator",
    "kernel_regression",
    "learning",
    "learning_curve",
    "load",
    "save",
    "spectrum",
    "stop_rule",
    "train",
]

_OPEN = ("activations", "adapters", "architectures", "data", "equilibrium", "gaussian", "learning")
_PACKAGES = (  # that define the other names, from the ground up
    *("activations", "architectures", "kernels", "asymptotics", "equilibrium"),
    *("networks", "designs", "learning", "training", "certificates", "loops"),
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: importing all takes half as long as PyTorch."""
        for package in _PACKAGES if name in __all__ and name not in _OPEN else ():
            found = import_module(f"{__name__}.{package}")
            if name in found.__all__:
                return globals().setdefault(name, getattr(found, name))
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])

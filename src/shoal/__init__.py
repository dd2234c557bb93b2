"""shoal finds the shallow network inside an infinitely deep one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core import AccuracyError, ConvergenceError, ConvergenceWarning, clear_caches
from shoal.core.version import __version__ as __version__

if TYPE_CHECKING:  # functions from the modules of their names, which mypy takes for them else
    from shoal import adapters, data, gaussian
    from shoal.activations import (
        ELU,
        GELU,
        Activation,
        Affine,
        Cosine,
        Erf,
        HardTanh,
        Hermite,
        Identity,
        Kink,
        LeakyReLU,
        Mish,
        PiecewisePolynomial,
        ReLU,
        Sigmoid,
        Sine,
        Sinusoid,
        Softplus,
        Swish,
        Tanh,
    )
    from shoal.architectures import (
        DEQ,
        Architecture,
        Cell,
        ConvDEQ,
        ConvNet,
        ConvResNet,
        FullyConnected,
        ImplicitArchitecture,
        ImplicitNetwork,
        Layers,
        ResNet,
        Weights,
    )
    from shoal.certificates import Certificate, RequiredWidth, required_width
    from shoal.certificates.certify import certify
    from shoal.convergence import GradientFlow, gradient_flow
    from shoal.designs import Design, MomentMatching, PatchMatching, SphereMatching
    from shoal.designs.design import design
    from shoal.diagnosis import Diagnosis
    from shoal.diagnosis.diagnose import diagnose
    from shoal.distillation import Twin
    from shoal.distillation.distill import distill
    from shoal.equilibrium import (
        Anderson,
        Broyden,
        DampedPicard,
        Equilibrium,
        GradientError,
        Implicit,
        Neumann,
        NewtonKrylov,
        OneStep,
        Picard,
        PreparedCell,
        Reversible,
        Solution,
        Status,
        Unrolled,
        jacobian_penalty,
    )
    from shoal.equilibrium.fixed_point import fixed_point
    from shoal.equilibrium.solvers.solve import solve
    from shoal.equilibrium.subhomogeneity import subhomogeneity
    from shoal.equivalents import Coefficients, Equivalent, centered
    from shoal.equivalents.coefficients import coefficients
    from shoal.equivalents.equivalent import equivalent
    from shoal.kernels import (
        KernelFunction,
        KernelOperator,
        KernelOperators,
        Kernels,
        kernel,
        kernel_function,
        kernel_operator,
        pair_eigenvalue,
    )
    from shoal.mixtures import GaussianMixture
    from shoal.networks import (
        GainConstraint,
        MonotoneCell,
        Network,
        WellPosedness,
        export,
        load,
        save,
    )
    from shoal.networks.build import build
    from shoal.networks.ntk.empirical_kernel import empirical_kernel
    from shoal.prediction import HermiteLaw, HermiteSpectrum, LearningCurve
    from shoal.prediction.learning_curve import learning_curve
    from shoal.regression import (
        Cholesky,
        CombinedPreconditioner,
        ConjugateGradients,
        DiagonalPreconditioner,
        EquivalentPreconditioner,
        KernelRegression,
        LeaveOneOut,
        Nystrom,
        RidgePath,
        Selection,
        select,
    )
    from shoal.regression.kernel_regression import kernel_regression
    from shoal.regression.ridge_path import ridge_path
    from shoal.spectra import Spectra, Spectrum
    from shoal.spectra.spectrum import spectrum
    from shoal.training import Monitor, TrainingError, TrainingRun, Watch
    from shoal.training.train import train

__all__ = [
    "DEQ",
    "ELU",
    "GELU",
    "AccuracyError",
    "Activation",
    "Affine",
    "Anderson",
    "Architecture",
    "Broyden",
    "Cell",
    "Certificate",
    "Cholesky",
    "Coefficients",
    "CombinedPreconditioner",
    "ConjugateGradients",
    "ConvDEQ",
    "ConvNet",
    "ConvResNet",
    "ConvergenceError",
    "ConvergenceWarning",
    "Cosine",
    "DampedPicard",
    "Design",
    "Diagnosis",
    "DiagonalPreconditioner",
    "Equilibrium",
    "Equivalent",
    "EquivalentPreconditioner",
    "Erf",
    "FullyConnected",
    "GainConstraint",
    "GaussianMixture",
    "GradientError",
    "GradientFlow",
    "HardTanh",
    "Hermite",
    "HermiteLaw",
    "HermiteSpectrum",
    "Identity",
    "Implicit",
    "ImplicitArchitecture",
    "ImplicitNetwork",
    "KernelFunction",
    "KernelOperator",
    "KernelOperators",
    "KernelRegression",
    "Kernels",
    "Kink",
    "Layers",
    "LeakyReLU",
    "LearningCurve",
    "LeaveOneOut",
    "Mish",
    "MomentMatching",
    "Monitor",
    "MonotoneCell",
    "Network",
    "Neumann",
    "NewtonKrylov",
    "Nystrom",
    "OneStep",
    "PatchMatching",
    "Picard",
    "PiecewisePolynomial",
    "PreparedCell",
    "ReLU",
    "RequiredWidth",
    "ResNet",
    "Reversible",
    "RidgePath",
    "Selection",
    "Sigmoid",
    "Sine",
    "Sinusoid",
    "Softplus",
    "Solution",
    "Spectra",
    "Spectrum",
    "SphereMatching",
    "Status",
    "Swish",
    "Tanh",
    "TrainingError",
    "TrainingRun",
    "Twin",
    "Unrolled",
    "Watch",
    "Weights",
    "WellPosedness",
    "adapters",
    "build",
    "centered",
    "certify",
    "clear_caches",
    "coefficients",
    "data",
    "design",
    "diagnose",
    "distill",
    "empirical_kernel",
    "equivalent",
    "export",
    "fixed_point",
    "gaussian",
    "gradient_flow",
    "jacobian_penalty",
    "kernel",
    "kernel_function",
    "kernel_operator",
    "kernel_regression",
    "learning_curve",
    "load",
    "pair_eigenvalue",
    "required_width",
    "ridge_path",
    "save",
    "select",
    "solve",
    "spectrum",
    "subhomogeneity",
    "train",
]

_PACKAGES = (  # that have public names, from the ground up
    *("mixtures", "activations", "architectures", "kernels", "equilibrium", "equivalents"),
    *("spectra", "regression", "prediction", "networks", "designs", "convergence", "training"),
    *("certificates", "diagnosis", "distillation"),
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is: all takes half as long as PyTorch."""
        for package in _PACKAGES if name in __all__ else ():
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
        return sorted({*globals(), *__all__})

"""shoal finds the shallow network inside an infinitely deep one."""

from shoal import interrupts as _interrupts  # noqa: F401, before all that takes time

# isort: split
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
    ConvResNet,
    FullyConnected,
    ImplicitArchitecture,
    ImplicitNetwork,
    Layers,
    ResNet,
    Weights,
)
from shoal.caches import clear_caches
from shoal.certificates import Certificate, RequiredWidth, certify, required_width
from shoal.convergence import GradientFlow, gradient_flow
from shoal.designs import Design, design
from shoal.empirical import empirical_kernel
from shoal.equivalents import Coefficients, Equivalent, centered, coefficients, equivalent
from shoal.exceptions import AccuracyError, ConvergenceError, ConvergenceWarning
from shoal.gradients import Implicit, OneStep, Unrolled, fixed_point
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
from shoal.models import GainConstraint, Network, WellPosedness, build, export, load, save
from shoal.regression import KernelRegression, kernel_regression
from shoal.solvers import (
    Anderson,
    Broyden,
    DampedPicard,
    NewtonKrylov,
    Picard,
    Solution,
    Status,
    solve,
)
from shoal.spectra import Spectra, Spectrum, spectrum
from shoal.training import Monitor, TrainingError, TrainingRun, train

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
    "Coefficients",
    "ConvResNet",
    "ConvergenceError",
    "ConvergenceWarning",
    "Cosine",
    "DampedPicard",
    "Design",
    "Equivalent",
    "Erf",
    "FullyConnected",
    "GainConstraint",
    "GaussianMixture",
    "GradientFlow",
    "HardTanh",
    "Hermite",
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
    "Monitor",
    "Network",
    "NewtonKrylov",
    "OneStep",
    "Picard",
    "PiecewisePolynomial",
    "ReLU",
    "RequiredWidth",
    "ResNet",
    "Sigmoid",
    "Sine",
    "Sinusoid",
    "Softplus",
    "Solution",
    "Spectra",
    "Spectrum",
    "Status",
    "Swish",
    "Tanh",
    "TrainingError",
    "TrainingRun",
    "Unrolled",
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
    "empirical_kernel",
    "equivalent",
    "export",
    "fixed_point",
    "gaussian",
    "gradient_flow",
    "kernel",
    "kernel_function",
    "kernel_operator",
    "kernel_regression",
    "load",
    "pair_eigenvalue",
    "required_width",
    "save",
    "solve",
    "spectrum",
    "train",
]

__version__ = "0.1.0.dev0"

"""Diagnoses of trained loops: do they settle, how deep are they in effect, what do they cost?"""

from shoal.diagnosis.diagnose import diagnose
from shoal.diagnosis.equilibria import Equilibria, SolverCost
from shoal.diagnosis.gradients import GradientCost
from shoal.diagnosis.iteration import EffectiveDepth, Iteration
from shoal.diagnosis.jacobian import JacobianSpectrum
from shoal.diagnosis.kernel_regime import KernelChange
from shoal.diagnosis.remedies import Remedy
from shoal.diagnosis.result import Diagnosis

__all__ = [
    "Diagnosis",
    "EffectiveDepth",
    "Equilibria",
    "GradientCost",
    "Iteration",
    "JacobianSpectrum",
    "KernelChange",
    "Remedy",
    "SolverCost",
    "diagnose",
]

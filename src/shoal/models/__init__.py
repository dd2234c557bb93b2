"""Finite networks as PyTorch modules, built from architectures."""

from shoal.models.build import build
from shoal.models.constraint import GainConstraint
from shoal.models.equilibrium import EquilibriumNetwork
from shoal.models.exporting import export
from shoal.models.network import Network
from shoal.models.norms import NormBounds, operator_norm_bounds
from shoal.models.saving import load, save
from shoal.models.well_posedness import WellPosedness

__all__ = [
    "EquilibriumNetwork",
    "GainConstraint",
    "Network",
    "NormBounds",
    "WellPosedness",
    "build",
    "export",
    "load",
    "operator_norm_bounds",
    "save",
]

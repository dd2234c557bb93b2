"""Finite networks as PyTorch modules, built from architectures."""

from shoal.networks.build import build
from shoal.networks.constraint import GainConstraint
from shoal.networks.empirical_kernel import empirical_kernel
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.exporting import export
from shoal.networks.monotone import MonotoneCell
from shoal.networks.network import Network
from shoal.networks.norms import NormBounds, operator_norm_bounds
from shoal.networks.saving import load, save
from shoal.networks.well_posedness import WellPosedness

__all__ = [
    "EquilibriumNetwork",
    "GainConstraint",
    "MonotoneCell",
    "Network",
    "NormBounds",
    "WellPosedness",
    "build",
    "empirical_kernel",
    "export",
    "load",
    "operator_norm_bounds",
    "save",
]

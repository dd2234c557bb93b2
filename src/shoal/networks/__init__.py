"""Finite networks as PyTorch modules, built from architectures."""

from shoal.networks.build import build
from shoal.networks.constraint import GainConstraint
from shoal.networks.empirical_kernel import empirical_kernel
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.gain import WellPosedness
from shoal.networks.monotone import MonotoneCell
from shoal.networks.network import Network
from shoal.networks.saving import export, load, save
from shoal.numerics.norms import NormBounds, operator_norm_bounds

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

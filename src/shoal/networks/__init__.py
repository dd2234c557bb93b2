"""Finite networks as PyTorch modules, built from architectures."""

from shoal.networks.build import build
from shoal.networks.contraction.constraint import GainConstraint
from shoal.networks.contraction.gain import WellPosedness
from shoal.networks.contraction.monotone import MonotoneCell
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.network import Network
from shoal.networks.ntk.empirical_kernel import empirical_kernel
from shoal.networks.programs.exporting import export
from shoal.networks.saving import load, save
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

"""The experiments of Ling 2024, with exact kernels beside the paper's estimates."""

from shoal.experiments.ling2024.accuracies import Accuracies
from shoal.experiments.ling2024.densities import CKSpectra, NTKSpectra
from shoal.experiments.ling2024.design_densities import DesignImageSpectra, DesignSpectra
from shoal.experiments.ling2024.designs import DesignError
from shoal.experiments.ling2024.errors import CKError, NTKError
from shoal.experiments.ling2024.images import CKImageSpectra, NTKImageSpectra
from shoal.experiments.ling2024.times import Times

__all__ = [
    "Accuracies",
    "CKError",
    "CKImageSpectra",
    "CKSpectra",
    "DesignError",
    "DesignImageSpectra",
    "DesignSpectra",
    "NTKError",
    "NTKImageSpectra",
    "NTKSpectra",
    "Times",
]

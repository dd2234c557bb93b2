"""Datasets: official image files, CSV and NumPy files, and their preprocessing."""

from shoal.data.dataset import Dataset
from shoal.data.official import load
from shoal.data.preprocessing import (
    one_hot,
    select_classes,
    signed_labels,
    standardize,
    subsample,
    unit_norm,
)
from shoal.data.tables import load_file, read_csv, read_numpy

__all__ = [
    "Dataset",
    "load",
    "load_file",
    "one_hot",
    "read_csv",
    "read_numpy",
    "select_classes",
    "signed_labels",
    "standardize",
    "subsample",
    "unit_norm",
]

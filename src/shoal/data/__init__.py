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
from shoal.data.tables import read_csv, read_numpy

__all__ = [
    "Dataset",
    "load",
    "one_hot",
    "read_csv",
    "read_numpy",
    "select_classes",
    "signed_labels",
    "standardize",
    "subsample",
    "unit_norm",
]

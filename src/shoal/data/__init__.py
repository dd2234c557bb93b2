"""Datasets: official image files, CSV and NumPy files, and their preprocessing."""

from shoal.data.dataset import Dataset
from shoal.data.official import load
from shoal.data.preprocessing import select_classes, standardize, subsample
from shoal.data.tables import read_csv, read_numpy

__all__ = [
    "Dataset",
    "load",
    "read_csv",
    "read_numpy",
    "select_classes",
    "standardize",
    "subsample",
]

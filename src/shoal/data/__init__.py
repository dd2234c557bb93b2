"""Datasets: official image files, CSV and NumPy files."""

from shoal.data.arrays import read_numpy
from shoal.data.dataset import Dataset, standardize
from shoal.data.official import load
from shoal.data.tables import read_csv

__all__ = ["Dataset", "load", "read_csv", "read_numpy", "standardize"]

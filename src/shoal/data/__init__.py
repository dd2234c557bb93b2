"""Data: readers of official files, samplers, and the papers' preprocessings."""

from shoal.data.csv_files import read_csv
from shoal.data.dataset import Dataset
from shoal.data.geometry import center, flatten, perturb_parallel, scale_norm, unit_norm
from shoal.data.images import resize, to_gray
from shoal.data.labels import one_hot, select_classes, signed_labels, subsample
from shoal.data.load import load
from shoal.data.numpy_files import read_numpy
from shoal.data.official import UnofficialDataWarning
from shoal.data.synthetic import sphere, two_gaussians

__all__ = [
    "Dataset",
    "UnofficialDataWarning",
    "center",
    "flatten",
    "load",
    "one_hot",
    "perturb_parallel",
    "read_csv",
    "read_numpy",
    "resize",
    "scale_norm",
    "select_classes",
    "signed_labels",
    "sphere",
    "subsample",
    "to_gray",
    "two_gaussians",
    "unit_norm",
]

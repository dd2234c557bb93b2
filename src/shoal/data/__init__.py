"""Data: readers of official files and of one's own, samplers, and the papers' preprocessings."""

from shoal.data.dataset import Dataset
from shoal.data.deformations import DeformedImages
from shoal.data.files import UnofficialDataWarning
from shoal.data.loading import load, load_data
from shoal.data.readers.csv_files import read_csv
from shoal.data.readers.numpy_files import read_numpy
from shoal.data.synthetic import sphere, two_gaussians
from shoal.data.transforms.geometry import center, flatten, perturb_parallel, scale_norm, unit_norm
from shoal.data.transforms.images import resize, scale_pixels, to_gray
from shoal.data.transforms.labels import one_hot, select_classes, signed_labels, subsample

__all__ = [
    "Dataset",
    "DeformedImages",
    "UnofficialDataWarning",
    "center",
    "flatten",
    "load",
    "load_data",
    "one_hot",
    "perturb_parallel",
    "read_csv",
    "read_numpy",
    "resize",
    "scale_norm",
    "scale_pixels",
    "select_classes",
    "signed_labels",
    "sphere",
    "subsample",
    "to_gray",
    "two_gaussians",
    "unit_norm",
]

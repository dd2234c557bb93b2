"""SVHN, the cropped digits, from the official MATLAB files."""

import io
import os

import numpy as np
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import check_official, read_content
from shoal.data.folders import Files, find
from shoal.data.readers.arrays import image_dataset
from shoal.data.readers.registry import reads

_FILES = Files("SVHN", ("svhn", "SVHN"), "http://ufldl.stanford.edu/housenumbers/")
_DIGESTS = {
    "train": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
    "test": "md5:eb5a983be6a315427106f1b164d9cef3",
}


@reads("svhn")
def read_svhn(split: str, folder: str | os.PathLike[str] | None) -> Dataset:
    """SVHN; see :func:`shoal.data.load`. The label 10, by which the files mean 0, becomes 0."""
    (path,) = find(_FILES, [(f"{split}_32x32.mat",)], folder)
    content = read_content(path)
    check_official(path, content, _DIGESTS[split], instead="np.savez writes files that are")
    images, labels = _arrays(content)
    return image_dataset(
        images.transpose(3, 2, 0, 1),  # height, width, channels, n -> n, channels, height, width
        labels,
        name="svhn",
        classes=tuple("0123456789"),
        source=str(path),
    )


def _arrays(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels and labels, by SciPy, whose compiled reader a damaged file can crash."""
    from scipy.io import loadmat

    found = loadmat(io.BytesIO(content), variable_names=["X", "y"])
    return np.asarray(found["X"], np.uint8), (found["y"].reshape(-1) % 10).astype(np.uint8)

"""How large the arrays in NumPy files claim to be, before memory is taken for them."""

import math
import zipfile
from typing import IO

from numpy.lib import format as npy

from shoal.data.files import expansion_limit

__all__ = ["check_size"]

_LIMIT = 2**35  # bytes that an archive may expand to


def check_size(file: IO[bytes]) -> None:
    """Check that the arrays of an ``.npy`` or ``.npz`` file are as large as their headers say.

    Args:
        file: The file, at its beginning, where it is left.

    Raises:
        ValueError: If a header claims more than there is, or an archive expands beyond all measure.
    """
    size = file.seek(0, 2)
    file.seek(0)
    if file.read(4) == b"PK\3\4":
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            limit = min(_LIMIT, expansion_limit(size))
            if sum(member.file_size for member in members) > limit:
                raise ValueError(
                    f"an archive that expands from {size} to more than {limit} bytes; "
                    "np.savez writes one that does not"
                )
            for member in members:
                with archive.open(member) as stream:
                    _check_array(stream, member.file_size)
    else:
        file.seek(0)
        _check_array(file, size)
    file.seek(0)


def _check_array(stream: IO[bytes], size: int) -> None:
    if stream.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        return  # whoever reads it says so
    version = stream.read(2)
    read = {b"\1\0": npy.read_array_header_1_0, b"\2\0": npy.read_array_header_2_0}.get(version)
    if read is None:
        return
    shape, _, dtype = read(stream)
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (wanted > size and not dtype.hasobject):
        raise ValueError(f"an array of shape {shape}, {wanted} bytes, in a file of {size} bytes")

"""Where results come from: versions and hardware."""

import hashlib
import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.checks import device_of
from shoal.core.version import __version__


def versions() -> dict[str, str]:
    """The versions of what the numbers depend on."""
    return {"shoal": _own_version(), "torch": str(torch.__version__), "numpy": np.__version__}


@lru_cache(maxsize=1)
def _own_version() -> str:
    """The version of shoal; between releases with a hash of its code, which then may change."""
    if "dev" not in __version__:
        return __version__
    package = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        if place.parts[0] not in ("cli", "report"):  # they compute nothing that is kept
            found.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    return f"{__version__}+{found.hexdigest()[:12]}"


def all_versions() -> dict[str, str]:
    """These, and those of Python and of what else was at hand."""
    found = versions() | {"python": platform.python_version()}
    for package in ("scipy", "matplotlib"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine, in a few words."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _processor() -> str:
    """The model of the CPU where Linux tells it, and what Python knows elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def resolve_device(name: str) -> torch.device:
    """The device of a name; ``"auto"`` is the GPU where there is one.

    Raises:
        ValueError: If there is no such device.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = device_of("device", name, "auto, cpu, cuda or cuda:N")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    return device

"""What `import shoal` gives, and when."""

import subprocess
import sys

import pytest

import shoal


def test_names_are_imported_when_they_are_asked_for() -> None:
    script = """
import sys, shoal
assert "shoal.kernels" not in sys.modules
shoal.kernel
assert "shoal.kernels" in sys.modules and "shoal.training" not in sys.modules
from shoal import *
assert set(shoal.__all__) <= set(dir(shoal)) and train is shoal.train
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_packages_are_attributes_and_others_are_not_there() -> None:
    assert shoal.designs.feasibility.__module__ == "shoal.designs.feasibility"
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'nothing'"):
        shoal.nothing  # noqa: B018

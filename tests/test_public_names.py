"""What `import shoal` gives, and when."""

import ast
import subprocess
import sys
from pathlib import Path

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


def test_the_top_has_at_most_sixty_names() -> None:
    assert len(set(shoal.__all__)) == len(shoal.__all__) <= 60


def test_packages_are_attributes_and_others_are_not_there() -> None:
    assert shoal.designs.kernel_series.__module__ == "shoal.designs.series"
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'nothing'"):
        shoal.nothing  # noqa: B018


def test_functions_with_modules_of_their_names_come_from_these() -> None:
    source = Path(shoal.__file__)
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = source.parents[1] / Path(*node.module.split("."))
            hidden = [a.name for a in node.names if (folder / f"{a.name}.py").exists()]
            assert not hidden, f"mypy takes {hidden} of {node.module} for modules"

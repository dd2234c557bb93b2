"""Private parts of PyTorch are used in one file, which says so if one is missing."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.core import torch_compat

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shoal"
DOOR = SOURCE / "core" / "torch_compat.py"
# of tensors, modules, storages, operations and nodes, whatever they are called in the code
ATTRIBUTES = {
    "_backward_hooks",
    "_backward_pre_hooks",
    "_buffers",
    "_compiled_call_impl",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_modules",
    "_parameters",
    "_sequence_nr",
    "_version",
}


def is_private(name: str) -> bool:
    """Whether a part of a dotted name begins with an underscore, and is not special."""
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name in the file, and the full one, of all that is imported from PyTorch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(a.asname or a.name.split(".")[0], a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(a.asname or a.name, f"{node.module}.{a.name}") for a in node.names]
        else:
            continue
        yield from (pair for pair in names if pair[1].split(".")[0] == "torch")


def private_names(code: str) -> list[str]:
    """The private names of PyTorch that some code uses."""
    tree = ast.parse(code)
    known = dict(imported(tree))
    found = [name for name in known.values() if is_private(name)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        name = ast.unparse(node)
        of_torch = name.split(".")[0] in known and is_private(node.attr)
        if of_torch or (node.attr in ATTRIBUTES and not name.startswith("self.")):
            found.append(name)
    return found


def test_no_other_file_uses_private_names() -> None:
    files = [path for path in sorted(SOURCE.rglob("*.py")) if path != DOOR]
    found = {str(path): private_names(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
    assert private_names(DOOR.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch._C._functorch, "is_functorch_wrapped_tensor"),
        (torch.autograd, "_get_sequence_nr"),
    ],
)
def test_a_missing_name_is_said(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    runpy.run_path(str(DOOR))
    monkeypatch.delattr(owner, name)
    with pytest.raises(ImportError) as caught:
        runpy.run_path(str(DOOR))
    for part in (name, torch.__version__, *torch_compat.TESTED, "install one of these"):
        assert part in str(caught.value)


def test_the_tested_versions_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| 3\.\d+\.\d+ \| (\d+)\.(\d+)\.", page, flags=re.MULTILINE)
    versions = sorted((int(major), int(minor)) for major, minor in rows)
    assert tuple("{}.{}".format(*versions[i]) for i in (0, -1)) == torch_compat.TESTED

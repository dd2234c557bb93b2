"""Dependencies between the packages of shoal run one way."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "shoal"

# package -> packages it may import, besides core; what those may import, it may import too
LIBRARY: dict[str, set[str]] = {
    "core": set(),
    "mixtures": set(),
    "data": set(),
    "linalg": set(),
    "activations": set(),
    "approximation": set(),
    "gaussian": {"activations", "approximation", "linalg"},
    "architectures": {"gaussian"},
    "equilibrium": {"architectures"},
    "kernels": {"architectures"},
    "equivalents": {"kernels", "mixtures"},
    "spectra": {"equivalents"},
    # finite networks and their limits
    "networks": {"equilibrium", "kernels"},
    "designs": {"equivalents", "networks"},
    "learning": {"equivalents", "networks"},
    "adapters": {"learning"},
    "training": {"learning"},
    "certificates": {"training"},
    "diagnosis": {"adapters", "networks"},
    "distillation": {"designs", "diagnosis"},
}

# These may import the whole library, and shoal itself; no part of the library imports them.
APPLICATIONS: dict[str, set[str]] = {
    "app": set(),
    "__main__": {"app"},
}


def order() -> dict[str, set[str]]:
    """The two tables and shoal/__init__.py, here called "shoal", as one table."""
    below = {n: allowed | {"core"} - {n} for n, allowed in LIBRARY.items()}
    below["shoal"] = set(LIBRARY)
    return below | {name: allowed | {"shoal"} for name, allowed in APPLICATIONS.items()}


def closure(below: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Each package with all it may import, directly or through others; a cycle is an error."""
    result: dict[str, set[str]] = {}
    for name in TopologicalSorter(below).static_order():
        result[name] = below[name].union(*(result[other] for other in below[name]))
    return result


def package_of(parts: tuple[str, ...]) -> str:
    """The package that a dotted name, split at its dots and without "shoal", belongs to."""
    return parts[0] if parts else "shoal"


def imports(tree: ast.Module, parents: tuple[str, ...], packages: set[str]) -> Iterator[str]:
    """The packages of shoal imported by a module that lies in ``parents``, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # parents of ("shoal", "gaussian") and level 2 make the anchor ("shoal",)
            anchor = parents[: len(parents) - node.level + 1] if node.level else ()
            origin = anchor + tuple(node.module.split(".") if node.module else ())
            names = [(*origin, alias.name) for alias in node.names]
            if origin == ("shoal",):  # `from shoal import X`, where X need not be a package
                names = [name if name[1] in packages else origin for name in names]
        else:
            continue
        yield from (package_of(name[1:]) for name in names if name[0] == "shoal")


def violations(source: Path) -> list[str]:
    """What is wrong with the dependencies of the tree at ``source``, one sentence for each."""
    allowed = closure(order())
    present = {
        path.stem
        for path in source.iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))
    } - {"__init__"}
    found = [
        f"shoal.{name} is in no table of {Path(__file__).name}: "
        "add it to LIBRARY or APPLICATIONS with the packages it stands on"
        for name in sorted(present - set(allowed))
    ]
    for path in sorted(source.rglob("*.py")):
        module = path.relative_to(source).with_suffix("").parts
        package = package_of(module if module != ("__init__",) else ())
        if package not in allowed:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reached = set(imports(tree, ("shoal", *module[:-1]), present | set(allowed)))
        found += [
            f"{path.relative_to(source).as_posix()}: {package} must not import {other}"
            for other in sorted(reached - allowed[package] - {package})
        ]
    return found


def test_the_tree_keeps_to_the_order() -> None:
    assert violations(SOURCE) == []


def test_nothing_in_the_library_stands_on_an_application() -> None:
    allowed = closure(order())
    assert all(allowed[name].isdisjoint(APPLICATIONS) for name in [*LIBRARY, "shoal"])


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("linalg", {"activations", "approximation", "gaussian", "shoal"}),
        ("activations", {"approximation", "gaussian", "shoal"}),
        ("approximation", {"activations", "gaussian", "shoal"}),
        ("equilibrium", {"kernels", "equivalents", "designs"}),
        ("equivalents", {"equilibrium", "networks"}),
        ("data", {"activations", "kernels"}),
        ("mixtures", {"data", "activations", "kernels"}),
    ],
)
def test_branches_stay_apart(package: str, others: set[str]) -> None:
    assert closure(order())[package].isdisjoint(others)

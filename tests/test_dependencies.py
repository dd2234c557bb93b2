"""Dependencies between the packages of shoal run one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "shoal"

# From the ground up: a package may import those before it.
ROOMS = (
    *("core", "numerics", "activations", "gaussian", "architectures", "kernels", "asymptotics"),
    *("equilibrium", "networks", "designs", "learning", "training", "certificates"),
    *("loops", "adapters", "data"),
    *("shoal", "app", "__main__"),  # "shoal" is shoal/__init__.py
)
APART = {  # packages that stand on the same ground and do not know each other
    "activations": {"numerics"},
    "equilibrium": {"kernels", "asymptotics"},
    "data": set(ROOMS[1:15]),
}


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
    present = {
        path.stem
        for path in source.iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))
    } - {"__init__"}
    errors = [f"shoal.{name} is not in ROOMS" for name in sorted(present - set(ROOMS))]
    for path in sorted(source.rglob("*.py")):
        module = path.relative_to(source).with_suffix("").parts
        package = package_of(module if module != ("__init__",) else ())
        if package not in ROOMS:
            continue
        allowed = {*ROOMS[: ROOMS.index(package) + 1]} - APART.get(package, set())
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reached = set(imports(tree, ("shoal", *module[:-1]), present | set(ROOMS)))
        errors += [
            f"{path.relative_to(source).as_posix()}: {package} must not import {other}"
            for other in sorted(reached - allowed)
        ]
    return errors


def test_the_tree_keeps_to_the_order() -> None:
    assert violations(SOURCE) == []

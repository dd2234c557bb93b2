"""What the documentation shows is what happens, and every public name is documented."""

import doctest
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from blocks import Printed, page_blocks, run_blocks

import shoal

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = ["shoal"] + [
    found.name
    for found in pkgutil.walk_packages(shoal.__path__, "shoal.")
    if not found.name.endswith("__main__")
]
# What users import from: shoal, its packages, and its modules that are in no package.
PUBLIC = [name for name in MODULES if name.count(".") <= 1]

# modules and pages that need what is not everywhere
NEEDS = {
    "docs/coming-from-gpytorch.md": "gpytorch",
    "shoal.adapters": "gpytorch",
    "shoal.adapters.gpytorch_kernel": "gpytorch",
    "shoal.adapters.sklearn_estimators": "sklearn",
    "shoal.adapters.sklearn_kernel": "sklearn",
    "shoal.data.official": "sklearn",
    "shoal.kernels.gpu.half_precision": "triton",
    "shoal.kernels.gpu.pixels": "triton",
    "shoal.kernels.gpu.tiles": "triton",
    "shoal.kernels.images.loops": "numba",
}


def skip_unless_there(name: str) -> None:
    """Skip a test of a module or page where it needs what is not installed."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} needs {NEEDS[name]}")


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The namespace of a module that Python knows, so that a page can define classes."""
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module.__dict__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_formula_that_goes_on_in_a_new_line_becomes_a_list(page: Path) -> None:
    """Lists are made with - or numbers; a line that begins with + is meant as a sum."""
    prose = page.read_text(encoding="utf-8").split("```")[::2]
    assert [line for part in prose for line in part.splitlines() if line.startswith("+ ")] == []


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_of_the_pages(page: Path, namespace: dict[str, object]) -> None:
    skip_unless_there(page.relative_to(ROOT).as_posix())
    run_blocks(page_blocks(page), page, namespace)


LONG = (
    *("sklearn_estimators", "certificates.width", "loops.distill"),
    *(f"designs.{name}" for name in ("design", "result", "sphere")),
)


@pytest.mark.thorough(*LONG)
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_docstrings(name: str) -> None:
    skip_unless_there(name)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(Printed(), optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def functions(owner: ModuleType | type, names: list[str]) -> Iterator[tuple[str, Callable]]:
    """The public functions among ``names`` of ``owner``, and the methods of its classes."""
    for name in names:
        # modules may import a name when it is asked for
        read = getattr if inspect.ismodule(owner) else inspect.getattr_static
        value = read(owner, name)
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if inspect.isclass(value) and value.__module__.startswith("shoal"):
            methods = [key for key in vars(value) if not key.startswith("_")]
            yield from ((f"{name}.{method}", f) for method, f in functions(value, methods))
        elif inspect.isfunction(value):
            yield name, value


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_exist_and_are_documented(package: str) -> None:
    skip_unless_there(package)
    module = importlib.import_module(package)
    assert inspect.getdoc(module)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            documentation = vars(value)["__doc__"]  # its own, not its parent's
            generated = f"{value.__name__}("  # by dataclass and NamedTuple
            assert documentation, name
            assert not documentation.startswith(generated), name
        elif inspect.isroutine(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), name


@pytest.mark.parametrize("package", PUBLIC)
def test_public_functions_are_annotated(package: str) -> None:
    skip_unless_there(package)
    module = importlib.import_module(package)
    for name, function in functions(module, module.__all__):
        signature = inspect.signature(function)
        assert signature.return_annotation is not signature.empty, name
        for parameter in signature.parameters.values():
            annotated = parameter.annotation is not parameter.empty
            assert annotated or parameter.name in {"self", "cls"}, f"{name}: {parameter.name}"

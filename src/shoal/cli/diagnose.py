"""``shoal diagnose``: does this trained model settle, how deep is it, what does it cost?"""

import pickle
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

import shoal
from shoal.cli.command import Example, command
from shoal.cli.errors import note
from shoal.cli.options import (
    Debug,
    Json,
    Save,
    Threads,
    Verbose,
    check_count,
    check_output,
    limited,
)
from shoal.cli.output import command_line, console, emit, working
from shoal.data import load_data
from shoal.diagnosis.page import diagnosis_page
from shoal.diagnosis.words import sections_of
from shoal.report.saving import save_results

__all__ = ["NO_EQUILIBRIUM", "diagnose"]

NO_EQUILIBRIUM = 3
_SAMPLES = 64
_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights
_UNREADABLE = (  # what torch.load raises of files that are none of its own, or of other classes
    *(pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, LookupError, ValueError),
    *(AttributeError, ImportError, TypeError),
)
_MARKS = {None: ("  ", ""), True: ("✓ ", "green"), False: ("✗ ", "red")}


@command(
    "Does this trained model settle, and do I need its loop?",
    place=2,
    writes="report.html (the page for people), diagnosis.json, diagnosis.png and .svg",
    exits="1 failed; 2 bad input; 3 of some samples no equilibrium was found",
    examples=(
        Example("a network of shoal.save on digits", "shoal diagnose net.safetensors"),
        Example(
            "your model: weights.pt is the state dictionary of what net.py's Model() makes",
            "shoal diagnose weights.pt --model net.py:Model --data x.npy --output diagnosis",
        ),
        Example(
            "how far training moved it from its kernel, for machines",
            "shoal diagnose net.safetensors --reference initial.safetensors --json",
        ),
    ),
    takes_data=True,
    panels={
        "Model": "model trust reference",
        "Data": "data n",
        "Looking": "tolerance starts steps",
    },
)
def diagnose(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A network of shoal.save, or with --model the weights of a model; see below.",
        ),
    ],
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Inputs, as for analyze, taken as they are.")
    ] = "digits",
    n: Annotated[int, typer.Option("--n", "-n", help="How many samples, at most.")] = _SAMPLES,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH.py:FACTORY",
            help="What makes the model whose state dictionary FILE is. Runs PATH.py.",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="FILE is a whole module, pickled. Runs whatever code is in it."
        ),
    ] = False,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="WEIGHTS", help="Those before training, to compare tangent kernels."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Within which an output is as good as its limit.")
    ] = 0.01,
    starts: Annotated[int, typer.Option(help="From how many states to look.")] = 4,
    steps: Annotated[int, typer.Option(help="Most applications of the cell.")] = 500,
    threads: Threads = 1,
    output: Save = None,
    json: Json = False,
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Diagnose a trained model with an equilibrium inside: do I need this DEQ?

    Does its iteration settle, cycle or diverge; after how many applications is the output what it
    will be; is the equilibrium unique; what do solvers and gradients cost, and how far off are
    they. The exit code is 3 if of some samples no equilibrium was found. No code is run of FILE,
    unless --trust says so.
    """
    check_count("--threads", threads)
    check_output(output)
    net = _model(file, model, trust=trust)
    before = None if reference is None else _state("--reference", reference)
    x = _inputs(data, n, net)
    with limited(threads), working("Diagnosing", quiet=json):
        found = shoal.diagnose(
            net, None, x, tolerance=tolerance, starts=starts, steps=steps, reference=before
        )
    record = {"shoal": shoal.__version__, "file": str(file), "data": data, **found.document()}
    files: list[Path] = []
    if output is not None:
        files = save_results(
            output,
            pages={"report.html": diagnosis_page(found, command=command_line())},
            documents={"diagnosis.json": record},
            figures={"diagnosis": found.plot()},
        )
    if json:
        emit(record)
    else:
        _show(found, files)
    if found.solved < found.samples:
        missing = found.samples - found.solved
        note(f"No equilibrium was found for {missing} of {found.samples} samples.")
        raise typer.Exit(NO_EQUILIBRIUM)


def _model(file: Path, factory: str | None, *, trust: bool) -> Module:
    """The model in a file, or of a factory with the weights in it."""
    if not file.is_file():
        raise ValueError(f"FILE must be a file, got {str(file)!r}")
    if factory is not None:
        if trust:
            raise ValueError("--trust must be left out with --model: weights need none")
        net, weights = _made(factory), _state("FILE", file)
        try:
            net.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"FILE must hold the weights of {factory}: {error}") from None
        return net
    return _whole(file) if trust else _saved(file)


def _whole(file: Path) -> Module:
    """The module that was pickled into a file, with all its code."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=False)
    except _UNREADABLE as error:
        raise ValueError(
            f"FILE must hold a whole module with --trust, whose classes can be imported, got "
            f"{str(file)!r}: {error}; where a class is not found, save model.state_dict() and give "
            "--model PATH.py:FACTORY"
        ) from None
    if not isinstance(found, Module):
        kind = type(found).__name__
        raise TypeError(f"FILE must hold a whole module with --trust, got a {kind}")
    return found


def _saved(file: Path) -> Module:
    """The network of ``shoal.save`` in a file."""
    try:
        return shoal.load(file, device="cpu", on_failure="status")
    except ValueError as error:
        raise ValueError(
            f"FILE must be a network of shoal.save ({error}); for the weights of another model "
            "give --model PATH.py:FACTORY, for a whole pickled module --trust"
        ) from None


def _made(factory: str) -> Module:
    """The model that a function of a file returns; the file is run."""
    path, _, name = factory.rpartition(":")
    place = Path(path)
    if not path or not place.is_file():
        raise ValueError(
            f"--model must be PATH.py:FACTORY of a file that is there, got {factory!r}"
        )
    spec = spec_from_file_location(place.stem, place)
    if spec is None or spec.loader is None:
        raise ValueError(f"--model must name a Python file, got {path!r}")
    module = module_from_spec(spec)
    sys.modules[place.stem] = module  # so that its classes are found
    sys.path.insert(0, str(place.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    make = getattr(module, name, None)
    if not callable(make):
        raise TypeError(f"--model must name a function or class of {path}, got {name!r}")
    net = make()
    if not isinstance(net, Module):
        raise TypeError(f"--model must make a torch.nn.Module, got a {type(net).__name__}")
    return net


def _state(option: str, file: Path) -> Mapping[str, Tensor]:
    """A state dictionary, of which no code is run."""
    if not file.is_file():
        raise ValueError(f"{option} must be a file, got {str(file)!r}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"{option} must hold a state dictionary, as of torch.save(model.state_dict(), ...), "
            f"got {str(file)!r}: {why}"
        ) from None
    if isinstance(found, Mapping):
        nested = [found[key] for key in _NESTED if isinstance(found.get(key), Mapping)]
        found = nested[0] if nested else found
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return dict(found)
    raise ValueError(f"{option} must hold a state dictionary, got a {type(found).__name__}")


def _inputs(data: str, n: int, net: Module) -> Tensor:
    """Samples, in the dtype of the model; those of an .npy file may be of any shape."""
    check_count("-n", n)
    dtype = next((p.dtype for p in net.parameters()), torch.get_default_dtype())
    if data.endswith(".npy"):
        array = np.load(data, mmap_mode="r", allow_pickle=False)
        if array.ndim < 2:
            raise ValueError(f"--data must have samples and features, got shape {array.shape}")
        x = torch.from_numpy(np.array(array[:n]))
        return x.to(dtype) if x.is_floating_point() else x
    loaded = load_data(data, dtype=dtype, device=torch.device("cpu"), most=n, prepared=False)
    return loaded.x


def _show(found: shoal.Diagnosis, files: list[Path]) -> None:
    title = f"{found.model}: {found.samples} samples, a state of size {found.size}"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("value", "meaning"):
        table.add_column(name, overflow="fold")
    for section in sections_of(found):
        table.add_section()
        table.add_row(Text(section.title, "bold"), "", "")
        for row in section.rows:
            table.add_row(Text.assemble(_MARKS[row.holds], row.quantity), row.value, row.meaning)
    console().print(table)
    if files:
        console().print(f"Written: {', '.join(map(str, files))}", soft_wrap=True)
    else:
        note("--output FOLDER saves the report, the figure and the numbers.")

"""Trained models in files, samples for them, and ``shoal analyze --model FILE``."""

import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

import shoal
from shoal.app import output as out
from shoal.app.inputs import load_inputs
from shoal.app.sections import Findings
from shoal.core.words import Part, Row, memory_words
from shoal.loops import Diagnosis, Distillation
from shoal.loops.distillation import MeasuredModel

NO_EQUILIBRIUM = 3
_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights
_DIAGNOSED, _DISTILLED = 64, 4000  # samples; tens of them suffice for a diagnosis


def load_model(file: Path, code: str | None) -> Module:
    """Load a model from a file, or make it by a factory and load the weights of the file.

    Args:
        file: The file.
        code: ``PATH.py:FACTORY``, the factory of the model; that file is run.
    """
    if not file.is_file():
        raise ValueError(f"the model must be a file, got {str(file)!r}")
    if code is not None:
        net, weights = _make_model(code), load_weights(file)
        try:
            net.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{file} must hold the weights of {code}: {error}") from None
        return net.eval()
    try:
        return shoal.load(file, device="cpu", on_failure="status")
    except ValueError as error:
        raise ValueError(
            f"the model must be a network of shoal.save ({error}); for the weights of another "
            "model give --code PATH.py:FACTORY"
        ) from None


def _make_model(code: str) -> Module:
    """The model that a function of a file returns; the file is run."""
    path, _, name = code.rpartition(":")
    place = Path(path)
    spec = spec_from_file_location(place.stem, place) if path and place.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"--code must be PATH.py:FACTORY of a file that exists, got {code!r}")
    module = module_from_spec(spec)
    sys.modules[place.stem] = module  # so that its classes are found
    sys.path.insert(0, str(place.resolve().parent))
    try:
        spec.loader.exec_module(module)
        net = getattr(module, name)()
    except (Exception, SystemExit) as error:  # code of the user's, which can fail in any way
        raise ValueError(f"{code} does not run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(net, Module):
        raise TypeError(f"{code} must make a torch.nn.Module, got a {type(net).__name__}")
    return net


def load_weights(file: Path) -> Mapping[str, Tensor]:
    """A state dictionary, read without running any code."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"{file} must hold a state dictionary, as of torch.save(model.state_dict(), ...): {why}"
        ) from None
    if isinstance(content, Mapping):
        nested = [content[key] for key in _NESTED if isinstance(content.get(key), Mapping)]
        content = nested[0] if nested else content
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return dict(content)
    raise ValueError(f"{file} must hold a state dictionary, got a {type(content).__name__}")


def load_samples(
    net: Module, data: str, n: int, label: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Samples in the dtype of a model, and labels; those of an .npy file may be of any shape.

    Args:
        net: The model.
        data: A name or a file.
        n: The largest number of samples.
        label: The labels; an .npy file beside an .npy file.
    """
    dtype = next((p.dtype for p in net.parameters()), torch.get_default_dtype())
    if data.endswith(".npy"):
        x, y = _rows(data, dtype), None if label is None else _rows(label, dtype)
        if y is not None and len(y) != len(x):
            raise ValueError(f"{label} must have one entry per sample, {len(x)}, got {len(y)}")
        x, y = x[:n], None if y is None else y[:n]
    else:
        loaded = load_inputs(data, dtype=dtype, most=n, prepared=False, label=label)
        x, y = loaded.x, loaded.y
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            net(x)
    except shoal.ConvergenceError:
        pass  # the diagnosis reports it
    except Exception as error:  # code of the user's, which can fail in any way
        kind = f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
        raise ValueError(
            f"{data} must have samples that {type(net).__name__} takes, got {kind}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return x, y


def _rows(path: str, dtype: torch.dtype) -> Tensor:
    """The rows of an .npy file; integers stay integers."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"DATA must be an intact .npy file, got {path!r}: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or not array.size:
        raise ValueError(f"DATA must be an .npy file of numbers, got {path!r}")
    if not array.ndim:
        raise ValueError(f"DATA must have samples in its first dimension, got a number in {path!r}")
    rows = torch.from_numpy(np.array(array))
    if not rows.isfinite().all():
        raise ValueError(f"DATA must have finite numbers, got NaN or infinity in {path!r}")
    return rows.to(dtype) if rows.is_floating_point() else rows


def analyze_model(
    file: Path,
    code: str | None,
    data: str,
    label: str | None,
    n: int | None,
    seed: int,
    *,
    output: Path | None,
    json: bool,
) -> None:
    """Diagnose a trained model of a file, try replacements, and report both."""
    net = load_model(file, code)
    x, y = load_samples(net, data, _DISTILLED if n is None else n, label)
    out.prepare(output)
    with out.working("Diagnosing") as show:
        diagnosis = shoal.diagnose(net, x[:_DIAGNOSED], y=None if y is None else y[:_DIAGNOSED])
        show("Trying replacements")
        twin = shoal.distill(net, x, y, seed=seed)
    rows = tuple(_answers(diagnosis, twin))
    record = {
        "shoal": shoal.__version__, "file": str(file), "data": data,
        "answer": {row.quantity: row.value for row in rows},
        "diagnosis": diagnosis.document(), "distillation": twin.document(),
    }  # fmt: skip
    files = []
    if output is not None:
        parts = [_replacements(twin), *diagnosis.parts()]
        page = out.render_page(
            f"Analysis of {diagnosis.model}",
            f"{twin.verdict} Diagnosed on {len(diagnosis.samples)} samples, distilled on "
            f"{twin.trained_on}.",
            [
                ("answer", "Do I need this loop?", Findings(rows)),
                *((part.name, part.title, part) for part in parts),
            ],
            device=x.device,
        )
        contents = {"report.html": page, "analysis.json": record}
        figures = {"diagnosis": diagnosis.plot(), "replacements": twin.plot()}
        files = out.save(output, contents | figures)

    def show_all() -> None:
        out.show_rows(f"{diagnosis.model}: do I need this loop?", rows)
        out.say(str(twin))
        out.say(diagnosis.verdict)
        out.note(
            "Held-out samples are a quarter of the samples. A model that was trained on them "
            "remembers them, and its replacements do not: give samples that it has not seen."
        )

    out.conclude(record, show_all, files, json=json)
    require_equilibria(diagnosis)


def require_equilibria(diagnosis: Diagnosis) -> None:
    """Exit with a message if a model that solves found no equilibrium for some samples."""
    samples = len(diagnosis.samples)
    solved = samples if diagnosis.equilibrium is None else diagnosis.equilibrium.solved
    if diagnosis.loop.solves and solved < samples:
        out.note(f"No equilibrium was found for {samples - solved} of {samples} samples.")
        raise typer.Exit(NO_EQUILIBRIUM)


def _answers(diagnosis: Diagnosis, twin: Distillation) -> Iterator[Row]:
    """Answers to a practitioner's questions, the most urgent first."""
    yield Row("replace it?", "no" if twin.keep else "yes", twin.verdict)
    named = {candidate.name: candidate for candidate in twin.candidates}
    plain = named.get("plain layer, on labels") or named.get("plain layer, on outputs")
    if plain is not None:
        near = "yes" if plain.loss <= twin.tolerance else "no"
        yield Row("does a plain layer do?", near, f"{plain.name}: {twin.lost(plain)}")
    yield Row("how many iterations?", str(diagnosis.stop_at or "unknown"), diagnosis.verdict)
    yield Row(
        "does the loop matter?", diagnosis.loop_matters, f"running on: {diagnosis.running_on}"
    )


def _replacements(twin: Distillation) -> Part:
    """The verdict, every candidate beside the original, and the frontier."""
    rows = [Row("verdict", "keep it" if twin.keep else "replace it", twin.verdict)]
    rows += [_row(model) for model in (twin.original, *twin.candidates)]
    notes = tuple(f"{name}: not tried, {reason}." for name, reason in twin.skipped.items())
    return Part("replacements", "What may replace it", tuple(rows), figure=twin.plot(), notes=notes)


def _row(one: MeasuredModel) -> Row:
    words = [
        f"agrees in {one.scores.agreement:.1%} of the decisions",
        f"outputs off by {one.scores.output_error:.1%}",
        f"{memory_words(one.parameter_bytes)} of parameters",
        f"{memory_words(one.peak_bytes)} at the peak of a batch",
    ]
    score = "" if one.scores.accuracy is None else f"{one.scores.accuracy:.2%}, "
    return Row(one.name, f"{score}{1e3 * one.seconds:.3g} ms", ", ".join(words))

"""The decisions that an output stands for, and their comparison."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.core.checks import instance, one_of, real
from shoal.core.torch_compat import pytree

Kind = Literal["class", "sign", "value", "label"]
Decision = str | Callable[[Any], Tensor]

IGNORED = -100  # the label that PyTorch's losses leave out
UNDECIDED = -1  # the decision where the largest score is not finite; equal to no other


@dataclass(frozen=True, eq=False)
class Decisions:
    """How an output is read as decisions; samples come first in everything.

    Attributes:
        kind: ``"class"``, the largest of several scores; ``"sign"`` of each number; ``"value"``,
            all numbers of a sample together; ``"label"``, integers of a custom function.
        axis: Dimension of the classes in the output; the last one, unless labels imply another.
        threshold: Threshold of a sign.
        tolerance: Relative distance up to which two values agree.
        scale: Size of the differences between values of different samples, for ``tolerance``.
        custom: A function of the output that returns the decisions, or numbers.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[2.0, 1.0], [0.0, 3.0]]])
        >>> decisions = decisions_of(logits)
        >>> decisions(logits)
        tensor([[0, 1]])
        >>> decisions.agree(logits, -logits)
        tensor([[False, False]])
    """

    kind: Kind
    axis: int = -1
    threshold: float = 0.0
    tolerance: float = 0.01
    scale: float = 1.0
    custom: Callable[[Any], Tensor] | None = None

    def scores(self, output: Any) -> Tensor:
        """Return the numbers behind the decisions; shape (samples, decisions, numbers).

        The numbers of a class are the scores of all classes, the number of a sign is one, and those
        of a value are all numbers of a sample.
        """
        scores = tensor_of(output) if self.custom is None else self.custom(output)
        samples = len(scores)
        if self.kind == "class":
            scores = scores.movedim(self.axis, -1)
            return scores.reshape(samples, -1, scores.shape[-1])
        return scores.reshape((samples, 1, -1) if self.kind == "value" else (samples, -1, 1))

    def __call__(self, output: Any) -> Tensor:
        """Return the decisions as integers, or as values; shape (samples, decisions, ...)."""
        scores = self.scores(output)
        if self.kind == "value":
            return scores
        if self.kind == "label":
            return scores[..., 0].long()
        largest, chosen = scores.max(-1)
        if self.kind == "sign":
            chosen = (largest > self.threshold).long()
        return torch.where(largest.isfinite(), chosen, UNDECIDED)

    def agree(self, one: Any, other: Any) -> Tensor:
        """Return a mask of the decisions in which two outputs agree; (samples, decisions)."""
        return self.same(self(one), self(other))

    def same(self, one: Tensor, other: Tensor) -> Tensor:
        """Return a mask of equal decisions; shape (samples, decisions)."""
        if self.kind == "value":
            apart = torch.linalg.vector_norm(one - other, dim=-1, dtype=torch.float64)
            near: Tensor = apart <= self.tolerance * self.scale
            return near
        return (one == other) & (one != UNDECIDED)

    def labels(self, y: Tensor, like: Tensor) -> Tensor:
        """Return labels in the shape of decisions.

        Args:
            y: Labels per sample, or per decision.
            like: The decisions.
        """
        if y.numel() != like.numel() or len(y) != len(like):
            unit = "number" if self.kind == "value" else "label"
            raise ValueError(
                f"y must have one {unit} per decision, {tuple(like.shape)}, got {tuple(y.shape)}"
            )
        if self.kind != "value" and not bool((y != IGNORED).any()):
            raise ValueError(f"y must have labels besides {IGNORED}, got no others")
        labels = y.reshape(like.shape).to(like.device)
        if self.kind == "sign":
            return torch.where(labels == IGNORED, IGNORED, (labels > 0).long())
        if self.kind == "value":
            return labels.to(like.dtype)
        if labels.is_floating_point() and not bool((labels == labels.round()).all()):
            raise ValueError("y must have classes, which are whole numbers, got others among them")
        return labels.long()

    @property
    def words(self) -> str:
        """The decision as a noun phrase."""
        if self.custom is not None:
            return "the given decision"
        axis = "the last axis" if self.axis == -1 else f"axis {self.axis}"
        return {
            "class": f"the largest entry along {axis} of the output",
            "sign": f"whether each output is above {self.threshold:g}",
            "value": f"the output, within {self.tolerance:.0%} of its spread",
            "label": "the given decision",
        }[self.kind]


def tensor_of(output: Any) -> Tensor:
    """The tensor of an output that decisions are read from.

    It is the output itself, ``logits`` of a mapping or a named tuple that has them, or else the
    first floating-point tensor of a tree.
    """
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    leaves = [output if named is None else named]
    if not isinstance(leaves[0], Tensor):
        leaves = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
        leaves = [t for t in leaves if t.is_floating_point()][:1] or leaves[:1]
    if not leaves or not leaves[0].dim():
        raise ValueError(
            "the output must contain a tensor with one entry per sample; pass decision=, a "
            "function that returns the decisions of an output"
        )
    tensor: Tensor = leaves[0]
    return tensor


def decisions_of(
    output: Any,
    y: Tensor | None = None,
    *,
    decision: Decision | None = None,
    tolerance: float = 0.01,
) -> Decisions:
    """Choose how an output is read as decisions.

    Several numbers in the last axis are scores of classes. One number is a sign where labels have
    two values, and a value otherwise. Labels also determine the axis of the classes, and real ones
    in the shape of the output make it a value.

    Args:
        output: The output of the model as it runs.
        y: Labels, one per decision.
        decision: ``"class"``, ``"sign"`` or ``"value"`` instead, or a function of the output that
            returns integers, or numbers to compare as values.
        tolerance: Relative distance up to which values agree.
    """
    tolerance = real("tolerance", tolerance, above=0, below=1)
    if y is not None:
        instance("y", y, Tensor)
    if callable(decision):
        decided = decision(output)
        if not isinstance(decided, Tensor) or not decided.dim():
            raise TypeError("decision must return a tensor with one entry per sample")
        kind: Kind = "value" if decided.is_floating_point() else "label"
        return _scaled(Decisions(kind, tolerance=tolerance, custom=decision), output)
    if decision is not None:
        one_of("decision", decision, ("class", "sign", "value"))
    logits = tensor_of(output)
    if not logits.is_floating_point():
        return Decisions("label", tolerance=tolerance, custom=tensor_of)
    if y is not None and decision in (None, "class") and _one_hot(y, logits):
        raise ValueError("y must have classes, got one-hot rows; pass y.argmax(-1)")
    kind, axis = _kind(logits, y) if decision is None else (decision, _axis(logits, y))  # type: ignore[assignment]
    if kind == "class" and y is not None:
        check_classes(y, logits.shape[axis])
    return _scaled(Decisions(kind, axis, _threshold(logits, y, kind), tolerance), output)


def check_classes(y: Tensor, count: int) -> None:
    """Refuse labels that are no classes."""
    labels = y[y != IGNORED]
    if labels.numel() and not 0 <= float(labels.min()) <= float(labels.max()) < count:
        raise ValueError(
            f"y must have classes from 0 to {count - 1}, or {IGNORED} for decisions to ignore, got "
            f"{labels.min():g} to {labels.max():g}"
        )


def _kind(logits: Tensor, y: Tensor | None) -> tuple[Kind, int]:
    """The kind of an output and the axis of its classes, by its shape and the labels'."""
    axis = _axis(logits, y)
    if y is not None and y.numel() == logits.numel():
        return ("sign" if _two_values(y) else "value"), -1
    single = logits.dim() == 1 or logits.shape[axis] == 1
    return ("value", -1) if single else ("class", axis)


def _axis(logits: Tensor, y: Tensor | None) -> int:
    """The axis of the classes: the one that labels lack, or that of channels, or the last."""
    shape = tuple(logits.shape)
    if y is not None:
        for axis in (len(shape) - 1, *range(1, len(shape) - 1)):
            if tuple(y.shape) == shape[:axis] + shape[axis + 1 :]:
                return -1 if axis == len(shape) - 1 else axis
    if len(shape) == 4 and shape[1] > 1 and shape[1] != shape[2] == shape[3]:
        return 1  # square images, channels first
    return -1


def _one_hot(y: Tensor, logits: Tensor) -> bool:
    """Whether labels have a one and otherwise zeros along the last axis."""
    if y.shape != logits.shape or y.dim() < 2 or y.shape[-1] < 2:
        return False
    return bool(((y == 0) | (y == 1)).all()) and bool((y.sum(-1) == 1).all())


def _two_values(y: Tensor) -> bool:
    """Whether labels are 0 and 1, or -1 and 1."""
    labels = y[y != IGNORED]
    return bool(((labels == 0) | (labels == 1)).all()) or bool((labels.abs() == 1).all())


def _threshold(logits: Tensor, y: Tensor | None, kind: Kind) -> float:
    """One half for probabilities with labels 0 and 1; otherwise zero."""
    if kind != "sign" or (y is not None and bool((y == -1).any())):
        return 0.0
    return 0.5 if bool(((logits >= 0) & (logits <= 1)).all()) else 0.0


def _scaled(decisions: Decisions, output: Any) -> Decisions:
    """Decisions with the scale of values."""
    if decisions.kind != "value":
        return decisions
    return replace(decisions, scale=scale_of(decisions.scores(output)))


def scale_of(values: Tensor) -> float:
    """The spread of values over samples; their size where samples do not differ."""
    rows = values.reshape(len(values), -1).double()
    rows = rows[rows.isfinite().all(-1)]
    size = rows.square().sum(-1).mean().sqrt()
    spread = (rows - rows.mean(0)).square().sum(-1).mean().sqrt()
    return float(spread if spread > 1e-6 * size else size) or 1.0 if len(rows) else 1.0

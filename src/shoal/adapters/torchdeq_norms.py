"""Norms and penalties under torchdeq's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from shoal.adapters.torchdeq_options import mapping_of
from shoal.core.checks import integer

_NORMED: dict[type[nn.Module], int] = {
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), 0),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), 1),
}

_BOUND = "shoal.GainConstraint instead of apply_norm, which bounds the norms of weights"
_SCALE = (
    "apply_norm as it is, and then set module.parametrizations.weight.original0, the scale, of "
    "each layer and freeze it by requires_grad_(False)"
)
_SPECTRAL = "torch.nn.utils.parametrizations.spectral_norm(module, n_power_iterations=..., eps=...)"
_WEIGHT = "torch.nn.utils.parametrizations.weight_norm(module, name, dim)"
# what must have torchdeq's default: that, and what to use for another; in args, and as arguments
_FIXED_IN_ARGS: dict[str, tuple[Any, str]] = {
    "norm_no_scale": (False, _SCALE),
    "norm_target_norm": (1.0, _SCALE),
    "norm_clip": (False, _BOUND),
    "norm_clip_value": (1.0, _BOUND),
    "sn_n_power_iters": (1, _SPECTRAL),
}
_FIXED_OPTIONS: dict[str, tuple[Any, str]] = {
    "learn_scale": (True, _SCALE),
    "target_norm": (1.0, _SCALE),
    "clip": (False, _BOUND),
    "clip_value": (1.0, _BOUND),
    "n_power_iterations": (1, _SPECTRAL),
    "eps": (1e-12, _SPECTRAL),
    "names": (None, _WEIGHT),
    "dims": (None, _WEIGHT),
}


def apply_norm(
    model: nn.Module,
    norm_type: str = "weight_norm",
    prefix_filter_out: str | Sequence[str] | None = None,
    filter_out: str | Sequence[str] | None = None,
    args: object = None,
    **options: Any,
) -> None:
    """Give linear and convolutional layers weight normalization with a learned scale, PyTorch's.

    Args:
        model: Whose layers.
        norm_type: ``"weight_norm"`` or ``"none"``.
        prefix_filter_out: Layers whose names begin so are left out.
        filter_out: Layers whose names contain this are left out.
        args: May have ``norm_type``, instead of the argument, and torchdeq's other options of
            norms at their defaults.
        options: Options of torchdeq's norms, at their defaults.

    Raises:
        ValueError: For another norm, or for options of norms at other values.
        TypeError: For options that torchdeq's norms do not have.
    """
    given = mapping_of(args)
    norm_type = given.get("norm_type", norm_type)
    unknown = sorted(set(options) - set(_FIXED_OPTIONS))
    if unknown:
        known = ", ".join(_FIXED_OPTIONS)
        raise TypeError(f"apply_norm has no option {unknown[0]!r}; it has {known}")
    if norm_type == "none":
        return
    if norm_type != "weight_norm":
        raise ValueError(
            f"norm_type must be 'weight_norm' or 'none', got {norm_type!r}; use "
            "torch.nn.utils.parametrizations.spectral_norm, or shoal.GainConstraint for a bound"
        )
    _check_defaults(given, _FIXED_IN_ARGS)
    _check_defaults(options, _FIXED_OPTIONS)
    starts, parts = _several(prefix_filter_out), _several(filter_out)
    for name, module in list(model.named_modules()):
        dim = _NORMED.get(type(module))
        left_out = name.startswith(starts) if starts else False
        if dim is not None and not left_out and not any(part in name for part in parts):
            parametrizations.weight_norm(module, "weight", dim)


def _check_defaults(given: Mapping[str, Any], fixed: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse options at other values than their defaults, with what to use instead."""
    for name, (default, instead) in fixed.items():
        value = given.get(name, default)
        if value != default:
            raise ValueError(f"{name} must be {default!r}, got {value!r}; use {instead}")


def _several(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def remove_norm(model: nn.Module) -> None:
    """Leave the weights as they are, without their normalization."""
    for module in list(model.modules()):
        if type(module).__bases__[0] in _NORMED and parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")


def reset_norm(model: nn.Module) -> None:
    """Nothing to do: weights are normalized wherever they are used.

    Raises:
        TypeError: If there are modules that torchdeq has normalized, or of its own.
    """
    for name, module in model.named_modules():
        own = type(module).__module__.split(".")[0] == "torchdeq"
        if own or hasattr(module, "_deq_norm"):
            raise TypeError(
                f"model must have no layers of torchdeq's, got {name or 'itself'}; import "
                "apply_norm from shoal.adapters.torchdeq, and use torch.nn.Dropout"
            )


def reset_deq(model: nn.Module) -> None:
    """Nothing to do: norms are up to date, and dropout is drawn once for each solve.

    Raises:
        TypeError: If there are modules that torchdeq has normalized, or of its own.
    """
    reset_norm(model)


def jac_reg(f0: Tensor, z0: Tensor, vecs: int = 1, create_graph: bool = True) -> Tensor:
    r"""A random estimate of $\|J\|_F^2$ per entry of the state, to be added to a loss.

    Args:
        f0: The value of a function at ``z0``, with its graph.
        z0: The point, which requires a gradient.
        vecs: Over how many random vectors it is averaged.
        create_graph: Whether it is differentiable itself.
    """
    squares = []
    for _ in range(integer("vecs", vecs, at_least=1)):
        (product,) = torch.autograd.grad(
            f0, z0, torch.randn_like(f0), retain_graph=True, create_graph=create_graph
        )
        squares.append(product.square().sum())
    return torch.stack(squares).mean() / z0.numel()

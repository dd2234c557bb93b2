r"""The kernels of a finite network.

A group of weights that acts as $y = s W h$ contributes $s^2 (\delta_i^\top\delta_j)(h_i^\top h_j)$
to the NTK, where $\delta$ is the gradient of an output with respect to $y$: gradients with
respect to $W$ are never formed. Through an equilibrium, $\delta$ comes from the implicit function
theorem. Other modules are differentiated with respect to all of their parameters.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import flag
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import memory_limit
from shoal.networks.jacobians import Jacobians, chosen_parameters
from shoal.networks.modules import Inputs, ModuleInputs, check_whole, exact
from shoal.networks.network import LinearMap, Network, NetworkTrace, chosen_groups

Features = str | Callable[..., Tensor]


class EmpiricalKernels(NamedTuple):
    """The kernels of a finite network, or of any module.

    Attributes:
        ck: The conjugate kernel; ``None`` for a module whose features are not specified.
        ntk: The neural tangent kernel of the trained parameters.
    """

    ck: Any
    ntk: Tensor


@in_standard_settings
def empirical_kernel(
    model: Module,
    x1: Inputs,
    x2: Inputs | None = None,
    *,
    trainable: Iterable[str] | None = None,
    features: Features | None = None,
    diag: bool = False,
    memory: int | str | None = None,
) -> EmpiricalKernels:
    r"""Conjugate kernel and neural tangent kernel of any module, with its present weights.

    Gradients are exact, also for networks that were built with an inexact gradient for training.
    With several outputs $f_1, \dots, f_K$, in whatever shape, the NTK is the mean of the kernels of
    the outputs, $\frac1K \sum_k \langle \nabla f_k(x), \nabla f_k(x') \rangle$, which for the
    networks of ``build`` has the same limit at infinite width as that of one output.

    Args:
        model: A network made by ``build``, or any module. Each sample's outputs must depend on that
            sample alone. Modules that are random or normalize over samples, as by dropout or batch
            normalization in training mode, are rejected.
        x1: Inputs, of shape (n, in_features); for other modules of any shape and dtype, with
            samples in the first dimension. A tuple of tensors, or of trees of them, is for modules
            that are called as ``model(*x1)``, a dictionary for ``model(**x1)``.
        x2: Other inputs; by default ``x1``.
        trainable: The parameters of the NTK: groups of weights of a network; for another module
            names of parameters or of modules (``"encoder"``), or patterns (``"*.bias"``). By
            default those that require a gradient; ``"all"`` includes a readout that is kept fixed.
            A parameter with several names counts once.
        features: The features of the CK: a function with the arguments of the module, or the name
            of a submodule whose output to use. By default the input of a network's readout.
        diag: Whether to return only the kernels of each input with itself, or with the
            corresponding input in ``x2``.
        memory: Memory limit for the derivatives of other modules, such as ``"2GiB"``; 1 GiB by
            default. Beyond the limit, they are recomputed for each block.

    Returns:
        The matrices ``ck`` and ``ntk``, in the dtype of the outputs; for other modules at least
        float32. The CK of a network is the inner product of the inputs of its readout, in the scale
        of the architecture's limit: for a DEQ $z = Z/\sqrt m$, also in the standard
        parametrization; for an ``ImplicitNetwork`` the equilibrium $z$ followed by the feature map
        $\phi$ that skips it. Other modules have one only if ``features`` are given.

    Raises:
        TypeError: If ``model`` is not a module, does not return a tensor, or ``trainable`` is
            another string.
        ValueError: If the inputs do not fit, a group, parameter or submodule does not exist, or
            samples depend on each other.
        ConvergenceError: If an equilibrium, or its gradient, does not converge. A network that was
            built with another ``on_failure`` warns instead.

    Example:
        >>> import torch, shoal
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> net = shoal.build(deq, in_features=2, width=512, dtype=torch.float64)
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> difference = shoal.empirical_kernel(net, x).ntk - shoal.kernel(deq, x).ntk
        >>> bool(difference.abs().max() < 0.3)
        True
        >>> linear = torch.nn.Linear(2, 3, dtype=torch.float64)  # any module
        >>> shoal.empirical_kernel(linear, x, trainable={"weight"}).ntk.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if not isinstance(model, Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r}")
    flag("diag", diag)
    check_whole("model", model)
    view = exact(model)
    inputs = _inputs(view, x1, "x1")
    partners = None if x2 is None else _inputs(view, x2, "x2")
    if diag and partners is not None and len(inputs) != len(partners):
        raise ValueError(f"diag needs as many x1 as x2, got {len(inputs)} and {len(partners)}")
    limit = memory_limit(memory)
    forward: Callable[..., object] = view
    if isinstance(view, Network):
        ck, ntk = _network_kernels(view, inputs, partners, _groups(view, trainable), diag=diag)
    else:
        chosen = chosen_parameters(view, trainable)
        forward = jacobians = Jacobians(view, chosen, inputs, 2**30 if limit is None else limit)
        ck, ntk = None, jacobians.ntk(inputs, partners, diag=diag)
    if features is not None:
        read = _reader(view, features, forward)
        rows = _evaluate(read, inputs)
        partner_rows = rows if partners is None else _evaluate(read, partners)
        ck = _inner_products(rows, partner_rows, diag=diag)
    return EmpiricalKernels(ck, ntk)


def _inputs(model: Module, x: Any, name: str) -> ModuleInputs:
    """Checked inputs of a network or of another module."""
    return ModuleInputs.checked(
        name, model.check_input(x, name) if isinstance(model, Network) else x
    )


def _network_kernels(
    model: Network[Any],
    x1: ModuleInputs,
    x2: ModuleInputs | None,
    groups: list[str],
    *,
    diag: bool,
) -> tuple[Tensor, Tensor]:
    """The kernels of a network of ``build``, by the action of each group of weights."""
    gradients = _Gradients(model, x1.first, groups)
    partners = gradients if x2 is None else _Gradients(model, x2.first, groups)
    ck = _inner_products(gradients.features, partners.features, diag=diag)
    shares = [gradients.share(partners, name, diag=diag) for name in groups]
    return ck, sum(shares, torch.zeros_like(ck))


def _groups(model: Network[Any], trainable: Iterable[str] | None) -> list[str]:
    if trainable is None:
        return sorted(name for name, p in model.groups.items() if p.requires_grad)
    return sorted(chosen_groups(model.architecture, trainable))


class _Gradients:
    """The inputs of each group of weights, and the gradients with respect to its outputs."""

    def __init__(self, model: Network[Any], x: Tensor, groups: list[str]) -> None:
        with torch.enable_grad():
            trace: NetworkTrace = model.trace(x)
            maps = {name: trace.maps[name] for name in groups}
            self.reactions = reactions(trace.output, maps)
        self.features = trace.features.detach().flatten(1)
        self.inputs = {name: action.input.detach() for name, action in maps.items()}
        self.scales = {name: action.scale for name, action in maps.items()}

    def share(self, other: "_Gradients", name: str, *, diag: bool = False) -> Tensor:
        """The contribution of a group to the NTK."""
        h, other_h = self.inputs[name], other.inputs[name]
        total = h.new_zeros((len(h),) if diag else (len(h), len(other_h)))
        pairs = _contract_partners if diag else contract
        for delta, other_delta in zip(self.reactions, other.reactions, strict=True):
            total += pairs(h, delta[name], other_h, other_delta[name])
        return total * (self.scales[name] ** 2 / len(self.reactions))


def reactions(output: Tensor, maps: dict[str, LinearMap]) -> list[dict[str, Tensor]]:
    """For each output, its gradient with respect to each group's output; (n, pixels, units)."""
    targets = {name: action.output for name, action in maps.items()}
    if not targets:
        return []
    rows_of_outputs = []
    for k in range(output.shape[1]):
        gradients = torch.autograd.grad(
            output[:, k].sum(), list(targets.values()), retain_graph=True, materialize_grads=True
        )
        rows = (g.flatten(2).transpose(1, 2) if g.dim() > 2 else g[:, None] for g in gradients)
        rows_of_outputs.append(dict(zip(targets, rows, strict=True)))
    return rows_of_outputs


def contract(h: Tensor, delta: Tensor, other_h: Tensor, other_delta: Tensor) -> Tensor:
    r"""$\sum_{p,q} (\delta_{ip}^\top\delta_{jq})(h_{ip}^\top h_{jq})$ over pixels $p$, $q$."""
    if h.shape[1] == 1:
        return (h[:, 0] @ other_h[:, 0].T) * (delta[:, 0] @ other_delta[:, 0].T)
    rows = [
        (
            torch.einsum("pd,jqd->jpq", h[i], other_h)
            * torch.einsum("pm,jqm->jpq", delta[i], other_delta)
        ).sum((1, 2))
        for i in range(len(h))
    ]
    return torch.stack(rows)


def _contract_partners(h: Tensor, delta: Tensor, other_h: Tensor, other_delta: Tensor) -> Tensor:
    r"""The diagonal of :func:`contract`."""
    inputs = torch.einsum("ipd,iqd->ipq", h, other_h)
    return (inputs * torch.einsum("ipm,iqm->ipq", delta, other_delta)).sum((1, 2))


def _inner_products(rows: Tensor, partners: Tensor, *, diag: bool) -> Tensor:
    """Inner products of all rows, or of each with its partner."""
    return (rows * partners).sum(1) if diag else rows @ partners.T


@torch.no_grad()
def _evaluate(read: Callable[..., Tensor], x: ModuleInputs) -> Tensor:
    """The features of all inputs, as rows."""
    blocks = []
    for part in x.blocks(256):
        features = part.call(read)
        if not isinstance(features, Tensor) or not features.is_floating_point():
            raise TypeError(f"features must be a tensor of real numbers, got {features!r}")
        if not features.dim() or len(features) != len(part):
            raise ValueError(
                f"features must have a row for each of {len(part)} samples, got shape "
                f"{tuple(features.shape)}"
            )
        blocks.append(features.flatten(1) if features.dim() > 1 else features[:, None])
    return torch.cat(blocks)


def _reader(
    module: Module, features: Features, forward: Callable[..., object]
) -> Callable[..., Tensor]:
    """A function that returns the features: the user's, or the output of a submodule."""
    if not isinstance(features, str):
        if not callable(features):
            raise TypeError(
                f"features must be a function or the name of a submodule, got {features!r}"
            )
        return features
    names = [name for name, _ in module.named_modules() if name]
    if features not in names:
        raise ValueError(
            f"features must be a function or one of the submodules {', '.join(names) or '(none)'}, "
            f"got {features!r}"
        )

    def read(*arguments: Any, **named: Any) -> Tensor:
        outputs: list[Tensor] = []
        hook = module.get_submodule(features).register_forward_hook(
            lambda _, __, output: outputs.append(output)
        )
        try:
            forward(*arguments, **named)
        finally:
            hook.remove()
        if len(outputs) != 1:
            raise ValueError(
                f"features must be a submodule that is used once, got {features!r}, which is used "
                f"{len(outputs)} times: give a function"
            )
        return outputs[0]

    return read

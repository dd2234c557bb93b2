r"""The kernels of a finite network.

A group of weights that acts as $y = s W h$ contributes $s^2 (\delta_i^\top\delta_j)(h_i^\top h_j)$
to the NTK, where $\delta$ is the gradient of an output with respect to $y$: no gradient with
respect to $W$ is ever formed. Through an equilibrium, $\delta$ comes from the implicit function
theorem.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.nn import Module

from shoal.core.checks import flag
from shoal.core.processes import Group, Processes, fingerprint, processes
from shoal.core.settings import in_standard_settings
from shoal.kernels import Kernels
from shoal.kernels.arguments import memory_limit
from shoal.networks.module_inputs import Inputs, ModuleInputs
from shoal.networks.network import LinearMap, Network, Trace
from shoal.networks.ntk.exact import check_whole, exact
from shoal.networks.ntk.features import Features, feature_kernel, inner_products
from shoal.networks.ntk.jacobians import Jacobians, chosen_parameters

_MEMORY = 2**30  # bytes


class TangentKernel(NamedTuple):
    """The NTK of a module of which it is not said what its features are.

    Attributes:
        ck: Nothing.
        ntk: The neural tangent kernel of the parameters that are trained.
    """

    ck: None
    ntk: Tensor


class KernelOptions(TypedDict, total=False):
    """The keywords of ``empirical_kernel`` besides ``features``, for type checkers."""

    trainable: Iterable[str] | None
    diag: bool
    memory: int | str | None
    process_group: Group


@overload
def empirical_kernel(  # type: ignore[overload-overlap]  # a network always has features
    model: Network[Any],
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    features: Features | None = None,
    **options: Unpack[KernelOptions],
) -> Kernels: ...
@overload
def empirical_kernel(
    model: Module,
    x1: Inputs,
    x2: Inputs | None = None,
    *,
    features: Features,
    **options: Unpack[KernelOptions],
) -> Kernels: ...
@overload
def empirical_kernel(
    model: Module,
    x1: Inputs,
    x2: Inputs | None = None,
    *,
    features: None = None,
    **options: Unpack[KernelOptions],
) -> TangentKernel: ...
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
    process_group: Group = "auto",
) -> Kernels | TangentKernel:
    r"""Conjugate kernel and neural tangent kernel of a finite network, as its weights are.

    It may be any module. Gradients are exact, whatever gradient a network, or one inside the
    module, was built to train with.

    With several outputs $f_1, \dots, f_K$, in whatever shape, the NTK is the mean of the outputs'
    own, $\frac1K \sum_k \langle \nabla f_k(x), \nabla f_k(x') \rangle$, which for the networks
    of ``build`` has the same limit at infinite width as that of one output.

    Args:
        model: A network made by ``build``, or any module. Each sample's outputs must be its own:
            a module that is random or normalizes over samples, as dropout and batch normalization
            do in training mode, is refused.
        x1: Inputs, of shape (n, in_features); for another module of any shape and dtype that it
            takes, with samples in the first dimension. A tuple of tensors, or of trees of them, is
            for modules that are called as ``model(*x1)``, a dictionary for ``model(**x1)``.
        x2: Other inputs; ``x1`` again by default.
        trainable: What the NTK counts. Groups of weights of a network, for another module names of
            parameters or of modules (``"encoder"``), or patterns (``"*.bias"``); by default
            the parameters that require a gradient now. ``"all"`` means all, also a readout that is
            kept fixed. A parameter with several names counts once.
        features: What the CK is made of: a function, called as the module is, or the name of a
            submodule whose output it is. By default, for networks, what their readout sees.
        diag: Whether to return the kernels of each input with itself (or with its partner in
            ``x2``) only.
        memory: Most bytes that derivatives of another module take at once, such as ``"2GiB"``; by
            default 1 GiB. If they take more in all, they are computed again for each block.
        process_group: The processes that share the rows of the matrix, and all make this call with
            the same network and inputs: those of ``torch.distributed`` or ``torchrun`` by default,
            with ``None`` this one alone. All have the result.

    Returns:
        The two matrices, in the dtype of the network, under autocast too. (Of modules in less than
        float32, in float32.) The CK is the inner product of the features that the readout sees, in
        the scale of the architecture's limit: for a DEQ $z = Z/\sqrt m$, also in the standard
        parametrization, whose readout sees $Z$ and has the factor $1/\sqrt m$ in its weights; for
        an ``ImplicitNetwork`` the equilibrium $z$ and the feature map $\phi$ that skips it, one
        after the other. That of ``features`` is their inner product as they are. Without them the
        ``ck`` of another module is ``None``.

    Raises:
        TypeError: If ``model`` is none, does not return a tensor, or ``trainable`` is another
            string.
        ValueError: If the inputs do not fit, a group, parameter or submodule does not exist, or
            samples depend on each other.
        ConvergenceError: If an equilibrium, or its gradient, is not found. A network that was built
            with another ``on_failure`` warns instead.

    Example:
        >>> import torch, shoal
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> net = shoal.build(deq, in_features=2, width=512, dtype=torch.float64)
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> difference = shoal.empirical_kernel(net, x).ntk - shoal.kernel(deq, x).ntk
        >>> bool(difference.abs().max() < 0.3)
        True
        >>> linear = torch.nn.Linear(2, 3, dtype=torch.float64)  # a module of one's own
        >>> shoal.empirical_kernel(linear, x, trainable={"weight"}).ntk.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if not isinstance(model, Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r}")
    flag("diag", diag)
    shared = processes(process_group)
    with shared.collective():
        check_whole("model", model)
        whole = exact(model)
        left, right = _read(whole, x1, "x1"), None if x2 is None else _read(whole, x2, "x2")
        if diag and right is not None and len(left) != len(right):
            raise ValueError(f"diag needs as many x1 as x2, got {len(left)} and {len(right)}")
        room = memory_limit(memory)
        limit = _MEMORY if room is None else room

        def kernels(x1: ModuleInputs, x2: ModuleInputs | None) -> Kernels | TangentKernel:
            if isinstance(whole, Network):
                groups = _groups(whole, trainable)
                return _of_network(whole, x1, x2, groups, features, diag=diag)
            return _of_module(whole, x1, x2, trainable, features, limit, diag=diag)

        if not 1 < shared.size <= len(left):
            return kernels(left, right)
        _agree(shared, whole, left, right)
        own = torch.arange(len(left)).tensor_split(shared.size)[shared.rank].tolist()
        rows = slice(own[0], own[-1] + 1)
        partners = None if right is None else right[rows]
        part = kernels(left[rows], partners if diag else left if right is None else right)
        symmetric = right is None and not diag
        ck, ntk = (_gathered(shared, k, rows, len(left), symmetric) for k in part)
    assert ntk is not None
    return TangentKernel(None, ntk) if ck is None else Kernels(ck, ntk)


def _read(model: Module, x: Any, name: str) -> ModuleInputs:
    """Inputs of a network, which are one tensor, or of another module, such as indices of words."""
    return ModuleInputs.checked(
        name, model.check_input(x, name) if isinstance(model, Network) else x
    )


def _agree(shared: Processes, model: Module, x1: ModuleInputs, x2: ModuleInputs | None) -> None:
    """See that all processes have the same network and inputs."""
    given = {**x1.named("x1"), **({} if x2 is None else x2.named("x2"))}
    given |= dict(model.named_parameters())
    shared.agree({name: fingerprint(tensor) for name, tensor in given.items()})


def _gathered(
    shared: Processes, part: Tensor | None, rows: slice, size: int, symmetric: bool
) -> Tensor | None:
    """The matrix of which each process has some rows."""
    if part is None:
        return None
    result = part.new_zeros(size, *part.shape[1:])
    result[rows] = part.detach()
    result = shared.sum(result)
    return result.triu() + result.triu(1).T if symmetric else result


def _of_module(
    module: Module,
    x1: ModuleInputs,
    x2: ModuleInputs | None,
    trainable: Iterable[str] | None,
    features: Features | None,
    memory: int,
    *,
    diag: bool,
) -> Kernels | TangentKernel:
    """The kernels of any module."""
    chosen = chosen_parameters(module, trainable)
    jacobians = Jacobians(module, chosen, x1, memory)
    ntk = jacobians.ntk(x1, x2, diag=diag)
    if features is None:
        return TangentKernel(None, ntk)
    return Kernels(feature_kernel(module, features, x1, x2, diag=diag, forward=jacobians), ntk)


def _of_network(
    model: Network[Any],
    x1: ModuleInputs,
    x2: ModuleInputs | None,
    groups: list[str],
    features: Features | None,
    *,
    diag: bool,
) -> Kernels:
    """The kernels of a network that says where each group of its weights acts."""
    left = _Gradients(model, x1.first, groups)
    right = left if x2 is None else _Gradients(model, x2.first, groups)
    if features is None:
        ck = inner_products(left.features, right.features, diag=diag)
    else:
        ck = feature_kernel(model, features, x1, x2, diag=diag, forward=model)
    shares = [left.share(right, name, diag=diag) for name in groups]
    return Kernels(ck, sum(shares, torch.zeros_like(ck)))


def _groups(model: Network[Any], trainable: Iterable[str] | None) -> list[str]:
    chosen: Iterable[str]
    if trainable is None:
        chosen = [name for name, p in model.groups.items() if p.requires_grad]
    elif trainable == "all":
        chosen = {*model.architecture.parameter_groups, "readout"}
    elif "readout" in model.spec.trainable and not isinstance(trainable, str):
        # also where the architecture keeps it fixed
        known = model.spec.trainable | set(model.architecture.parameter_groups)
        names = frozenset(trainable)
        chosen = names if names and names <= known else model.architecture.check_trainable(names)
    else:
        chosen = model.architecture.check_trainable(trainable)
    return sorted(chosen)


class _Gradients:
    """What the groups of weights see, and how the outputs react to what they make of it."""

    def __init__(self, model: Network[Any], x: Tensor, groups: list[str]) -> None:
        with torch.enable_grad():
            trace: Trace = model.trace(x)
            maps = {name: trace.maps[name] for name in groups}
            self.reactions = reactions(trace.output, maps)
        self.features = trace.features.detach().flatten(1)
        self.inputs = {name: one.input.detach() for name, one in maps.items()}
        self.scales = {name: one.scale for name, one in maps.items()}

    def share(self, other: "_Gradients", name: str, *, diag: bool = False) -> Tensor:
        """What a group adds to the NTK."""
        left, right = self.inputs[name], other.inputs[name]
        outputs = len(self.reactions)
        total = left.new_zeros((len(left),) if diag else (len(left), len(right)))
        pairs = contract_partners if diag else contract
        for mine, theirs in zip(self.reactions, other.reactions, strict=True):
            total += pairs(left, mine[name], right, theirs[name])
        return total * (self.scales[name] ** 2 / outputs)


def reactions(output: Tensor, maps: dict[str, LinearMap]) -> list[dict[str, Tensor]]:
    """For each output, its gradient with respect to what each group makes; (n, pixels, units)."""
    targets = {name: one.output for name, one in maps.items()}
    if not targets:
        return []
    found = []
    for k in range(output.shape[1]):
        gradients = torch.autograd.grad(
            output[:, k].sum(), list(targets.values()), retain_graph=True, materialize_grads=True
        )
        found.append(
            {
                name: gradient.flatten(2).transpose(1, 2)
                if gradient.dim() > 2
                else gradient[:, None]
                for name, gradient in zip(targets, gradients, strict=True)
            }
        )
    return found


def contract(h: Tensor, delta: Tensor, other_h: Tensor, other_delta: Tensor) -> Tensor:
    r"""$\sum_{p,q} (\delta_{ip}^\top\delta_{jq})(h_{ip}^\top h_{jq})$ over pixels $p$, $q$."""
    if h.shape[1] == 1:
        return (h[:, 0] @ other_h[:, 0].T) * (delta[:, 0] @ other_delta[:, 0].T)
    rows = [
        (
            torch.einsum("pd,jqd->jpq", h[i], other_h)
            * torch.einsum("pm,jqm->jpq", delta[i], other_delta)
        )
        .flatten(1)
        .sum(1)
        for i in range(len(h))
    ]
    return torch.stack(rows)


def contract_partners(h: Tensor, delta: Tensor, other_h: Tensor, other_delta: Tensor) -> Tensor:
    r"""The diagonal of :func:`contract`, and nothing else of it."""
    seen = torch.einsum("ipd,iqd->ipq", h, other_h)
    reacted = torch.einsum("ipm,iqm->ipq", delta, other_delta)
    return (seen * reacted).flatten(1).sum(1)

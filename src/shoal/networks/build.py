"""Build finite networks of architectures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Required, Unpack, cast, overload

import torch
from torch import Tensor
from torch.nn import Module

from shoal.architectures import (
    Architecture,
    ImageArchitecture,
    ImplicitArchitecture,
    ImplicitNetwork,
    LoopedNetwork,
)
from shoal.core import checks
from shoal.core.settings import standard_settings
from shoal.equilibrium import Gradient, Solver
from shoal.networks.equilibrium import EquilibriumNetwork, LoopNetwork, Solving
from shoal.networks.implicit_network import ImplicitNetworkModule
from shoal.networks.layered import ChainNetwork
from shoal.networks.looped_network import LoopedModule
from shoal.networks.network import Network, NetworkSpec, Source, WeightLaw, chosen_groups

_TAKEN = {*vars(Module()), "spec", "layers", "scales", "equilibrium"}


class BuildOptions(Solving, total=False):
    """The keywords of ``build``, for type checkers."""

    in_features: Required[int]
    width: Required[int]
    out_features: int
    seed: int
    dtype: torch.dtype | None
    device: torch.device | str | None
    weights: str
    readout_scale: float
    trainable: Iterable[str] | None
    pixel_axes: int | None
    pixels: Sequence[int] | None


@overload
def build(
    architecture: ImplicitArchitecture, **options: Unpack[BuildOptions]
) -> EquilibriumNetwork[Any]: ...
@overload
def build(architecture: Architecture, **options: Unpack[BuildOptions]) -> Network[Any]: ...
def build(
    architecture: Architecture,
    *,
    in_features: int,
    width: int,
    out_features: int = 1,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    weights: str = "gaussian",
    readout_scale: float = 1.0,
    trainable: Iterable[str] | None = None,
    solver: Solver | Sequence[Solver] | None = None,
    gradient: Gradient | None = None,
    on_failure: str = "warn",
    warm_start: bool = False,
    pixel_axes: int | None = None,
    pixels: Sequence[int] | None = None,
) -> Network[Any]:
    r"""Build a finite network of an architecture, an ordinary ``torch.nn.Module``.

    Weights are drawn on the CPU in float64, then rounded and moved, so that a seed means the same
    on every device and in every dtype.

    Args:
        architecture: The architecture.
        in_features: Size of an input; for networks of images its number of channels.
        width: Number of units, or channels, of each hidden layer.
        out_features: Number of outputs.
        seed: Seed of the random weights, below 2**64.
        dtype: Dtype of the weights, hence of inputs and outputs; PyTorch's default one by default.
        device: Device of the weights.
        weights: Law of the weights, with mean zero and unit variance: ``"gaussian"``,
            ``"rademacher"`` (signs) or ``"uniform"`` for each entry; ``"orthogonal"`` or
            ``"symmetric"`` for whole recurrent matrices of a loop, beside Gaussian other weights.
            Readouts that the architecture keeps fixed are Rademacher.
        readout_scale: Factor of the readout at initialization; with 0 the network starts at 0.
        trainable: Groups to train, out of ``architecture.parameter_groups``; all of them by
            default. ``"all"`` includes a readout that the architecture keeps fixed.
        solver: Solver of an implicit architecture, or several that take over from each other;
            this and the next three options are those of :class:`~shoal.Equilibrium`.
        gradient: Gradient of equilibria; ``Implicit()`` by default, which is exact.
        on_failure: ``"warn"``, ``"raise"`` or ``"status"``, if an equilibrium or its gradient does
            not converge. ``last_solve`` and ``last_adjoint`` have the status of each sample.
        warm_start: Whether solves in training begin where the last one ended, if that had as many
            samples. If the equilibrium is not unique, another start may lead to another one.
        pixel_axes: For networks of images, such as a ``ConvDEQ``: number of axes of pixels, 1, 2
            (the default) or 3.
        pixels: For networks of images: number of pixels along each axis, such as ``(28, 28)``. It
            is required for a readout of all pixels. Without it, images may have any size.

    Returns:
        The network; its parameters are named like the architecture's groups.

    Raises:
        TypeError: If an argument has the wrong type, or an option does not apply.
        ValueError: If an argument is out of range, or an option is unknown.

    Example:
        >>> import torch, shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
        >>> net = shoal.build(deq, in_features=3, width=64, out_features=2)
        >>> net(torch.ones(5, 3)).shape
        torch.Size([5, 2])
        >>> {name: tuple(p.shape) for name, p in net.groups.items()}
        {'readout': (2, 64), 'recurrent': (64, 64), 'input': (64, 3)}
    """
    spec = check_spec(
        architecture,
        in_features=in_features,
        width=width,
        out_features=out_features,
        weights=weights,
        readout_scale=readout_scale,
        trainable=trainable,
        pixel_axes=pixel_axes,
        pixels=pixels,
    )
    dtype = torch.get_default_dtype() if dtype is None else dtype
    dtype = checks.float_dtype("dtype", dtype)
    place = torch.get_default_device() if device is None else checks.as_device("device", device)
    solving = Solving(
        solver=solver, gradient=gradient, on_failure=on_failure, warm_start=warm_start
    )
    with standard_settings():  # built in inference mode it can be trained, too
        drawn = _network_class(architecture).draw(spec, Source(seed, dtype, place))
        return assemble(spec, drawn, solving)


def check_spec(
    architecture: Architecture,
    *,
    weights: str,
    trainable: Iterable[str] | None,
    pixel_axes: int | None,
    pixels: Sequence[int] | None,
    readout_scale: float,
    **sizes: int,
) -> NetworkSpec[Any]:
    """The description of a network, checked."""
    if not isinstance(architecture, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
    axes, sides = _check_pixels(architecture, pixel_axes, pixels)
    spec = NetworkSpec(
        architecture=architecture,
        weights=_check_law(architecture, weights),
        readout_scale=checks.real("readout_scale", readout_scale),
        trainable=chosen_groups(architecture, trainable),
        pixel_axes=axes,
        pixels=sides,
        **{name: checks.size(name, value) for name, value in sizes.items()},
    )
    _network_class(architecture)  # refuses architectures without networks
    return spec


def _check_law(architecture: Architecture, weights: str) -> WeightLaw:
    """The law of the weights; laws of matrices are for recurrent layers of vectors alone."""
    one_by_one, matrices = ("gaussian", "rademacher", "uniform"), ("orthogonal", "symmetric")
    law = checks.one_of("weights", weights, one_by_one + matrices)
    images = isinstance(architecture, ImageArchitecture)
    if law in matrices and (images or not isinstance(architecture, ImplicitArchitecture)):
        raise ValueError(
            f"weights={law!r} requires an implicit network of vectors, such as DEQ, got "
            f"{type(architecture).__name__}"
        )
    return cast("WeightLaw", law)


def _check_pixels(
    architecture: Architecture, axes: int | None, pixels: Sequence[int] | None
) -> tuple[int, tuple[int, ...]]:
    """The number of axes of pixels, zero for vectors, and the number of pixels along each."""
    name = type(architecture).__name__
    if not isinstance(architecture, ImageArchitecture):
        for option, value in (("pixel_axes", axes), ("pixels", pixels)):
            if value is not None:
                raise TypeError(f"{option} is for networks of images, such as ConvDEQ, got {name}")
        return 0, ()
    if pixels is None:
        if architecture.pooling is None:
            raise ValueError(
                f"pixels must be given for a {name} whose readout sees all pixels: the number "
                'along each axis, such as (28, 28); pooling="average" takes any'
            )
        sides: tuple[int, ...] = ()
        count = checks.integer("pixel_axes", 2 if axes is None else axes, at_least=1)
    else:
        entries = checks.items("pixels", pixels, "numbers of pixels, one for each axis")
        sides = tuple(checks.size(f"pixels[{k}]", side) for k, side in enumerate(entries))
        count = len(sides)
        if axes is not None and axes != count:
            raise ValueError(
                f"pixel_axes must be the number of entries of pixels, {count}, got {axes}"
            )
    if not 1 <= count <= 3:
        raise ValueError(f"pixel_axes must be 1, 2 or 3, got {count}")
    if sides:
        architecture.check_pixels("pixels", (1, 1, *sides))
    return count, sides


def shapes(spec: NetworkSpec[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a network's weights, without drawing them."""
    source = Source(0, torch.float32, torch.device("meta"))
    drawn = _network_class(spec.architecture).draw(spec, source)
    return {name: tuple(weights.shape) for name, weights in drawn.items()}


def _network_class(architecture: Architecture) -> type[Network[Any]]:
    """The class of the networks of an architecture: by its layers, if it is a custom one.

    Raises:
        TypeError: If there is none.
        ValueError: If a group of weights has a name that no parameter of a module can have.
    """
    if isinstance(architecture, ImplicitNetwork):
        return ImplicitNetworkModule
    if isinstance(architecture, LoopedNetwork):
        return LoopedModule
    layers, name = architecture.layers(), type(architecture).__name__
    if layers.injection is None:
        chosen: type[Network[Any]] = ChainNetwork
    elif isinstance(architecture, ImplicitArchitecture):
        chosen = LoopNetwork
    else:
        raise TypeError(f"{name} must be an ImplicitArchitecture, since its layers are a loop")
    for group in layers.groups:
        if not group.isidentifier() or group in _TAKEN or hasattr(chosen, group):
            raise ValueError(
                f"groups of weights of {name} must not be named like attributes of "
                f"torch.nn.Module, got {group!r}"
            )
    return chosen


def assemble(
    spec: NetworkSpec[Any], weights: Mapping[str, Tensor], solving: Solving
) -> Network[Any]:
    """Make a network of weights that are there already."""
    kind = _network_class(spec.architecture)
    if issubclass(kind, EquilibriumNetwork):
        return kind(spec, weights, **solving)
    default = Solving(solver=None, gradient=None, on_failure="warn", warm_start=False)
    if solving != default:
        raise TypeError(
            "solver, gradient, on_failure and warm_start apply only to implicit architectures, "
            f"got {type(spec.architecture).__name__}"
        )
    return kind(spec, weights)

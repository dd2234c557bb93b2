"""Which networks an architecture has."""

from typing import Any

from torch.nn import Module

from shoal.architectures import (
    Architecture,
    ImageArchitecture,
    ImplicitArchitecture,
    ImplicitNetwork,
)
from shoal.networks.chain import ChainNetwork
from shoal.networks.convolutional import ConvolutionalChain, ConvolutionalLoop
from shoal.networks.implicit_network import ImplicitNetworkModule
from shoal.networks.loop import LoopNetwork
from shoal.networks.network import Network

__all__ = ["network_class"]

# those that are no plain chain or loop of cells
_OTHERS: dict[type[Architecture], type[Network[Any]]] = {
    ImplicitNetwork: ImplicitNetworkModule,
}
_TAKEN = {*vars(Module()), "spec", "layers", "scales", "options", "warm_start"}


def network_class(architecture: Architecture) -> type[Network[Any]]:
    """The class of the networks of an architecture: by its layers, unless it has one of its own.

    Raises:
        TypeError: If there is none.
        ValueError: If a group of weights has a name that no parameter of a module can have.
    """
    if type(architecture) in _OTHERS:
        return _OTHERS[type(architecture)]
    layers, name = architecture.layers(), type(architecture).__name__
    images = isinstance(architecture, ImageArchitecture)
    chain, loop = (ConvolutionalChain, ConvolutionalLoop) if images else (ChainNetwork, LoopNetwork)
    chosen: type[Network[Any]] = chain if layers.injection is None else loop
    if layers.injection is not None and not isinstance(architecture, ImplicitArchitecture):
        raise TypeError(f"{name} must be an ImplicitArchitecture, since its layers are a loop")
    for group in layers.groups:
        if not group.isidentifier() or group in _TAKEN or hasattr(chosen, group):
            raise ValueError(
                f"groups of weights of {name} must have names that a torch.nn.Module leaves free, "
                f"got {group!r}"
            )
    return chosen

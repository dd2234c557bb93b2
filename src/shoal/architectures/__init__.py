"""Network architectures as immutable values, without weights or data."""

from shoal.architectures.base import Architecture, ImplicitArchitecture
from shoal.architectures.conv_deq import ConvDEQ
from shoal.architectures.deq import DEQ
from shoal.architectures.feedforward import ConvNet, FullyConnected
from shoal.architectures.images import ImageArchitecture
from shoal.architectures.implicit_network import ImplicitNetwork
from shoal.architectures.layers import Cell, Layers, Weights
from shoal.architectures.looped_network import LoopedNetwork
from shoal.architectures.residual import ConvResNet, ResNet

__all__ = [
    "DEQ",
    "Architecture",
    "Cell",
    "ConvDEQ",
    "ConvNet",
    "ConvResNet",
    "FullyConnected",
    "ImageArchitecture",
    "ImplicitArchitecture",
    "ImplicitNetwork",
    "Layers",
    "LoopedNetwork",
    "ResNet",
    "Weights",
]

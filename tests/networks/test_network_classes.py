"""One table says which class makes the networks of an architecture; build and load read it."""

from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch

from shoal import architectures
from shoal.architectures import Architecture, ImageArchitecture, ImplicitArchitecture
from shoal.networks import Network, build, load, save
from shoal.networks.network import NETWORK_CLASSES, Trace, makes_networks_of


@dataclass(frozen=True)
class Line(Architecture):
    """A linear function, which is no chain of cells."""

    def layers(self, width=None):  # noqa: ARG002
        raise TypeError("a line has no cells")

    @property
    def parameter_groups(self):
        return ("readout",)


class LineNetwork(Network[Line]):
    """x ↦ a x."""

    @staticmethod
    def draw(spec, source):
        return {"readout": source.draw(spec.weights, spec.out_features, spec.in_features)}

    def _forward(self, x):
        return x @ self.readout.T

    def trace(self, x):
        return Trace(self._forward(x), x, {})


def test_the_table_has_all_architectures():
    bases = {Architecture, ImageArchitecture, ImplicitArchitecture}
    public = {getattr(architectures, name) for name in architectures.__all__}
    assert {kind for kind in public if issubclass(kind, Architecture)} - bases == {*NETWORK_CLASSES}


def test_an_architecture_is_registered_once_for_all(tmp_path):
    sizes = {"in_features": 3, "width": 5, "dtype": torch.float64}
    x, path = torch.ones(2, 3, dtype=torch.float64), tmp_path / "net.safetensors"
    with patch.dict(NETWORK_CLASSES):
        makes_networks_of(Line)(LineNetwork)
        net = build(Line(), **sizes)
        save(net, path)
        assert torch.equal(load(path, architectures=[Line])(x), net(x))
        with pytest.raises(ValueError, match="Line', which shoal does not know"):
            load(path)
    with pytest.raises(TypeError, match="a line has no cells"):
        build(Line(), **sizes)
    with pytest.raises(ValueError, match="description that cannot be read: a line has no cells"):
        load(path, architectures=[Line])

"""The error of every architecture and group of weights falls as the theory says."""

import shoal
from lab.computing import compute
from shoal.core.fields import plain
from shoal.lab import find
from shoal.reproductions.findings.width import GroupError


def test_every_group_converges() -> None:
    two = (shoal.ImplicitNetwork(gamma=0.4), shoal.ResNet(shoal.ReLU(), 2))
    experiment = GroupError(two, widths=(32, 96, 288), draws=10, samples=6, features=8)
    summary = experiment.summarize(compute(experiment))
    names = {name for name in summary if name.endswith("_slope")}
    kinds = ("ck", "ntk", "readout", "skip", "recurrent", "input")
    expected = {f"ImplicitNetwork_{kind}_slope" for kind in kinds}
    expected |= {f"ResNet_{kind}_slope" for kind in ("ck", "ntk", "layer1", "layer2")}
    assert names == expected
    for name in names:
        assert summary[f"{name}_low"] - 0.1 < -0.5 < summary[f"{name}_high"] + 0.1, name


def test_all_architectures_with_kernels_are_there() -> None:
    assert find("shoal", "groups") == [GroupError]
    shown = {type(architecture).__name__ for architecture in GroupError().architectures}
    assert shown == {"DEQ", "ImplicitNetwork", "FullyConnected", "ResNet"}
    assert plain(GroupError.quick())["architectures"][1] == {
        "class": "ImplicitNetwork",
        "gamma": 0.4,
    }


def test_the_figure_has_a_panel_for_each() -> None:
    relu = shoal.FullyConnected([shoal.ReLU()])
    experiment = GroupError((relu, relu, relu), widths=(8, 16), draws=2, samples=4, features=4)
    figure = experiment.plot(compute(experiment))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:3] == ["FullyConnected1", "FullyConnected2", "FullyConnected3"]
    assert len(figure.axes[0].get_legend().get_texts()) == 5  # both kernels, two groups, theory

"""The error of finite convolutional networks falls as the theory says."""

from lab.computing import compute
from shoal import GELU, ConvResNet
from shoal.lab import find
from shoal.reproductions.findings.conv_width import ConvWidthError


def test_the_error_falls_like_the_root_of_the_width() -> None:
    architecture = ConvResNet(GELU(), 2, residual_scale=2.0)
    experiment = ConvWidthError(
        architecture, widths=(16, 64, 256), draws=10, samples=4, channels=2, pixels=4
    )
    results = compute(experiment)
    summary = experiment.summarize(results)
    for kind in ("ck", "ntk", "layer1", "layer2"):
        assert summary[f"{kind}_slope_low"] < -0.5 < summary[f"{kind}_slope_high"]
    assert abs(summary["printed_over_limit"] - 1) > 0.1
    (axes,) = experiment.plot(results).axes
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_it_has_a_name() -> None:
    assert find("shoal", "conv-width") == [ConvWidthError]
    assert len(ConvWidthError.quick().points()) == 24

"""Pictures of ridge paths."""

from typing import TYPE_CHECKING

from shoal.core.figures import Figure, empty_figure

if TYPE_CHECKING:
    from shoal.regression.ridge_path import RidgePath

__all__ = ["plot_path"]

_COLORS = {"loo": "#0072B2", "gcv": "#E69F00", "likelihood": "#009E73"}
_NAMES = {"loo": "leave-one-out", "gcv": "generalized cross-validation"}


def plot_path(path: "RidgePath") -> Figure:
    """Errors, likelihood and degrees of freedom against the ridge."""
    figure = empty_figure(12.6, 3.2)
    errors, likelihood, freedom = figure.subplots(1, 3)
    for name, values in (("loo", path.loo), ("gcv", path.gcv)):
        errors.plot(path.ridges, values, color=_COLORS[name], label=_NAMES[name])
        errors.axvline(path.best(name), color=_COLORS[name], linestyle=":")  # type: ignore[arg-type]
    if bool((path.loo > 0).any()):
        errors.set_yscale("log")
    errors.set_title("mean squared error")
    errors.legend(framealpha=0.7, edgecolor="none")
    likelihood.plot(path.ridges, path.log_likelihood, color=_COLORS["likelihood"])
    likelihood.axvline(path.best("likelihood"), color=_COLORS["likelihood"], linestyle=":")
    likelihood.set_title("log marginal likelihood, best scale")
    freedom.plot(path.ridges, path.freedom, color="#000000")
    freedom.set_title("degrees of freedom")
    for axes in (errors, likelihood, freedom):
        axes.set_xscale("log")
        axes.set_xlabel("ridge λ")
        axes.grid(color="#e4e4e4", linewidth=0.6)
    return figure

"""Figures of the study of depth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.pages.figures import Figure, new_figure, styled
from shoal.reproductions.depth.statistics import Compared

if TYPE_CHECKING:
    from shoal.reproductions.depth.study import DepthStudy

__all__ = ["draw_study"]


@styled
def draw_study(study: "DepthStudy", found: Sequence[Compared]) -> Figure:
    return new_figure(5, 4)

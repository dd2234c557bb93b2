"""The sections of an analysis: a new capability is a new section."""

from shoal.app.sections.base import Findings, NothingToSayError, Section, Subject
from shoal.app.sections.certificate import CERTIFICATE
from shoal.app.sections.designs import DESIGN
from shoal.app.sections.kernels import EQUIVALENTS, KERNELS
from shoal.app.sections.networks import ACCURACY, TRAINING
from shoal.app.sections.prediction import PREDICTION
from shoal.app.sections.spectra import SPECTRUM
from shoal.app.sections.well_posedness import WELL_POSEDNESS

__all__ = ["CERTIFICATE", "SECTIONS", "Findings", "NothingToSayError", "Section", "Subject"]

SECTIONS: tuple[Section, ...] = (
    WELL_POSEDNESS,
    KERNELS,
    EQUIVALENTS,
    SPECTRUM,
    DESIGN,
    TRAINING,
    ACCURACY,
    PREDICTION,
    CERTIFICATE,
)

"""Limiting eigenvalue distributions of high-dimensional equivalents."""

from shoal.spectra.law import Law
from shoal.spectra.spectrum import Atom, Spectra, Spectrum, spectrum
from shoal.spectra.spikes import Spike, Transition

__all__ = ["Atom", "Law", "Spectra", "Spectrum", "Spike", "Transition", "spectrum"]

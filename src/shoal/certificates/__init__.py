"""Certificates: will gradient descent train this network?"""

from shoal.certificates.certificate import Certificate, Conclusion, Condition
from shoal.certificates.certify import certify
from shoal.certificates.enclosures import least_eigenvalue, least_singular_value, spectral_norm
from shoal.certificates.width import RequiredWidth, required_width
from shoal.training import Promises

__all__ = [
    "Certificate",
    "Conclusion",
    "Condition",
    "Promises",
    "RequiredWidth",
    "certify",
    "least_eigenvalue",
    "least_singular_value",
    "required_width",
    "spectral_norm",
]

r"""The spread of trained networks over their random initial functions.

The initial function of a wide network is a Gaussian process with covariance $K$, the CK. Training
maps it linearly to the trained one, $f_t = f_0 + A_t(y - f_0(X))$, which is one too (Lee et al.
2019, Eqs. (14) to (16)).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.learning.convergence.spectrum import Spectrum

_ROWS = 1024  # test inputs that are treated together


@dataclass(frozen=True, eq=False)
class TestPrior:
    """The covariance of the initial function at the test inputs.

    Attributes:
        cross: With the training inputs, along the eigenvectors of the NTK; (m, n).
        own: With each other, (m, m), or only of each with itself, (m,).
    """

    cross: Tensor
    own: Tensor

    @classmethod
    def of(cls, spectrum: Spectrum, cross: Tensor, own: Tensor) -> "TestPrior":
        """Change the basis of the training inputs."""
        return cls(cross.to(torch.float64) @ spectrum.vectors, own.to(torch.float64))


@dataclass(frozen=True, eq=False)
class Ensemble:
    """A Gaussian initial function of mean zero.

    Attributes:
        train: Its covariance at the training inputs, in the eigenbasis of the NTK.
        test: Its covariance at the test inputs, if there are any and it is known there.
    """

    train: Tensor
    test: TestPrior | None

    @classmethod
    def of(cls, spectrum: Spectrum, ck: Tensor, test: TestPrior | None) -> "Ensemble":
        """Change the basis."""
        return cls(spectrum.project(ck) @ spectrum.vectors, test)

    def loss_variance(self, left: Tensor, components: Tensor) -> float:
        r"""The variance of $\frac12\|g\|^2$ for errors $g$, shares ``left`` of initial ones.

        That is $\frac12\mathrm{tr}\,C^2 + \mu^\top C\mu$ for each output, with the mean $\mu$ and
        the covariance $C$ of $g$.
        """
        square = left.square()
        means = square[:, None] * components
        noise = 0.5 * components.shape[1] * (square @ (self.train.square() @ square))
        return float(noise + (means * (self.train @ means)).sum())

    def test_variance(self, weights: Tensor) -> Tensor:
        r"""The diagonal of :meth:`test_covariance`."""
        test = self._test()
        own = test.own if test.own.dim() == 1 else test.own.diagonal()
        parts = [
            ((a @ self.train - 2 * cross) * a).sum(1)
            for a, cross in zip(weights.split(_ROWS), test.cross.split(_ROWS), strict=True)
        ]
        return (own + torch.cat(parts)).clamp_(min=0)  # rounding may make it negative

    def test_covariance(self, weights: Tensor) -> Tensor:
        r"""The covariance of $f_0(x) - A f_0(X)$, where $A$ is ``weights`` in the eigenbasis."""
        test = self._test()
        mixed = weights @ test.cross.T
        return test.own + weights @ self.train @ weights.T - mixed - mixed.T

    def _test(self) -> TestPrior:
        if self.test is None:
            raise ValueError("the covariance at the test inputs is not known")
        return self.test

"""What passes over pairs of images need to know of a convolutional equilibrium."""

from typing import NamedTuple


class Equilibrium(NamedTuple):
    r"""What of an equilibrium is not a tensor.

    Attributes:
        recurrent: $\sigma_a^2$.
        injected: $\sigma_b^2$.
        bias: The variance of the biases.
        gain: $s$, by what one turn multiplies changes at most.
        shares: What readout, recurrent weights, input weights and biases count in the NTK.
    """

    recurrent: float
    injected: float
    bias: float
    gain: float
    shares: tuple[float, float, float, float]

    def chebyshev(self, lowest: float) -> tuple[float, float]:
        """The factor of residuals, and the squared spread, of Chebyshev's semi-iteration.

        Args:
            lowest: The least eigenvalue of a turn, as a share of the largest.
        """
        middle, half = self.gain * (1 + lowest) / 2, self.gain * (1 - lowest) / 2
        return 1 / (1 - middle), (half / (1 - middle)) ** 2

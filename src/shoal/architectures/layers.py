r"""The parts of networks: cells, in a chain or in a loop.

A cell makes features $x'$ of features $x$ by one random matrix and one activation,

$$x' = e\,x + \frac{k}{\sqrt m}\,\varphi(W x + b).$$

An explicit network is a chain of cells from its input to its readout. The features of an implicit
one are the fixed point of a loop of cells; the input is injected into the first cell.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.core import checks


@dataclass(frozen=True)
class Weights:
    r"""A random matrix, or the biases of a cell.

    Attributes:
        group: The name of the group of parameters that it belongs to.
        variance: $v$: features of covariance $\Sigma$ become $v\Sigma$; biases have variance $v$.
        tangent: How much the group counts in the NTK, where that is not the variance: weights that
            are trained in another scale than they act in.
        field: The field of the architecture that holds the variance, if one does: kernels can be
            differentiated in it.
    """

    group: str
    variance: float | Tensor = 1.0
    tangent: float | None = None
    field: str | None = None

    def __post_init__(self) -> None:
        """Check the fields; tensors that stand for variances are checked where they come in."""
        checks.instance("group", self.group, str)
        if not isinstance(self.variance, Tensor):
            checks.real(f"the variance of {self.group!r}", self.variance, at_least=0.0)
        if self.tangent is not None:
            checks.real(f"the tangent of {self.group!r}", self.tangent, at_least=0.0)

    @property
    def share(self) -> float | Tensor:
        """How much the group counts in the NTK."""
        return self.variance if self.tangent is None else self.tangent

    def with_variances(self, values: Mapping[str, Tensor]) -> "Weights":
        """These weights with the tensor that stands for their variance, if one does."""
        if self.field is None or self.field not in values:
            return self
        return replace(self, variance=values[self.field])


@dataclass(frozen=True)
class Cell:
    r"""One layer, $x' = e\,x + k\,m^{-1/2} \varphi(Wx + b)$.

    Attributes:
        activation: $\varphi$.
        weights: $W$.
        gain: $k$.
        skip: $e$.
        bias: $b$; ``None`` if there is none.
    """

    activation: Activation
    weights: Weights
    gain: float = 1.0
    skip: float = 0.0
    bias: Weights | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "activation", as_activation("activation", self.activation))
        checks.instance("weights", self.weights, Weights)
        checks.real("gain", self.gain)
        checks.real("skip", self.skip)
        if self.bias is not None:
            checks.instance("bias", self.bias, Weights)

    @property
    def bias_variance(self) -> float | Tensor:
        """The variance of the biases; 0 if there are none."""
        return 0.0 if self.bias is None else self.bias.variance


@dataclass(frozen=True)
class Layers:
    r"""A whole network.

    Attributes:
        cells: From the input to the readout, or once around the loop.
        readout: The last matrix, of the group ``"readout"``; both kernels belong to the output
            with it. ``None`` if it is fixed, with signs of unit variance.
        injection: The weights by which the input enters the first cell of a loop; ``None`` if the
            cells are a chain.
        gated: Whether the network sees the directions of its inputs only, and its output is
            multiplied by their norms.
    """

    cells: tuple[Cell, ...]
    readout: Weights | None = Weights("readout")
    injection: Weights | None = None
    gated: bool = False

    def __post_init__(self) -> None:
        """Refuse networks without a known kernel."""
        if not checks.instance("cells", self.cells, tuple):
            raise ValueError("cells must have at least one entry, got none")
        for index, cell in enumerate(self.cells):
            checks.instance(f"cells[{index}]", cell, Cell)
        for name, weights in (("readout", self.readout), ("injection", self.injection)):
            if weights is not None:
                checks.instance(name, weights, Weights)
        if self.cells[0].skip or (self.injection and any(cell.skip for cell in self.cells)):
            raise ValueError("cells must have no skip connection in a loop, or around the first")
        if self.readout is not None and self.readout.group != "readout":
            raise ValueError(f"readout must have the group 'readout', got {self.readout.group!r}")
        named = Counter(["readout", *[w.group for w in self.weights if w is not self.readout]])
        if len(named) < named.total():
            twice = named.most_common(1)[0][0]
            raise ValueError(f"each group must name one kind of weights, got {twice!r} again")

    @property
    def weights(self) -> tuple[Weights, ...]:
        """All of them: the readout, the cells', the injection, the biases."""
        matrices, biases = zip(*[(cell.weights, cell.bias) for cell in self.cells], strict=True)
        every = (self.readout, *matrices, self.injection, *biases)
        return tuple([weights for weights in every if weights is not None])

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups of parameters, each once."""
        return tuple(dict.fromkeys(weights.group for weights in self.weights))

    @property
    def variances(self) -> tuple[str, ...]:
        """The fields of the architecture that hold variances, each once."""
        fields = (weights.field for weights in self.weights)
        return tuple(dict.fromkeys(field for field in fields if field is not None))

    @property
    def biased(self) -> bool:
        """Whether a cell has biases."""
        return any(cell.bias is not None for cell in self.cells)

    @property
    def positively_homogeneous(self) -> bool:
        """Whether the output is, with all weights."""
        if self.gated:
            return True
        homogeneous = all(cell.activation.positively_homogeneous for cell in self.cells)
        return homogeneous and not self.biased

    def with_variances(self, values: Mapping[str, Tensor]) -> "Layers":
        """These layers with tensors that stand for variances of the architecture."""
        if not values:
            return self

        def exchanged(weights: Weights | None) -> Weights | None:
            return None if weights is None else weights.with_variances(values)

        cells = tuple(
            replace(cell, weights=cell.weights.with_variances(values), bias=exchanged(cell.bias))
            for cell in self.cells
        )
        return replace(
            self,
            cells=cells,
            readout=exchanged(self.readout),
            injection=exchanged(self.injection),
        )


def squared_gain(cells: tuple[Cell, ...]) -> float:
    r"""The squared gain of cells in turn, $\prod v k^2 L^2$, with Lipschitz constants $L$."""
    gain = 1.0
    for cell in cells:
        variance = cell.weights.variance
        if isinstance(variance, Tensor):
            variance = float(variance.detach().max())
        if variance == 0:  # also where the activation is not Lipschitz
            return 0.0
        gain *= variance * cell.gain**2 * cell.activation.lipschitz**2
    return gain

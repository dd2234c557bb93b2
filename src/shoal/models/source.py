"""Fully connected networks as Python source that needs nothing but PyTorch."""

from torch import Tensor

from shoal.gaussian.moments import normalization
from shoal.models.activation_source import Expressions
from shoal.models.fully_connected import FullyConnectedNetwork

__all__ = ["WRITTEN", "module_source"]

WRITTEN = "Written by shoal, which it does not need"

_HEAD = f'''"""{{title}}

{WRITTEN}: only torch, and safetensors to load the weights.

    import {{module}}
    model = {{module}}.load()
    y = model(x)  # x: (samples, {{in_features}}), {{dtype}}
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

DTYPE = {{dtype}}
WEIGHTS = Path(__file__).with_name("{{weights}}")
'''

_LOAD = '''

def load(path: str | Path = WEIGHTS, device: torch.device | str = "cpu") -> Model:
    """The network with its weights, from the file beside this one unless ``path`` says another."""
    from safetensors.torch import load_file

    model = Model()
    model.load_state_dict(load_file(path))
    return model.to(device)
'''


def module_source(
    network: FullyConnectedNetwork, *, module: str, weights: str, by_bits: bool = True
) -> tuple[str, dict[str, Tensor]]:
    """The source of a module with the class ``Model`` and ``load``, and its state.

    Args:
        network: The network.
        module: The name of the module.
        weights: The name of the file of weights beside it.
        by_bits: As for ``Expressions``.
    """
    spec, expressions = network.spec, Expressions(network.readout.dtype, by_bits)
    forward = _forward(network, expressions)
    model = _model(network, expressions.modules(), forward)
    head = _HEAD.format(
        title=_title(network),
        module=module,
        in_features=spec.in_features,
        dtype=network.readout.dtype,
        weights=weights,
    )
    parts = [head, *expressions.helpers, model, _LOAD]
    state = {f"{name}.weight": value for name, value in network.state_dict().items()}
    state |= expressions.state(network.readout.device)
    return "\n\n\n".join(part.strip() for part in parts) + "\n", state


def _title(network: FullyConnectedNetwork) -> str:
    spec = network.spec
    counts = {
        "input": spec.in_features,
        "hidden layer": spec.architecture.depth,
        "unit": spec.width,
        "output": spec.out_features,
    }
    inputs, layers, units, outputs = (
        f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items()
    )
    return f"A fully connected network: {inputs}, {layers} of {units}, {outputs}."


def _model(network: FullyConnectedNetwork, tables: list[str], forward: list[str]) -> str:
    """The class."""
    spec = network.spec
    sizes = [spec.in_features] + [spec.width] * spec.architecture.depth
    layers = [f"layer{k}" for k in range(1, spec.architecture.depth + 1)]
    lines = [
        f"self.{name} = nn.Linear({size}, {spec.width}, bias=False, dtype=DTYPE)"
        for name, size in zip(layers, sizes, strict=False)
    ]
    lines.append(
        f"self.readout = nn.Linear({spec.width}, {spec.out_features}, bias=False, dtype=DTYPE)"
    )
    lines += tables
    trained = {name for name, p in network.groups.items() if p.requires_grad}
    frozen = [name for name in [*layers, "readout"] if name not in trained]
    lines += [f"self.{name}.requires_grad_(False)" for name in frozen]
    return "\n".join(
        [
            "class Model(nn.Module):",
            '    """The network."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            *(f"        {line}" for line in lines),
            "",
            "    def forward(self, x: Tensor) -> Tensor:",
            '        """The outputs."""',
            *(f"        {line}" for line in forward),
        ]
    )


def _forward(network: FullyConnectedNetwork, expressions: Expressions) -> list[str]:
    """The body of ``forward``; see :class:`FullyConnectedNetwork`."""
    architecture, lines = network.architecture, []
    if architecture.norm_gated:
        lines += [
            "norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
            "x = x / norm.clamp(min=torch.finfo(x.dtype).tiny)",
        ]
    for layer, sigma in enumerate(architecture.activations, start=1):
        constant = repr(normalization(sigma)) if architecture.normalized else "1"
        lines += [
            f"x = self.layer{layer}(x)",
            f"x = {expressions.of(sigma)}",
            f"x = x * math.sqrt({constant} / {network.spec.width})",
        ]
    if architecture.norm_gated:
        lines.append("x = x * norm")
    lines.append("return self.readout(x)")
    return lines

"""Explicit networks of vectors or images as Python source that needs nothing but PyTorch."""

import math
from typing import Any

from torch import Tensor

from shoal.core.words import counted
from shoal.networks.chain import ChainNetwork
from shoal.networks.programs.activation_source import Expressions

WRITTEN = "Written by shoal, which it does not need"

_HEAD = f'''"""{{title}}

{WRITTEN}: only torch, and safetensors to load the weights.

    import {{module}}
    model = {{module}}.load()
    y = model(x)  # x: (samples, {{inputs}}), {{dtype}}
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
    network: ChainNetwork[Any], *, module: str, weights: str, by_bits: bool = True
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
        inputs=", ".join(map(str, [spec.in_features, *_pixels(network)])),
        dtype=network.readout.dtype,
        weights=weights,
    )
    parts = [head, *expressions.helpers, model, _LOAD]
    state = {
        name if value.dim() == 1 else f"{name}.weight": value
        for name, value in network.state_dict().items()
    }
    state |= expressions.state(network.readout.device)
    return "\n\n\n".join(part.strip() for part in parts) + "\n", state


def _title(network: ChainNetwork[Any]) -> str:
    spec = network.spec
    kind, entering, inside = "fully connected", "input", "unit"
    if spec.pixel_axes:
        kind, entering, inside = "convolutional", "channel", "channel"
    counts = (
        (spec.in_features, entering),
        (len(network.layers.cells), "hidden layer"),
        (spec.width, inside),
        (spec.out_features, "output"),
    )
    inputs, layers, units, outputs = (counted(count, word) for count, word in counts)
    return f"A {kind} network: {inputs}, {layers} of {units}, {outputs}."


def _model(network: ChainNetwork[Any], tables: list[str], forward: list[str]) -> str:
    """The class."""
    spec, layers = network.spec, network.layers
    sizes = [spec.in_features] + [spec.width] * len(layers.cells)
    modules = {
        cell.weights.group: _linear(network, size)
        for cell, size in zip(layers.cells, sizes, strict=False)
    }
    seen = network.readout.shape[1]
    modules["readout"] = f"nn.Linear({seen}, {spec.out_features}, bias=False, dtype=DTYPE)"
    biases = [cell.bias.group for cell in layers.cells if cell.bias is not None]
    lines = [f"self.{name} = {module}" for name, module in modules.items()]
    lines += [
        f"self.{name} = nn.Parameter(torch.zeros({spec.width}, dtype=DTYPE))" for name in biases
    ]
    lines += tables
    trained = {name for name, p in network.groups.items() if p.requires_grad}
    frozen = [name for name in [*modules, *biases] if name not in trained]
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


def _linear(network: ChainNetwork[Any], size: int) -> str:
    """The module of a layer's weights."""
    spec = network.spec
    if not spec.pixel_axes:
        return f"nn.Linear({size}, {spec.width}, bias=False, dtype=DTYPE)"
    side, padding = spec.architecture.patch_size, spec.architecture.padding
    return (
        f"nn.Conv{spec.pixel_axes}d({size}, {spec.width}, {side}, padding={side // 2}, "
        f'padding_mode="{padding}", bias=False, dtype=DTYPE)'
    )


def _pixels(network: ChainNetwork[Any]) -> tuple[int | str, ...]:
    """How many pixels lie along each axis of images, where that is fixed."""
    return network.spec.pixels or ("pixels",) * network.spec.pixel_axes


def _pooled(network: ChainNetwork[Any]) -> list[str]:
    """What the readout sees of the last features."""
    spec = network.spec
    if not spec.pixel_axes:
        return []
    pooling = spec.architecture.pooling
    if pooling is None:
        return [f"x = x.flatten(1) / math.sqrt({math.prod(spec.pixels)})"]
    return [f"x = x.flatten(2).{'sum' if pooling == 'sum' else 'mean'}(2)"]


def _forward(network: ChainNetwork[Any], expressions: Expressions) -> list[str]:
    """The body of ``forward``; see :class:`ChainNetwork`."""
    layers, lines = network.layers, []
    if layers.gated:
        lines += [
            "norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
            "x = x / norm.clamp(min=torch.finfo(x.dtype).tiny)",
        ]
    for cell in layers.cells:
        if cell.skip:
            lines.append(f"below = {_times('x', cell.skip)}")
        inner = _times(f"self.{cell.weights.group}(x)", network.scales[cell.weights.group])
        if cell.bias is not None:
            bias = f"self.{cell.bias.group}"
            if network.spec.pixel_axes:
                bias += f".view(-1{', 1' * network.spec.pixel_axes})"
            inner += f" + {_times(bias, network.scales[cell.bias.group])}"
        lines += [
            f"x = {inner}",
            f"x = {expressions.expression(cell.activation)}",
            f"x = {_times('x', cell.gain)} / math.sqrt({network.spec.width})",
        ]
        if cell.skip:
            lines.append("x = below + x")
    if layers.gated:
        lines.append("x = x * norm")
    lines += _pooled(network)
    lines.append(f"return {_times('self.readout(x)', network.scales['readout'])}")
    return lines


def _times(expression: str, factor: float) -> str:
    return expression if factor == 1 else f"{expression} * {factor!r}"

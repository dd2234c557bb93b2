"""Small trained models with loops of known behavior, independent of shoal.

``python tests/loops/trained.py`` trains them again, in about two minutes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

WEIGHTS = Path(__file__).parent / "weights"
LENGTH, WIDTH = 10, 20


def parities(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bits, and the parity of each prefix."""
    bits = torch.randint(2, (samples, LENGTH), generator=torch.Generator().manual_seed(seed))
    return bits, bits.cumsum(1) % 2


def sums(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences in which each token is the sum of the two before it, modulo 7; the next token."""
    tokens = torch.randint(7, (samples, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    for place in range(2, LENGTH + 1):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % 7
    return tokens[:, :-1], tokens[:, 1:].clone().index_fill(1, torch.tensor([0]), -100)


def rings(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points on the line, and which of three intervals they are in."""
    x = 2 * torch.rand(samples, 2, generator=torch.Generator().manual_seed(seed)) - 1
    return x, (x.norm(dim=1) / 0.45).long().clamp(max=2)


class Causal(nn.Module):
    """A convolution over the last three positions."""

    def __init__(self, inputs: int, outputs: int = WIDTH) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, 3)

    def forward(self, z: Tensor) -> Tensor:
        return self.convolution(functional.pad(z.transpose(1, 2), (2, 0))).transpose(1, 2)


class Looped(nn.Module):
    """Convolutions over a sequence, with the input recalled in each iteration."""

    def __init__(self, steps: int, classes: int = 2, tokens: int = 2) -> None:
        super().__init__()
        self.embed, self.steps = nn.Embedding(tokens, WIDTH), steps
        self.first, self.second = Causal(WIDTH), Causal(WIDTH)
        self.readout = nn.Linear(WIDTH, classes)

    def turn(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.relu(self.first(z + x))) + x)

    def start(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        z = self.start(x)
        for _ in range(self.steps):
            z = self.turn(z, x)
        return self.readout(z)


class FixedPoint(Looped):
    pass


class Overthinking(Looped):
    """A residual stream without recall, trained for one count alone."""

    def start(self, x: Tensor) -> Tensor:
        return x

    def turn(self, z: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002
        return z + self.second(torch.relu(self.first(z)))


class Residual(Looped):
    """A residual stream, normalized before each iteration and before the output."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.norm, self.final = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def turn(self, z: Tensor, x: Tensor) -> Tensor:
        return z + self.second(torch.relu(self.first(self.norm(z) + x))) + x

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        z = self.start(x)
        for _ in range(self.steps):
            z = self.turn(z, x)
        return self.readout(self.final(z))


class Slow(Looped):
    """Each iteration goes a tenth of the way."""

    def turn(self, z: Tensor, x: Tensor) -> Tensor:
        return z + 0.15 * (super().turn(z, x) - z)


class Flipping(Looped):
    """The output changes its sign in each iteration."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        z, sign = self.start(x), torch.ones_like(x[..., :1])
        for _ in range(self.steps):
            z, sign = self.turn(z, x), -sign
        return self.readout(z) * sign


class TwoStates(Looped):
    """A fast state and a slow one; only the last outer iteration has gradients."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.slow, self.norm = Causal(2 * WIDTH), nn.LayerNorm(WIDTH)

    def both(self, a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            b = self.norm(b + self.second(torch.relu(self.first(a + b + x))))
        return self.norm(a + self.slow(torch.cat([a, b], -1))), b

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        a = b = torch.zeros_like(x)
        with torch.set_grad_enabled(self.training):
            for _ in range(self.steps - 1):
                a, b = self.both(a, b, x)
        a, b = self.both(a, b, x)
        return self.readout(a)


class StepIndex(Looped):
    """The number of the iteration enters as an embedding."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.time = nn.Embedding(16, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        z = torch.zeros_like(x)
        for n in range(self.steps):
            z = self.turn(z + self.time(torch.tensor(n)), x)
        return self.readout(z)


class RecurrentDepth(nn.Module):
    """A causal language model: a prelude, a recurrent block from a random start, and a coda."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.embed, self.steps = nn.Embedding(7, WIDTH), steps
        self.prelude, self.core, self.adapter = Causal(WIDTH), Causal(WIDTH), Causal(2 * WIDTH)
        self.norm, self.coda = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.readout = nn.Linear(WIDTH, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.prelude(self.embed(tokens)))
        z = torch.randn_like(x)
        for _ in range(self.steps):
            y = self.adapter(torch.cat([z, x], -1))
            z = self.norm(y + self.core(torch.relu(y)))
        return self.readout(torch.relu(self.coda(z)))


class Convolution(nn.Module):
    """Images with recall: which pixels are connected to a marked one."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.first = nn.Conv2d(2, 16, 3, padding=1)
        self.recall = nn.Conv2d(18, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.readout = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.first(x))
        for _ in range(self.steps):
            z = torch.tanh(self.second(torch.relu(self.recall(torch.cat([z, x], 1)))) + z)
        return self.readout(z)


def floods(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of open pixels and one marked; which pixels the mark reaches."""
    generator = torch.Generator().manual_seed(seed)
    open_pixels = (torch.rand(samples, 8, 8, generator=generator) < 0.5).float()
    mark = torch.zeros(samples, 8, 8)
    mark[:, 4, 4] = open_pixels[:, 4, 4] = 1
    reached = mark
    for _ in range(40):
        reached = functional.max_pool2d(reached, 3, 1, 1) * open_pixels
    return torch.stack([open_pixels, mark], 1), reached.long()


class Plain(nn.Module):
    """A loop of vectors that is not needed."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.first, self.cell = nn.Linear(2, 32), nn.Linear(32, 32)
        self.readout, self.steps = nn.Linear(32, 3), steps

    def forward(self, x: Tensor) -> Tensor:
        z = x = torch.relu(self.first(x))
        for _ in range(self.steps):
            z = torch.relu(x + 0.1 * self.cell(z))
        return self.readout(z)


Data = Callable[[int, int], tuple[Tensor, Tensor]]

# model, count, data, least count in training, training steps
MODELS: dict[str, tuple[Callable[[int], nn.Module], int, Data, int, int]] = {
    "overthinking": (Overthinking, 6, parities, 6, 700),
    "fixed_point": (FixedPoint, 8, parities, 4, 700),
    "residual": (Residual, 6, parities, 3, 700),
    "slow": (Slow, 32, parities, 32, 350),
    "flipping": (Flipping, 7, parities, 7, 700),
    "two_states": (TwoStates, 4, parities, 4, 500),
    "step_index": (StepIndex, 6, parities, 6, 700),
    "recurrent_depth": (RecurrentDepth, 6, sums, 3, 900),
    "convolution": (Convolution, 8, floods, 4, 600),
    "plain": (Plain, 6, rings, 1, 500),
}


def train(name: str) -> nn.Module:
    """Train one of the models."""
    make, steps, data, least, count = MODELS[name]
    torch.manual_seed(0)
    model = make(steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=count)
    for step in range(count):
        x, y = data(64, 1000 + step)
        if least < steps:
            model.steps = int(torch.randint(least, steps + 1, ()))  # type: ignore[assignment]
        logits = model(x)
        classes = 1 if logits.dim() == 4 else -1
        loss = functional.cross_entropy(logits.movedim(classes, 1), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.steps = steps  # type: ignore[assignment]
    return model.eval()


def load(name: str) -> tuple[nn.Module, int, Data]:
    """A trained model, its count and its data."""
    make, steps, data, _, _ = MODELS[name]
    model = make(steps)
    model.load_state_dict(load_file(WEIGHTS / f"{name}.safetensors"))
    return model.eval(), steps, data


if __name__ == "__main__":
    WEIGHTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        trained = train(name)
        save_file(trained.state_dict(), WEIGHTS / f"{name}.safetensors")

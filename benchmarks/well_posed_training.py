"""What keeps an equilibrium well-posed in training, and what it costs.

python benchmarks/well_posed_training.py [--remedy none|penalty|constraint|monotone]
[--activation relu|tanh] [--epochs E] [--width M] [--data FOLDER] [--samples N] [--device D]
[--learning-rate R] [--recurrent-rate Q] [--penalty P] [--seed S] [--seconds T] [--output FILE]

Trains a classifier on an equilibrium with Adam and batches of 256: on the whole of Fashion-MNIST
from its official files in FOLDER, or on scikit-learn's digits without one. Without a remedy the
equilibrium of a ReLU is lost within an epoch. Prints one line of JSON for a run, and adds it to
FILE: accuracy, seconds, the largest norm of the Jacobian that was seen, and how many samples did
not converge in either pass. A run that FILE has already is left out; one that takes longer than T
seconds ends there, and its line says after how many epochs.

The norm is estimated by power iteration at the first samples of every tenth batch: a lower bound,
which converges to the norm. For the constraint the certified bound of all samples is there too,
and for monotone cells the certified rate of contraction.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import shoal

BATCH, EVERY, LOOKED_AT = 256, 10, 16
MAX_GAIN = 0.95
NORMS = {"symmetric": 1.0, "skew": 0.25}  # of a monotone cell: so that few steps suffice


class PlainCell(nn.Module):
    """The cell of a DEQ: φ(Wz + Ux + b), at first a contraction."""

    def __init__(self, features: int, width: int, activation: str) -> None:
        super().__init__()
        self.recurrent, self.input = nn.Linear(width, width, bias=False), nn.Linear(features, width)
        self.function = {"relu": torch.relu, "tanh": torch.tanh}[activation]
        with torch.no_grad():
            self.recurrent.weight.normal_().mul_(0.25 / width**0.5)  # of norm 0.5

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Once through."""
        return self.function(self.recurrent(z) + self.input(x))


class Classifier(nn.Module):
    """An equilibrium and a linear readout."""

    def __init__(self, cell: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = shoal.Equilibrium(cell, on_failure="status")
        self.readout, self.width = nn.Linear(width, 10), width

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores, and the equilibrium."""
        z = self.layer(x.new_zeros(len(x), self.width), x)
        return self.readout(z), z


def data(folder: str | None, samples: int | None, device: str) -> list[Tensor]:
    """Training and test inputs with their labels, centered and scaled alike."""
    name = "digits" if folder is None else "fashion-mnist"
    parts = [shoal.data.load(name, split=split, folder=folder) for split in ("train", "test")]
    x, x_test = (part.x.flatten(1).float() for part in parts)
    mean, deviation = x.mean(), x.std()
    x, x_test = ((one - mean) / deviation / x.shape[1] ** 0.5 for one in (x, x_test))
    y, y_test = (part.y for part in parts)
    tensors = [x[:samples], y[:samples], x_test[:samples], y_test[:samples]]
    return [tensor.to(device) for tensor in tensors]


def jacobian_norm(layer: shoal.Equilibrium, z: Tensor, x: Tensor, steps: int = 10) -> float:
    """The largest norm of the Jacobian at some samples, by power iteration."""
    problem, rows = layer.problem_at(z[:LOOKED_AT].detach(), x[:LOOKED_AT])
    near = problem.linearize(rows)
    with torch.no_grad():
        direction = torch.randn_like(rows)
        for _ in range(steps):
            direction = nn.functional.normalize(near.pull(near.push(direction)))
        return float(near.push(direction).norm(dim=1).max())


def prepare(remedy: str, model: Classifier, optimizer: torch.optim.Optimizer) -> list[object]:
    """Attach what the remedy needs to the optimizer."""
    if remedy == "constraint":
        kept = [shoal.GainConstraint(model.layer, max_gain=MAX_GAIN, weights="recurrent")]
    elif remedy == "monotone":
        kept = [
            shoal.GainConstraint(model.layer, max_gain=norm, weights=name)
            for name, norm in NORMS.items()
        ]
    else:
        return []
    for constraint in kept:
        constraint.attach(optimizer)
    return list(kept)


def groups(arguments: argparse.Namespace, model: Classifier) -> list[dict[str, object]]:
    """The weights, those that make the recurrence with a learning rate of their own."""
    recurrent = [p for name, p in model.layer.named_parameters() if "recurrent" in name]
    known = {id(parameter) for parameter in recurrent}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    if arguments.recurrent_rate is None or not recurrent:
        return [{"params": [*others, *recurrent]}]
    return [{"params": others}, {"params": recurrent, "lr": arguments.recurrent_rate}]


def train(
    arguments: argparse.Namespace, model: Classifier, x: Tensor, y: Tensor
) -> tuple[float, float]:
    """Train the model; returns the largest norm of the Jacobian that was seen, and the epochs."""
    optimizer = torch.optim.Adam(groups(arguments, model), lr=arguments.learning_rate)
    prepare(arguments.remedy, model, optimizer)
    largest, step, start = 0.0, 0, time.perf_counter()
    for _ in range(arguments.epochs):
        for batch in torch.randperm(len(x)).to(x.device).split(BATCH):
            if time.perf_counter() - start > arguments.seconds:
                return largest, step * BATCH / len(x)
            optimizer.zero_grad()
            scores, z = model(x[batch])
            loss = nn.functional.cross_entropy(scores, y[batch])
            if arguments.remedy == "penalty":
                loss = loss + arguments.penalty * shoal.jacobian_penalty(model.layer, z, x[batch])
            loss.backward()
            if step % EVERY == 0:
                largest = max(largest, jacobian_norm(model.layer, z, x[batch]))
            optimizer.step()
            step += 1
    return largest, float(arguments.epochs)


def accuracy(model: Classifier, x: Tensor, y: Tensor) -> float:
    """The fraction of samples that are classified rightly."""
    with torch.no_grad():
        pairs = zip(x.split(1000), y.split(1000), strict=True)
        right = sum(int((model(part)[0].argmax(1) == labels).sum()) for part, labels in pairs)
    return right / len(y)


def given(arguments: argparse.Namespace) -> dict[str, object]:
    """What a run is known by."""
    return {k: v for k, v in vars(arguments).items() if k not in ("output", "data", "seconds")}


def is_there(arguments: argparse.Namespace) -> bool:
    """Whether the file has this run already."""
    if arguments.output is None or not arguments.output.exists():
        return False
    lines = map(json.loads, arguments.output.read_text(encoding="utf-8").splitlines())
    return any(given(arguments).items() <= line.items() for line in lines)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """One training, as a record."""
    torch.manual_seed(arguments.seed)
    x, y, x_test, y_test = data(arguments.data, arguments.samples, arguments.device)
    width, activation = arguments.width, arguments.activation
    if arguments.remedy == "monotone":
        cell: nn.Module = shoal.MonotoneCell(x.shape[1], width, activation)
    else:
        cell = PlainCell(x.shape[1], width, activation)
    model = Classifier(cell, width).to(arguments.device)
    start = time.perf_counter()
    largest, epochs = train(arguments, model, x, y)
    if x.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    log = model.layer.log
    failed = {f"failed_{where}": log.failures[where].total() for where in ("forward", "backward")}
    certified = (
        cell.rate
        if isinstance(cell, shoal.MonotoneCell)
        else float(shoal.networks.operator_norm_bounds(cell.recurrent.weight).upper)
    )
    return {
        **given(arguments),
        "training_samples": len(x),
        "epochs_made": round(epochs, 2),
        "accuracy": accuracy(model, x_test, y_test),
        "seconds": round(seconds, 2),
        "largest_jacobian_norm": largest,
        "certified_gain_at_the_end": certified,
        **failed,
    }


def main() -> None:
    """Read the arguments, run, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    remedies = ["none", "penalty", "constraint", "monotone"]
    parser.add_argument("--remedy", choices=remedies, default="constraint")
    parser.add_argument("--activation", choices=["relu", "tanh"], default="relu")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--data", help="the folder of Fashion-MNIST's official files")
    parser.add_argument("--samples", type=int, help="take only so many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--recurrent-rate", type=float, help="that of the recurrent weights")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--penalty", type=float, default=30.0, help="its weight in the loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a file to add the line to")
    arguments = parser.parse_args()
    if is_there(arguments):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*only a part")
        line = json.dumps(run(arguments))
    print(line)
    if arguments.output is not None:
        with arguments.output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()

"""A convolutional equilibrium trained by Adam, beside torchdeq's solver and an explicit network.

python benchmarks/trained_images.py --out rows.jsonl [--data DIR] [--device cuda] [--width 64]
    [--epochs 6] [--samples N] [--seconds 200]

DIR holds the official files of Fashion-MNIST; without it there are scikit-learn's digits. All train
by the cross entropy in batches of 256, with a cosine schedule:

- ``shoal``: a ReLU ConvDEQ, its gain kept below 0.9, whose certified bound is said for each epoch;
- ``shoal, free``: the same without that constraint;
- ``torchdeq``: the first one's weights and cell, constrained too, with torchdeq's plain iteration
  and implicit gradients of the same tolerance (if it can be imported);
- ``explicit``: a ConvNet of the same width with as many layers as the equilibrium of the first took
  evaluations in the end, so that a pass forward costs the same.

After each epoch: the accuracy on the test images, which nothing is chosen by, the mean of steps,
samples whose equilibrium was not reached, and the seconds of training. Rows are written as they are
found; those of a network that is on file are not computed again.
"""

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import shoal

BATCH, MAX_GAIN, TOLERANCE, STEPS = 256, 0.9, 1e-3, 60


class WithTorchdeq(nn.Module):
    """The cell of a network of shoal, solved by torchdeq."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        from torchdeq import get_deq

        self.net = net
        self.deq = get_deq(
            f_solver="fixed_point_iter",
            b_solver="fixed_point_iter",
            f_max_iter=STEPS,
            b_max_iter=STEPS,
            f_tol=TOLERANCE,
            b_tol=TOLERANCE,
            f_stop_mode="rel",
            b_stop_mode="rel",
            ift=True,
        )

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        entering = self.net.inject(x)
        ((layer, weight),) = self.net.recurrent_layers

        def cell(z: Tensor) -> Tensor:
            inner = layer.preactivation(z, entering, weight)
            return layer.activation.function(inner)

        states, _ = self.deq(cell, torch.zeros_like(entering))
        return self.net._read(states[-1])


def data(folder: str | None, samples: int | None, device: str) -> list[Tensor]:
    """Training and test images with their labels, centered and of one scale."""
    name = "digits" if folder is None else "fashion-mnist"
    parts = [shoal.data.load(name, split=split, folder=folder) for split in ("train", "test")]
    x, x_test = (part.x.float() for part in parts)
    mean, deviation = x.mean(), x.std()
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    rows = [x[:samples], parts[0].y[:samples].long(), x_test, parts[1].y.long()]
    return [tensor.to(device) for tensor in rows]


def builder(x: Tensor, given: argparse.Namespace) -> Callable[..., Any]:
    """What builds networks of one width for these images."""
    return partial(
        shoal.build,
        in_features=x.shape[1],
        width=given.width,
        out_features=10,
        pixels=tuple(x.shape[2:]),
        readout_scale=0.0,
        seed=0,
        device=x.device,
    )


def equilibrium(x: Tensor, given: argparse.Namespace) -> Any:
    """A ConvDEQ of finite width."""
    return builder(x, given)(
        shoal.ConvDEQ("relu", recurrent_variance=0.3, input_variance=0.8),
        solver=shoal.Picard(rtol=TOLERANCE, max_steps=STEPS),
        gradient=shoal.Implicit(rtol=TOLERANCE),
        on_failure="status",
    )


def explicit(x: Tensor, depth: int, given: argparse.Namespace) -> Any:
    """A ConvNet of the same width."""
    return builder(x, given)(shoal.ConvNet(["relu"] * depth, normalized=True))


@torch.no_grad()
def tested(model: nn.Module, net: Any, x: Tensor, y: Tensor) -> dict[str, float]:
    """What is said of a network after an epoch."""
    right, failed, steps, evaluations = 0, 0, 0, 0
    for some, labels in zip(x.split(1000), y.split(1000), strict=True):
        right += int((model(some).argmax(1) == labels).sum())
        if hasattr(net, "turn"):
            found = net.solve(some)
            failed += int((~found.converged).sum())
            steps += int(found.steps.sum())
            evaluations = max(evaluations, found.evaluations)
    row = {"accuracy": right / len(x)}
    if hasattr(net, "turn"):
        gain = net.well_posedness()
        row |= {"failed": failed, "steps": steps / len(x), "evaluations": evaluations}
        row |= {"gain_lower": gain.gain_lower, "gain_upper": gain.gain_upper}
    return row


def train(
    model: nn.Module,
    net: Any,
    tensors: list[Tensor],
    given: argparse.Namespace,
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Train as people do, and write a row for each epoch."""
    x, y, x_test, y_test = tensors
    optimizer = torch.optim.Adam(net.parameters(), lr=given.rate)
    if hasattr(net, "turn") and not given.free:
        shoal.GainConstraint(net, max_gain=MAX_GAIN).attach(optimizer)
    total = given.epochs * math.ceil(len(x) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    generator, spent = torch.Generator().manual_seed(0), 0.0
    for epoch in range(1, given.epochs + 1):
        begin = time.perf_counter()
        for rows in torch.randperm(len(x), generator=generator).to(x.device).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        spent += time.perf_counter() - begin
        row = {"epoch": epoch, "loss": float(loss.detach()), "seconds": spent}
        write({**row, **tested(model, net, x_test, y_test)})
        if time.perf_counter() > given.end:
            break


def main() -> None:
    """Train what is not on file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of the rows")
    parser.add_argument("--data", help="the folder of the datasets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--samples", type=int, help="of the training set")
    parser.add_argument("--seconds", type=float, default=200.0)
    given = parser.parse_args()
    given.end = time.perf_counter() + given.seconds
    tensors = data(given.data, given.samples, given.device)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def run(name: str, make: Callable[[], tuple[nn.Module, Any]]) -> None:
        def write(row: dict[str, Any]) -> None:
            row = {"network": name, "parameters": size, **row}
            rows.append(row)
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)

        if any(row["network"] == name for row in rows) or time.perf_counter() > given.end:
            return
        model, net = make()
        given.free = name.endswith("free")
        size = sum(p.numel() for p in net.parameters())
        train(model, net, tensors, given, write)

    def with_torchdeq() -> tuple[nn.Module, Any]:
        net = equilibrium(tensors[0], given)
        return WithTorchdeq(net), net

    run("shoal", lambda: (equilibrium(tensors[0], given),) * 2)
    last = [row for row in rows if row["network"] == "shoal"][-1]
    depth = max(1, round(last["evaluations"]))
    run(f"explicit {depth}", lambda: (explicit(tensors[0], depth, given),) * 2)
    if importlib.util.find_spec("torchdeq") is not None:
        run("torchdeq", with_torchdeq)
    run("shoal, free", lambda: (equilibrium(tensors[0], given),) * 2)


if __name__ == "__main__":
    main()

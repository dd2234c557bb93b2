"""Train DEQs, diagnose them, and look for shallow networks that can replace them.

python benchmarks/distillation.py [--data FOLDER] [--activation tanh|relu|both] [--conv] [--width M]
[--epochs E] [--samples N] [--device D] [--seed S] [--output FOLDER]

Trains a DEQ as people do, by Adam with a cosine schedule in batches of 256, its recurrent weights
kept contracting by GainConstraint: on the whole of Fashion-MNIST from its official files in FOLDER,
or on scikit-learn's digits without one. With --conv the DEQ is convolutional, of M channels,
on images of half the side. The last tenth of the training samples is held out of all
training and decides; test samples play no part in that. Prints, for each activation, what
diagnose says of its iterations, the table of all candidates with accuracy, fidelity, calibration,
latency and memory, and one line of JSON; --output saves the numbers, and with matplotlib the
frontiers.
"""

import argparse
import json
import math
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

import shoal

BATCH, MAX_GAIN, RATE = 256, 0.95, 0.02
ACTIVATIONS = {"tanh": shoal.activations.Tanh(), "relu": shoal.activations.ReLU()}


def data(options: argparse.Namespace) -> list[Tensor]:
    """Training and test inputs with their labels, centered and of norm one on average."""
    folder, samples, device = options.data, options.samples, options.device
    name = "digits" if folder is None else "fashion-mnist"
    parts = [shoal.data.load(name, split=split, folder=folder) for split in ("train", "test")]
    x, x_test = (part.x.float() for part in parts)
    mean, deviation = x.mean(), x.std()
    x, x_test = ((one - mean) / deviation for one in (x, x_test))
    if options.conv:
        x, x_test = (nn.functional.avg_pool2d(one, 2) for one in (x, x_test))
    else:
        x, x_test = (one.flatten(1) / one[0].numel() ** 0.5 for one in (x, x_test))
    tensors = [x[:samples], parts[0].y[:samples], x_test, parts[1].y]
    return [tensor.to(device) for tensor in tensors]


def trained(
    phi: shoal.Activation, x: Tensor, y: Tensor, options: argparse.Namespace
) -> tuple[nn.Module, float]:
    """A trained DEQ, and the seconds that training took."""
    kind = shoal.ConvDEQ if options.conv else shoal.DEQ
    net = shoal.build(
        kind(phi, recurrent_variance=0.2, input_variance=0.8),
        in_features=x.shape[1],
        pixels=tuple(x.shape[2:]) or None,
        width=options.width,
        out_features=10,
        readout_scale=0.0,
        seed=options.seed,
        device=x.device,
        solver=shoal.Picard(rtol=1e-4, max_steps=100),
        on_failure="status",
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    shoal.GainConstraint(net, max_gain=MAX_GAIN).attach(optimizer)
    steps = options.epochs * math.ceil(len(x) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(options.seed)
    begin = time.perf_counter()
    for _ in range(options.epochs):
        for rows in torch.randperm(len(x), generator=generator).to(x.device).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    if x.is_cuda:
        torch.cuda.synchronize()
    return net, time.perf_counter() - begin


def run(name: str, options: argparse.Namespace) -> dict[str, object]:
    """One activation: train, diagnose, distill, and test once."""
    x, y, x_test, y_test = data(options)
    rest = len(x) - len(x) // 10
    net, seconds = trained(ACTIVATIONS[name], x[:rest], y[:rest], options)
    found = shoal.diagnose(net, x[rest : rest + 64], y=y[rest : rest + 64])
    print(f"{name}: {found!r}; trained in {seconds:.0f} s", flush=True)
    twin = shoal.distill(
        net,
        x[:rest],
        y[:rest],
        held_out=(x[rest:], y[rest:]),
        epochs=options.epochs,
        batch_size=BATCH,
        learning_rate=RATE,
        seed=options.seed,
    )
    print(twin, flush=True)
    tested = {}
    with torch.no_grad():
        for one in (twin.original, *twin.candidates):
            right = [
                one.module(part).argmax(1) == labels
                for part, labels in zip(x_test.split(2000), y_test.split(2000), strict=True)
            ]
            tested[one.name] = float(torch.cat(right).double().mean())
    for one, accuracy in tested.items():
        print(f"test accuracy of {one}: {accuracy:.2%}")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        twin.save(options.output / f"{name}.json")
        if find_spec("matplotlib") is not None:
            twin.save(options.output / f"{name}.png")
        (options.output / f"{name}_diagnosis.json").write_text(found.to_json())
    return {
        "activation": name,
        "width": options.width,
        "epochs": options.epochs,
        "training_seconds": seconds,
        "behavior": found.behavior,
        "stop_at": found.stop_at,
        "test_accuracy": tested,
        "distillation": twin.document(),
    }


def main() -> None:
    """Train and distill as asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the folder of the official files")
    parser.add_argument("--activation", choices=(*ACTIVATIONS, "both"), default="both")
    parser.add_argument("--conv", action="store_true", help="a convolutional DEQ")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, help="to train on; all by default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a folder for frontiers and numbers")
    options = parser.parse_args()
    for name in ACTIVATIONS if options.activation == "both" else (options.activation,):
        print(json.dumps(run(name, options)), flush=True)


if __name__ == "__main__":
    main()

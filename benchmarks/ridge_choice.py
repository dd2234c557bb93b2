"""Ridges chosen by leave-one-out, cross-validation and likelihood, against errors on held-out data.

python benchmarks/ridge_choice.py [--splits 20]

Prints a table: for each set and criterion the ridge, its error on the other half of the samples,
and how much larger that is than with the ridge of the path that is best there.
"""

import argparse
import math

import torch
from sklearn import datasets

import shoal

DEQ = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
CRITERIA = ("loo", "gcv", "likelihood")


def tables() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets: numbers, or indicators of classes."""
    found = {}
    for name in ("diabetes", "wine", "breast_cancer"):
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        if name == "diabetes":
            targets = torch.from_numpy(y)[:, None]
        else:
            targets = torch.nn.functional.one_hot(torch.from_numpy(y)).double()
        found[name.replace("_", " ")] = torch.from_numpy(x), targets
    x, y = datasets.make_friedman1(600, noise=1.0, random_state=0)
    found["Friedman 1"] = torch.from_numpy(x), torch.from_numpy(y)[:, None]
    return found


def standardized(x: torch.Tensor, train: torch.Tensor) -> torch.Tensor:
    """Columns of mean zero and variance one on the training samples, and rows of norm near one."""
    centered = (x - x[train].mean(0)) / x[train].std(0)
    return centered / math.sqrt(x.shape[1])


def held_out(
    x: torch.Tensor, y: torch.Tensor, ridges: torch.Tensor, train: torch.Tensor, new: torch.Tensor
) -> torch.Tensor:
    """Mean squared errors on held-out samples, by solving once for each ridge."""
    inner, cross = (shoal.kernel(DEQ, x[rows], x[train]).ntk for rows in (train, new))
    eye = torch.eye(len(train), dtype=torch.float64)
    solved = [torch.linalg.solve(inner + ridge * eye, y[train]) for ridge in ridges]
    return torch.stack([(cross @ alpha - y[new]).square().mean() for alpha in solved])


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=20)
    options = parser.parse_args()
    for name, (x, y) in tables().items():
        rows = []
        for seed in range(options.splits):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
            train, new = order[: len(x) // 2], order[len(x) // 2 :]
            inputs, targets = standardized(x, train), y - y[train].mean(0)
            path = shoal.learning.ridge_path(DEQ, inputs[train], targets[train])
            errors = held_out(inputs, targets, path.ridges, train, new)
            places = [int((path.ridges - path.best(c)).abs().argmin()) for c in CRITERIA]
            places.append(int(errors.argmin()))
            scores = [path.score("loo"), path.score("gcv"), math.nan, math.nan]
            rows.append([[float(path.ridges[k]), float(errors[k]), s]
                         for k, s in zip(places, scores, strict=True)])  # fmt: skip
        table = torch.tensor(rows, dtype=torch.float64)
        ridge, error = table[..., 0].median(0).values, table[..., 1]
        ratio = error / error[:, -1:]
        deviation = ratio.std(0) / math.sqrt(options.splits)
        for k, criterion in enumerate((*CRITERIA, "best there")):
            print(
                f"{name} {criterion}: ridge {ridge[k]:.2g} "
                f"({table[:, k, 0].min():.2g} to {table[:, k, 0].max():.2g}), "
                f"error {error[:, k].mean():.4g}, {ratio[:, k].mean():.3f} ± {deviation[k]:.3f} "
                f"of the best, expected {table[:, k, 2].mean():.4g}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Bayesian optimization in BoTorch with the kernel of a DEQ, beside two of BoTorch's own.

The same models, acquisition and first points with each kernel; only the kernel differs. Takes
about 130 seconds with three seeds of Branin's function; ``pip install botorch`` comes first.

    python examples/bayesian_optimization.py [--function hartmann] [--seeds 10]
        [--steps 20] [--output bayesian_optimization.png]

It prints:

    branin: regret (median, least, largest) and CPU seconds a step
    DEQ                    ...  ...  ...  ...
    InfiniteWidthBNNKernel ...  ...  ...  ...
    Matérn 5/2             ...  ...  ...  ...
"""

import argparse
import time
import warnings

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.kernels import InfiniteWidthBNNKernel
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from matplotlib.figure import Figure

import shoal
from shoal.adapters import GPyTorchKernel
from shoal.core.figures import COLORS, style

warnings.simplefilter("ignore")  # such as those of a search that begins again elsewhere
parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--function", choices=["branin", "hartmann"], default="branin")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--output", default="bayesian_optimization.png", help="the figure's place")
given = parser.parse_args()
problem = (Branin if given.function == "branin" else Hartmann)(negate=True, dtype=torch.float64)
d, (low, high) = problem.dim, problem.bounds

# %% Inputs lie in [-1, 1]^d. The network sees a constant too, which does what biases do, faster.
# Length scales are bounded as in BoTorch's own models: searches try values that are far off.
scales = {"lengthscale_prior": GammaPrior(3.0, 6.0), "lengthscale_constraint": GreaterThan(0.025)}
own, FEW = tuple(range(d)), {"options": {"maxiter": 25}}
KERNELS = {
    "DEQ": lambda: GPyTorchKernel(shoal.DEQ("relu", 0.5, 1.0), ard_num_dims=d + 1, **scales),
    "InfiniteWidthBNNKernel": lambda: InfiniteWidthBNNKernel(depth=3, active_dims=own),
    "Matérn 5/2": lambda: MaternKernel(2.5, ard_num_dims=d, active_dims=own, **scales),
}


def evaluate(x: torch.Tensor) -> torch.Tensor:
    """The function to be maximized."""
    return problem(low + (high - low) * (x[:, :d] + 1) / 2)[:, None]


def search(kernel: Kernel, seed: int) -> torch.Tensor:
    """The regret after every step, from 2 (d + 1) first points that the seed alone decides."""
    torch.manual_seed(seed)
    first = 2 * torch.quasirandom.SobolEngine(d, scramble=True, seed=seed).draw(2 * d + 2) - 1
    x = torch.cat([first, torch.ones(len(first), 1)], 1).double()
    y, cube = evaluate(x), torch.tensor([[-1.0], [1.0]]).double().expand(2, d + 1)
    for _ in range(given.steps):
        model = SingleTaskGP(x, y, covar_module=ScaleKernel(kernel()))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=FEW)
        improvement = LogExpectedImprovement(model, best_f=y.max())
        new, _ = optimize_acqf(improvement, cube, 1, 3, 64, fixed_features={d: 1.0}, **FEW)
        x, y = torch.cat([x, new]), torch.cat([y, evaluate(new)])
    return problem.optimal_value - y[:, 0].cummax(0).values[len(first) - 1 :]


print(f"{given.function}: regret (median, least, largest) and CPU seconds a step")
with style():
    axes = (figure := Figure(figsize=(5, 3.4))).subplots()
    for color, (name, kernel) in zip(COLORS, KERNELS.items(), strict=False):
        start = time.process_time()
        regret = torch.stack([search(kernel, seed) for seed in range(given.seeds)])
        seconds = (time.process_time() - start) / (given.seeds * given.steps)
        numbers = *regret[:, -1].quantile(torch.tensor([0.5, 0.0, 1.0]).double()).tolist(), seconds
        print(f"{name:22}", *(f"{number:8.2g}" for number in numbers), flush=True)
        logs = regret.clamp(min=1e-6).log10()
        error = logs.std(0, correction=min(1, given.seeds - 1)) / given.seeds**0.5
        axes.errorbar(range(given.steps + 1), logs.mean(0), error, color=color, label=name)
    ticks = range(0, given.steps + 1, 5)
    axes.set(xlabel="step", ylabel="log₁₀ of the regret", title=given.function, xticks=ticks)
    axes.legend()
    figure.savefig(given.output, dpi=160)

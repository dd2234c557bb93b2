"""A GPyTorch process learns how deep its network is: the recurrent variance of a DEQ.

The kernel of the infinitely wide DEQ is a GPyTorch kernel, whose variances are parameters. Takes
about ten seconds.

    python examples/learned_variance.py [--output learned_variance.png]

It prints:

                             start    learned    true
    recurrent variance         0.2      0.65       0.7
    scale                     0.69      0.89         1
    noise                     0.01     0.001     0.001
"""

import argparse

import gpytorch
import torch
from matplotlib.figure import Figure

import shoal
from shoal.adapters import GPyTorchKernel
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="learned_variance.png", help="where to save the figure")
output = parser.parse_args().output
COUNT, TRUTH, START, NOISE = 300, 0.7, 0.2, 1e-3

# %% One random function of a wide DEQ, observed with noise.
generator = torch.Generator().manual_seed(0)
x = torch.randn(COUNT, 8, generator=generator, dtype=torch.float64) / 8**0.5
deq = shoal.DEQ("relu", recurrent_variance=TRUTH, input_variance=1.0)
network = shoal.build(deq, in_features=8, width=2048, seed=1, dtype=torch.float64)
with torch.no_grad():
    y = network(x)[:, 0] + NOISE**0.5 * torch.randn(COUNT, generator=generator).double()


# %% A process whose kernel starts elsewhere.
class Process(gpytorch.models.ExactGP):
    """A prior with the kernel of a DEQ."""

    def __init__(self) -> None:
        positive = gpytorch.constraints.GreaterThan(1e-6)
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive))
        self.likelihood.noise = 1e-2
        start = shoal.DEQ("relu", recurrent_variance=START, input_variance=1.0)
        # the input variance of a ReLU DEQ is a scale: the ScaleKernel learns it
        self.network = GPyTorchKernel(start, learn=["recurrent_variance"])
        self.covariance = gpytorch.kernels.ScaleKernel(self.network)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at some inputs."""
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), self.covariance(x))


process = Process().double()
likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(process.likelihood, process)
optimizer = torch.optim.LBFGS(process.parameters(), max_iter=25, line_search_fn="strong_wolfe")
path = []


def closure() -> torch.Tensor:
    """Minus the marginal likelihood, with its gradient."""
    optimizer.zero_grad()
    loss = -likelihood(process(x), y)
    loss.backward()
    path.append((process.network.recurrent_variance.item(), -loss.item()))
    return loss


optimizer.step(closure)
print("                         start    learned    true")
rows = {
    "recurrent variance": (START, process.network.recurrent_variance.item(), TRUTH),
    "scale": (0.69, process.covariance.outputscale.item(), 1.0),
    "noise": (1e-2, process.likelihood.noise.item(), NOISE),
}
for name, values in rows.items():
    print(f"{name:20}" + "".join(f"{value:10.2g}" for value in values))

# %% The way of the optimizer.
with style():
    figure = Figure(figsize=(5, 3.4))
    axes = figure.subplots()
    axes.plot(*zip(*path, strict=True), ".-", color=COLORS[0], label="L-BFGS")
    axes.axvline(TRUTH, color=COLORS[1], linestyle=":", label="true")
    axes.set(xlabel="recurrent variance", ylabel="log marginal likelihood / n")
    axes.legend()
    figure.savefig(output, dpi=160)

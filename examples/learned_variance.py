"""A GPyTorch process learns how deep its network is: the recurrent variance of a DEQ.

python examples/learned_variance.py [samples]
"""

import sys

import gpytorch
import torch

import shoal
from shoal.adapters import GPyTorchKernel

torch.set_default_dtype(torch.float64)
count, truth, noise = int(sys.argv[1]) if len(sys.argv) > 1 else 300, 0.7, 1e-3

# %% One random function of a wide DEQ, observed with noise.
generator = torch.Generator().manual_seed(0)
x = torch.randn(count, 8, generator=generator) / 8**0.5
deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=truth, input_variance=1.0)
network = shoal.build(deq, in_features=8, width=2048, seed=1, dtype=torch.float64)
with torch.no_grad():
    y = network(x)[:, 0] + noise**0.5 * torch.randn(count, generator=generator)


# %% A process whose kernel starts elsewhere.
class Process(gpytorch.models.ExactGP):
    """A prior with the kernel of a DEQ."""

    def __init__(self) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(1e-6)
        )
        likelihood.noise = 1e-2
        super().__init__(x, y, likelihood)
        start = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=1.0)
        # the input variance of a ReLU DEQ is a scale: the ScaleKernel learns it
        self.network = GPyTorchKernel(start, learn=["recurrent_variance"])
        self.covariance = gpytorch.kernels.ScaleKernel(self.network)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at some inputs."""
        return gpytorch.distributions.MultivariateNormal(torch.zeros(len(x)), self.covariance(x))


process = Process()
likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(process.likelihood, process)
optimizer = torch.optim.LBFGS(process.parameters(), max_iter=25, line_search_fn="strong_wolfe")


def closure() -> torch.Tensor:
    """Minus the marginal likelihood, with its gradient."""
    optimizer.zero_grad()
    loss = -likelihood(process(x), y)
    loss.backward()
    return loss


optimizer.step(closure)
found = process.network.architecture
print(f"true recurrent variance {truth}, learned {found.recurrent_variance:.3f}")
print(f"scale {process.covariance.outputscale.item():.3f}, true 1")
print(f"noise {process.likelihood.noise.item():.2e}, true {noise:.2e}")

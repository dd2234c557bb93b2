"""How weights move from one step to the next: gradient descent, and the optimizers of PyTorch."""

import io
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from shoal.core.exceptions import ConvergenceError
from shoal.training.objective import Evaluation, Objective

OptimizerFactory = Callable[[list[Parameter]], Optimizer]


class Stepper(Protocol):
    """What moves weights."""

    def advance(self, objective: Objective, now: Evaluation) -> bool:
        """Make a step in place, from where ``now`` was evaluated.

        Returns:
            Whether all equilibria on the way were found.
        """
        ...

    def output_error(self, objective: Objective, now: Evaluation) -> float:
        """What the method itself may have made wrong, in the norm of all outputs."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, besides the weights."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        ...


class _Memoryless:
    """Steps whose only error is rounding, and that need no state."""

    def output_error(self, objective: Objective, now: Evaluation) -> float:  # noqa: ARG002
        """Nothing but rounding."""
        return 0.0

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on."""


class Descent(_Memoryless):
    r"""$\theta \leftarrow \theta - \eta\nabla\Phi$."""

    def __init__(self, step_size: float) -> None:
        self.size = step_size

    @torch.no_grad()
    def advance(self, objective: Objective, now: Evaluation) -> bool:
        """One step, with nothing on its way."""
        for weight, gradient in zip(objective.parameters, now.gradients, strict=True):
            weight.add_(gradient, alpha=-self.size)
        return True


class OptimizerSteps(_Memoryless):
    """Steps of an optimizer of PyTorch.

    Args:
        factory: Makes it of the trained parameters; a class, or a function.
        objective: What is trained.
    """

    def __init__(self, factory: OptimizerFactory, objective: Objective) -> None:
        if isinstance(factory, Optimizer) or not callable(factory):
            raise TypeError(
                "optimizer must be what makes one of parameters, such as torch.optim.Adam or "
                f"lambda p: torch.optim.Adam(p, lr=1e-3), got {type(factory).__name__}: a run that "
                "goes on after an interruption makes it again"
            )
        found = factory(list(objective.weights.values()))
        if not isinstance(found, Optimizer):
            raise TypeError(f"optimizer must make a torch.optim.Optimizer, got {found!r}")
        trained = {id(p) for p in objective.weights.values()}
        if any(id(p) not in trained for p in _parameters(found)):
            raise ValueError("optimizer must move trained parameters of net only, got others")
        self.optimizer = found

    def advance(self, objective: Objective, now: Evaluation) -> bool:
        """One step; optimizers that evaluate the loss again do so for the same samples."""
        known, converged = [now], [True]
        weights = objective.parameters
        before = [weight.grad for weight in weights]

        def closure() -> float:
            found = known.pop() if known else objective.shared(now.rows)
            if not found.finite:
                raise ConvergenceError(f"the loss is {found.loss} within a step of the optimizer")
            converged.append(found.converged)
            for weight, gradient in zip(weights, found.gradients, strict=True):
                weight.grad = gradient
            return found.loss

        try:
            self.optimizer.step(closure)
        finally:
            for weight, gradient in zip(weights, before, strict=True):
                weight.grad = gradient
        return all(converged)

    def state(self) -> dict[str, Tensor]:
        """What the optimizer keeps, as bytes."""
        buffer = io.BytesIO()
        torch.save(self.optimizer.state_dict(), buffer)
        return {"optimizer": torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        device = next(iter(_parameters(self.optimizer))).device
        buffer = io.BytesIO(state["optimizer"].cpu().numpy().tobytes())
        kept = torch.load(buffer, map_location=device, weights_only=True)
        self.optimizer.load_state_dict(kept)


def plain_step_size(optimizer: Optimizer, objective: Objective, certificate: Any) -> float | None:
    """The step size of an optimizer that is gradient descent; ``None`` if it is something else.

    Raises:
        ValueError: If a certificate is to be kept, which is about nothing else.
    """
    group = optimizer.param_groups[0]
    plain = type(optimizer) is SGD and len(optimizer.param_groups) == 1
    plain = plain and not any(group[name] for name in ("momentum", "weight_decay", "maximize"))
    weights = {id(p) for p in objective.weights.values()}
    if plain and {id(p) for p in _parameters(optimizer)} == weights:
        return float(group["lr"])
    if certificate is not None:
        kind = type(optimizer).__name__
        raise ValueError(
            "certificate is about full-batch gradient descent of all trained weights and gradient "
            f"flow, got the optimizer {kind}: it promises nothing there"
        )
    return None


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]

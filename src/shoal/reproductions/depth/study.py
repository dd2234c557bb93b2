"""When depth at equilibrium pays: DEQs beside networks without one, one thing varied at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

import shoal
from shoal.activations import Activation
from shoal.lab import Claim, Criterion, Experiment, Point, Result, register
from shoal.lab.claims import each
from shoal.lab.formatting import signed
from shoal.pages.figures import Figure
from shoal.reproductions.depth.figures import draw_study
from shoal.reproductions.depth.networks import Stack
from shoal.reproductions.depth.statistics import Setting, compared
from shoal.reproductions.depth.tasks import Task, flattened, task
from shoal.reproductions.depth.training import Recipe, measured, trained

SECTION = "When depth pays"
_EQUAL = 0.01  # of accuracy: what is no worse by more counts as good
_ACTIVATIONS: dict[str, Activation] = {"tanh": shoal.Tanh(), "relu": shoal.ReLU()}
_DESIGNS = {"ntk-design": "sphere", "moments-design": "moments"}
_FAST = ("deq", "unrolled3", "plain2", "plain1")
_ALL = ("deq", "unrolled10", "unrolled3", "longer", "plain3", "plain2", "plain1")


def _settings(axes: Mapping[str, Sequence[Any]]) -> list[tuple[Setting, tuple[str, ...]]]:
    """The center with all networks, then one thing changed at a time with those it concerns."""
    found: list[tuple[Setting, tuple[str, ...]]] = [(Setting(), _ALL)]
    concerned = {"gain": ("deq", "unrolled10")}
    return found + [
        (Setting(**{axis: value}), concerned.get(axis, _FAST))
        for axis, values in axes.items()
        for value in values
    ]


@dataclass(frozen=True)
class DepthStudy(Experiment):
    r"""Test accuracies of DEQs and of networks without an equilibrium, trained alike.

    All have $z_1 = \varphi(U x)$. ``plain1`` to ``plain3`` are ordinary networks of one to three
    layers; ``plain2`` has as many parameters as the DEQ, and ``longer`` is ``plain2`` trained for
    more epochs, as time allows that the DEQ takes. ``unrolled3`` and ``unrolled10`` are the DEQ
    cut to so many applications, trained through them; ``free`` is the DEQ without a bound,
    which takes its time and is trained on tables, the sequence and the graph only.
    ``ntk-design`` and ``moments-design`` are the designs of the DEQ's NTK for inputs of norm one,
    of states without neighbors. ``flattened`` is ``plain2`` that sees all places at once.

    Every point trains all seeds at several step sizes; that with the best mean accuracy on
    validation samples counts. Seeds differ in weights, samples and the order of batches. A DEQ's
    gain, the norm of its recurrent weights, is kept at most what it was.

    Args:
        tasks: Those at whose center everything is compared.
        varied: Those on which one thing after the other is varied.
        samples: To learn from.
        width: Of the networks on places without neighbors, and
        channels: of those with neighbors.
        seeds: How many.
        adam: Step sizes of Adam, and
        sgd: of gradient descent.
        steps: How many.
        longer: By what factor there are more for ``longer``.
        batch: Samples of a step.
        length: Of sequences and chains.
        gains: What is tried besides 0.9.
        scales: Factors of the width.
        readouts: Standard deviations of readouts: small ones need features to move, large ones
            let them rest.
        tolerance: Of the DEQs' equilibria, relative to the state.
        most: Applications of a DEQ's cell.
    """

    tasks: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    samples: int = 1000
    width: int = 64
    channels: int = 16
    seeds: int = 5
    adam: tuple[float, ...] = (0.01, 0.03, 0.1)
    sgd: tuple[float, ...] = (0.3, 1.0, 3.0)
    steps: int = 400
    longer: int = 4
    batch: int = 32
    length: int = 20
    gains: tuple[float, ...] = (0.2, 0.5, 0.99)
    scales: tuple[float, ...] = (0.5, 2.0)
    readouts: tuple[float, ...] = (0.1, 4.0)
    tolerance: float = 1e-4
    most: int = 100

    def points(self) -> Sequence[Point]:
        """The centers of all tasks first, then what is varied."""
        axes: dict[str, Sequence[Any]] = {"scale": self.scales, "gain": self.gains}
        axes |= {"activation": ("relu",), "readout": self.readouts, "optimizer": ("sgd",)}
        center, *others = _settings(axes)
        pairs = [(name, center) for name in self.tasks]
        pairs += [(name, other) for other in others for name in self.varied]
        return [
            {"task": name, "network": network, **setting._asdict()}
            for name, (setting, networks) in pairs
            for network in (*networks, *self._own(name, setting))
        ]

    def _own(self, name: str, setting: Setting) -> tuple[str, ...]:
        """Networks that only some tasks have."""
        if name == "sequence":
            return ("flattened",) if setting == Setting() else ()
        if name in ("graph",) or name.endswith("-conv"):
            return ()
        if setting == Setting():
            return tuple(_DESIGNS)
        return ("ntk-design",) if setting == Setting("relu") else ()

    def cost(self, point: Point) -> float:
        """Applications of the cell, in a width's worth."""
        network = str(point["network"])
        places = 20.0 if point["task"] in ("graph", "sequence") else 1.0
        places = 15.0 if str(point["task"]).endswith("-conv") else places
        times = {"deq": 40.0, "free": 40.0, "unrolled10": 12.0, "longer": 6.0, "unrolled3": 3.0}
        return (places + 3) * times.get(network, 2.0) * max(float(point["scale"]), 0.5)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """Accuracies at all step sizes and seeds, and what they cost."""
        given = task(str(point["task"]), self.samples, self.seeds, self.length, device)
        network = str(point["network"])
        given = flattened(given) if network == "flattened" else given
        fields = {key: point[key] for key in Setting._fields}
        setting = Setting(**fields)  # type: ignore[arg-type]
        rates = self.adam if setting.optimizer == "adam" else self.sgd
        stack = self._stack(network, setting, given, len(rates), seed, device)
        before = [weight.detach().clone() for weight in stack.parameters()]
        steps = self.steps * (self.longer if network == "longer" else 1)
        recipe = Recipe(setting.optimizer, rates, steps, self.batch)
        seconds = trained(stack, given, recipe, seed)
        found = measured(stack, given, len(rates))
        moved = [
            ((after.detach() - start).flatten(1).norm(dim=1) / start.flatten(1).norm(dim=1))
            for after, start in zip(stack.parameters(), before, strict=True)
            if start.ndim == 3
        ]
        return found | {
            "seconds": seconds / len(rates) / self.seeds,
            "moved": moved[0].view(len(rates), -1),  # the input weights
            "parameters": sum(w[0].numel() for w in before),
        }

    def _stack(
        self, network: str, setting: Setting, given: Task, rates: int, seed: int,
        device: torch.device,
    ) -> Stack:  # fmt: skip
        phi = _ACTIVATIONS[setting.activation]
        activations: tuple[Activation, ...] = (phi,)
        kind = "plain"
        if network in _DESIGNS:
            deq = shoal.DEQ(phi, (setting.gain / 2) ** 2, 1.0)
            method = _DESIGNS[network]
            found = shoal.design(deq, tau0=1.0, match="ntk", method=method).architecture
            assert isinstance(found, shoal.FullyConnected)
            activations = found.activations
        elif network.startswith(("plain", "unrolled")):
            kind = network.rstrip("0123456789")
            activations = (phi,) * int(network.removeprefix(kind))
        elif network in ("deq", "free"):
            kind = network
        else:
            activations = (phi,) * 2
        places = tuple(given.x.shape[1:-1])
        alone = given.neighbors == "none"
        answers = (*given.y.shape[1:], given.classes) if alone else (given.classes,)
        base = self.width if alone else self.channels
        return Stack(
            kind, activations, (given.x.shape[-1], places, answers),
            count=rates * self.seeds, width=max(int(base * setting.scale), 2),
            neighbors=given.neighbors, pooled=not given.everywhere, gain=setting.gain,
            readout=setting.readout, seed=seed, device=device,
            solver=shoal.Picard(rtol=self.tolerance, max_steps=self.most),
        )  # fmt: skip

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Mean accuracies with 95% intervals, and differences from the DEQ of the same setting."""
        return {key: v for one in compared(results) for key, v in one.summary().items()}

    def plot(self, results: Sequence[Result]) -> Figure:
        """What is gained by the equilibrium, network by network and axis by axis."""
        return draw_study(compared(results))


@register
@dataclass(frozen=True)
class DepthOfTasks(DepthStudy):
    """The study on tables, a sequence and a graph; see :class:`DepthStudy`."""

    name: ClassVar[tuple[str, str]] = ("shoal", "depth")
    title: ClassVar[str] = "When depth at equilibrium pays: tables, a sequence and a graph"

    tasks: tuple[str, ...] = ("sequence", "graph", "diabetes", "cancer")
    varied: tuple[str, ...] = ("sequence", "graph", "diabetes")

    def _own(self, name: str, setting: Setting) -> tuple[str, ...]:
        """Unbounded DEQs, too."""
        found = super()._own(name, setting)
        return ("free", *found) if setting == Setting() else found

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Claims on the tables, and on the two tasks with answers far away."""
        return claims_of_tasks(summary, ("diabetes", "cancer"))

    @classmethod
    def quick(cls) -> Self:
        """Short sequences, few of everything."""
        return cls(("sequence", "cancer"), (), samples=100, width=8, channels=4, seeds=2,
                   adam=(0.03,), steps=5, longer=2, length=4)  # fmt: skip


@register
@dataclass(frozen=True)
class DepthOfImages(DepthStudy):
    """The study on images as rows of pixels; see :class:`DepthStudy`."""

    name: ClassVar[tuple[str, str]] = ("shoal", "depth-images")
    title: ClassVar[str] = "When depth at equilibrium pays: images as rows of pixels"

    tasks: tuple[str, ...] = ("fashion", "cifar", "mnist")
    varied: tuple[str, ...] = ("fashion",)
    samples: int = 20_000
    width: int = 128
    batch: int = 100

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Claims on all of the study's tasks."""
        return claims_of_images(summary, self.tasks)

    @classmethod
    def quick(cls) -> Self:
        """Scikit-learn's digits."""
        return cls(("digits",), (), samples=200, width=8, seeds=2, adam=(0.03,), steps=5, longer=2)


@register
@dataclass(frozen=True)
class DepthOfConvolutions(DepthStudy):
    """The study on images as grids, with convolutional networks; see :class:`DepthStudy`."""

    name: ClassVar[tuple[str, str]] = ("shoal", "depth-convolutions")
    title: ClassVar[str] = "When depth at equilibrium pays: convolutional networks"

    tasks: tuple[str, ...] = ("fashion-conv", "cifar-conv")
    samples: int = 20_000
    batch: int = 100

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Claims on all of the study's tasks."""
        return claims_of_images(summary, self.tasks)

    @classmethod
    def quick(cls) -> Self:
        """Scikit-learn's digits."""
        return cls(("digits-conv",), (), samples=200, channels=2, seeds=2, adam=(0.03,), steps=5,
                   longer=2)  # fmt: skip


def claims_of_images(summary: Mapping[str, float], tasks: Sequence[str]) -> tuple[Claim, ...]:
    """Claims on images: where everything is within reach, nothing needs an equilibrium."""
    return tuple(
        _as_good(summary, tasks, network, words)
        for network, words in (
            ("plain2", "A plain network of as many parameters is as accurate as the DEQ"),
            ("longer", "A plain network of less training time is as accurate as the DEQ"),
            ("unrolled3", "Three applications, trained, are as accurate as the DEQ"),
        )
    )


def claims_of_tasks(summary: Mapping[str, float], tables: Sequence[str]) -> tuple[Claim, ...]:
    """Claims on tables, which need no depth, and on answers far away, which do."""
    far = {
        task: {network: summary[f"{task}_{network}_far"] for network in ("free", "plain3")}
        for task in ("sequence", "graph")
    }
    pays = Claim(
        "Depth at equilibrium pays where answers are farther away than layers reach",
        "implicit models capture long-range dependencies",
        "; ".join(
            f"{task}, far half: DEQ {of['free']:.0%}, three layers {of['plain3']:.0%}"
            for task, of in far.items()
        ),
        SECTION,
        each(
            "{}: an unbounded DEQ beats three layers by at least 20 points",
            {task: of["free"] - of["plain3"] for task, of in far.items()},
            least=0.2,
        ),
    )
    gains = [summary[f"sequence_deq_gain{gain}_mean"] for gain in (0.2, 0.99)]
    reach = Claim(
        "The gain of a contraction bounds how far it reaches",
        "the signal falls by the gain with every application",
        f"sequence: gain 0.2 {gains[0]:.1%}, 0.99 {gains[1]:.1%}",
        SECTION,
        (Criterion("at least 5 points between gains 0.2 and 0.99", gains[1] - gains[0], 0.05),),
    )
    return (*claims_of_images(summary, tables), pays, reach)


def _as_good(summary: Mapping[str, float], tasks: Sequence[str], network: str, words: str) -> Claim:
    """A network is at most a point worse than the DEQ, by the lower end of its interval."""
    found = {task: summary[f"{task}_{network}_gap_mean"] for task in tasks}
    ends = {task: summary[f"{task}_{network}_gap_low"] for task in tasks}
    criteria = each("{}: lower end of the difference at least −1 point", ends, least=-_EQUAL)
    if network == "longer":  # what is said of its time must be so, too
        times = {t: summary[f"{t}_longer_seconds"] / summary[f"{t}_deq_seconds"] for t in tasks}
        criteria += each("{}: at most the training time of the DEQ", times, most=1.0)
    return Claim(
        words,
        "depth at equilibrium is expressive",
        "; ".join(f"{task} {signed(100 * gap, 1)}" for task, gap in found.items()) + " points",
        SECTION,
        criteria,
    )

"""When depth at equilibrium pays: DEQs beside networks without one, one thing varied at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import shoal
from experiments.claims import Claim, Criterion, each, signed
from experiments.depth.figures import draw_study
from experiments.depth.networks import Stack
from experiments.depth.tasks import Task, flattened, task
from experiments.depth.training import Recipe, Setting, compared, measured, trained
from experiments.experiment import Experiment, experiment
from shoal.activations import Activation

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
    """

    tasks: tuple[str, ...] = ()  # those at whose center everything is compared
    varied: tuple[str, ...] = ()  # those on which one thing after the other is varied
    samples: int = 1000  # to learn from
    width: int = 64  # of the networks on places without neighbors, and
    channels: int = 16  # of those with neighbors
    seeds: int = 5  # how many
    adam: tuple[float, ...] = (0.01, 0.03, 0.1)  # step sizes of Adam, and
    sgd: tuple[float, ...] = (0.3, 1.0, 3.0)  # of gradient descent
    steps: int = 400  # how many
    longer: int = 4  # by what factor there are more for ``longer``
    batch: int = 32  # samples of a step
    length: int = 20  # of sequences and chains
    gains: tuple[float, ...] = (0.2, 0.5, 0.99)  # what is tried besides 0.9
    scales: tuple[float, ...] = (0.5, 2.0)  # factors of the width
    # standard deviations of readouts: small ones need features to move, large ones let them rest
    readouts: tuple[float, ...] = (0.1, 4.0)
    tolerance: float = 1e-4  # of the DEQs' equilibria, relative to the state
    most: int = 100  # applications of a DEQ's cell

    def points(self):
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

    def compute(self, point, seed, device):
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

    def summarize(self, results):
        return {key: v for one in compared(results) for key, v in one.summary().items()}

    def plot(self, results):
        return draw_study(compared(results))


@experiment("shoal", "depth", "When depth at equilibrium pays: tables, a sequence and a graph")
class DepthOfTasks(DepthStudy):
    """The study on tables, a sequence and a graph; see :class:`DepthStudy`."""

    tasks: tuple[str, ...] = ("sequence", "graph", "diabetes", "cancer")
    varied: tuple[str, ...] = ("sequence", "graph", "diabetes")

    def _own(self, name: str, setting: Setting) -> tuple[str, ...]:
        """Unbounded DEQs, too."""
        found = super()._own(name, setting)
        return ("free", *found) if setting == Setting() else found

    def claims(self, summary):
        return claims_of_tasks(summary, ("diabetes", "cancer"))

    small = dict(
        tasks=("sequence", "cancer"),
        varied=(),
        samples=100,
        width=8,
        channels=4,
        seeds=2,
        adam=(0.03,),
        steps=5,
        longer=2,
        length=4,
    )


@experiment("shoal", "depth-images", "When depth at equilibrium pays: images as rows of pixels")
class DepthOfImages(DepthStudy):
    """The study on images as rows of pixels; see :class:`DepthStudy`."""

    tasks: tuple[str, ...] = ("fashion", "cifar", "mnist")
    varied: tuple[str, ...] = ("fashion",)
    samples: int = 20_000
    width: int = 128
    batch: int = 100

    def claims(self, summary):
        return claims_of_images(summary, self.tasks)

    small = dict(
        tasks=("digits",), varied=(), samples=200, width=8, seeds=2, adam=(0.03,), steps=5, longer=2
    )


@experiment("shoal", "depth-convolutions", "When depth at equilibrium pays: convolutional networks")
class DepthOfConvolutions(DepthStudy):
    """The study on images as grids, with convolutional networks; see :class:`DepthStudy`."""

    tasks: tuple[str, ...] = ("fashion-conv", "cifar-conv")
    samples: int = 20_000
    batch: int = 100

    def claims(self, summary):
        return claims_of_images(summary, self.tasks)

    small = dict(
        tasks=("digits-conv",),
        varied=(),
        samples=200,
        channels=2,
        seeds=2,
        adam=(0.03,),
        steps=5,
        longer=2,
    )


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

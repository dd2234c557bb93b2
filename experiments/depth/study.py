"""When depth at equilibrium pays: DEQs beside networks without one, one thing varied at a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

import shoal
from experiments.claims import Claim, Criterion, criteria_for, signed
from experiments.depth.networks import Stack
from experiments.depth.tasks import Task, flattened, task
from experiments.depth.training import CENTER, Compared, Setting, compared, measured, trained
from experiments.drawing import COLORS, GRAY, Axes, Figure
from experiments.experiment import Experiment, experiment
from shoal.activations import Activation

SECTION = "When depth pays"
_EQUAL = 0.01  # loss of accuracy up to which a network counts as equally good
_ACTIVATIONS: dict[str, Activation] = {
    "tanh": shoal.activations.Tanh(),
    "relu": shoal.activations.ReLU(),
}
_DESIGNS = {"ntk-design": "sphere", "moments-design": "moments"}
_FAST = ("deq", "unrolled3", "plain2", "plain1")
_ALL = ("deq", "unrolled10", "unrolled3", "longer", "plain3", "plain2", "plain1")
NETWORKS = {
    "deq": "DEQ, gain at most 0.9",
    "free": "DEQ, unbounded",
    "unrolled10": "unrolled 10",
    "unrolled3": "unrolled 3",
    "plain3": "plain, 3 layers",
    "plain2": "plain, 2 layers",
    "longer": "plain, 2 layers, trained longer",
    "plain1": "plain, 1 layer",
    "ntk-design": "NTK design",
    "moments-design": "NTK design by moments",
    "flattened": "plain, sees all places",
}
TASKS = {
    "fashion": "Fashion-MNIST",
    "cifar": "CIFAR-10, a part",
    "mnist": "MNIST",
    "fashion-conv": "Fashion-MNIST, convolutional",
    "cifar-conv": "CIFAR-10, a part, convolutional",
    "digits": "digits",
    "digits-conv": "digits, convolutional",
    "diabetes": "diabetes",
    "cancer": "breast cancer",
    "sequence": "sequence",
    "graph": "graph",
}


class DepthStudy(Experiment):
    """Test accuracies of DEQs and of networks without an equilibrium, trained alike.

    ``plain2`` has as many parameters as the DEQ, and ``longer`` is ``plain2`` trained for more
    epochs. Every point trains all seeds at several step sizes; that with the best mean accuracy on
    validation samples counts. A DEQ's gain, the norm of its weights, does not exceed its
    initial value.
    """

    tasks: tuple[str, ...] = ()  # at whose center everything is compared
    varied: tuple[str, ...] = ()  # on which one thing after the other is varied
    samples: int = 1000  # to learn from
    width: int = 64  # of networks on places without neighbors,
    channels: int = 16  # and with them
    seeds: int = 5
    adam: tuple[float, ...] = (0.01, 0.03, 0.1)  # step sizes
    sgd: tuple[float, ...] = (0.3, 1.0, 3.0)
    steps: int = 400
    longer: int = 4  # times as many steps for "longer"
    batch: int = 32
    length: int = 20  # of sequences and chains
    gains: tuple[float, ...] = (0.2, 0.5, 0.99)  # besides 0.9
    scales: tuple[float, ...] = (0.5, 2.0)  # of the width
    readouts: tuple[float, ...] = (0.1, 4.0)  # small ones need features to move, large ones do not
    tolerance: float = 1e-4  # of the DEQs' equilibria, relative to the state
    most: int = 100  # applications of a DEQ's cell

    def points(self):
        """The centers of all tasks first, then each variation with the networks it concerns."""
        axes: dict[str, Sequence[Any]] = {"scale": self.scales, "gain": self.gains}
        axes |= {"activation": ("relu",), "readout": self.readouts, "optimizer": ("sgd",)}
        cases = [(name, Setting(), _ALL) for name in self.tasks] + [
            (name, Setting(**{axis: value}), ("deq", "unrolled10") if axis == "gain" else _FAST)
            for axis, values in axes.items()
            for value in values
            for name in self.varied
        ]
        return [
            {"task": name, "network": network, **setting._asdict()}
            for name, setting, networks in cases
            for network in (*networks, *self.extra_networks(name, setting))
        ]

    def extra_networks(self, name: str, setting: Setting) -> tuple[str, ...]:
        """Networks of some tasks only."""
        if name == "sequence":
            return ("flattened",) if setting == Setting() else ()
        if name == "graph" or name.endswith("-conv"):
            return ()
        if setting == Setting():
            return tuple(_DESIGNS)
        return ("ntk-design",) if setting == Setting("relu") else ()

    def compute(self, point, seed, device):
        learned = task(point["task"], self.samples, self.seeds, self.length, device)
        network = point["network"]
        learned = flattened(learned) if network == "flattened" else learned
        setting = Setting(**{key: point[key] for key in Setting._fields})
        rates = self.adam if setting.optimizer == "adam" else self.sgd
        stack = self._stack(network, setting, learned, len(rates), seed, device)
        before = [weight.detach().clone() for weight in stack.parameters()]
        steps = self.steps * (self.longer if network == "longer" else 1)
        seconds = trained(stack, learned, setting.optimizer, rates, steps, self.batch, seed)
        first, after = before[0].flatten(1), next(stack.parameters()).detach().flatten(1)
        moved = (after - first).norm(dim=1) / first.norm(dim=1)  # of the input weights
        return measured(stack, learned, len(rates)) | {
            "seconds": seconds / len(rates) / self.seeds,
            "moved": moved.view(len(rates), -1),
            "parameters": sum(w[0].numel() for w in before),
        }

    def _stack(
        self, network: str, setting: Setting, learned: Task, rates: int, seed: int,
        device: torch.device,
    ) -> Stack:  # fmt: skip
        phi = _ACTIVATIONS[setting.activation]
        kind, activations = "plain", (phi,) * 2
        if network in _DESIGNS:
            deq = shoal.DEQ(phi, (setting.gain / 2) ** 2, 1.0)
            design = shoal.design(deq, input_norm=1.0, which="ntk", method=_DESIGNS[network])
            activations = design.architecture.activations
        elif network.startswith(("plain", "unrolled")):
            kind = network.rstrip("0123456789")
            activations = (phi,) * int(network.removeprefix(kind))
        elif network in ("deq", "free"):
            kind, activations = network, (phi,)
        alone = learned.neighbors == "none"
        answers = (*learned.y.shape[1:], learned.classes) if alone else (learned.classes,)
        base = self.width if alone else self.channels
        return Stack(
            kind, activations, (learned.x.shape[-1], tuple(learned.x.shape[1:-1]), answers),
            count=rates * self.seeds, width=max(int(base * setting.scale), 2),
            neighbors=learned.neighbors, pooled=not learned.everywhere, gain=setting.gain,
            readout=setting.readout, seed=seed, device=device,
            solver=shoal.Picard(rtol=self.tolerance, max_steps=self.most),
        )  # fmt: skip

    def summarize(self, results):
        return {key: v for row in compared(results) for key, v in row.summary().items()}

    def claims(self, summary):
        return claims_of_images(summary, self.tasks)

    def plot(self, results):
        return draw_study(compared(results))


@experiment("shoal", "depth")
class DepthOfTasks(DepthStudy):
    """When depth at equilibrium pays: tables, a sequence and a graph."""

    tasks: tuple[str, ...] = ("sequence", "graph", "diabetes", "cancer")
    varied: tuple[str, ...] = ("sequence", "graph", "diabetes")
    small = dict(
        tasks=("sequence", "cancer"), varied=(), samples=100, width=8, channels=4, seeds=2,
        adam=(0.03,), steps=5, longer=2, length=4,
    )  # fmt: skip

    def extra_networks(self, name: str, setting: Setting) -> tuple[str, ...]:
        """Unbounded DEQs, too."""
        networks = super().extra_networks(name, setting)
        return ("free", *networks) if setting == Setting() else networks

    def claims(self, summary):
        """Tables need no depth, and answers far away do."""
        yield from claims_of_images(summary, ("diabetes", "cancer"))
        words, gains = [], {}
        for name in ("sequence", "graph"):
            deq, plain = (summary[f"{name}_{network}_far"] for network in ("free", "plain3"))
            words.append(f"{name}, far half: DEQ {deq:.0%}, three layers {plain:.0%}")
            gains[name] = deq - plain
        asked = "{}: an unbounded DEQ beats three layers by at least 20 points"
        yield Claim(
            "Depth at equilibrium pays where answers are farther away than layers reach",
            "implicit models capture long-range dependencies",
            "; ".join(words),
            SECTION,
            criteria_for(asked, gains, least=0.2),
        )
        low, high = (summary[f"sequence_deq_gain{gain}_mean"] for gain in (0.2, 0.99))
        yield Claim(
            "The gain of a contraction bounds how far it reaches",
            "the signal falls by the gain with every application",
            f"sequence: gain 0.2 {low:.1%}, 0.99 {high:.1%}",
            SECTION,
            (Criterion("at least 5 points between gains 0.2 and 0.99", high - low, 0.05),),
        )


@experiment("shoal", "depth-images")
class DepthOfImages(DepthStudy):
    """When depth at equilibrium pays: images as rows of pixels."""

    tasks: tuple[str, ...] = ("fashion", "cifar", "mnist")
    varied: tuple[str, ...] = ("fashion",)
    samples: int = 20_000
    width: int = 128
    batch: int = 100
    small = dict(
        tasks=("digits",), varied=(), samples=200, width=8, seeds=2, adam=(0.03,), steps=5, longer=2
    )


@experiment("shoal", "depth-convolutions")
class DepthOfConvolutions(DepthStudy):
    """When depth at equilibrium pays: convolutional networks."""

    tasks: tuple[str, ...] = ("fashion-conv", "cifar-conv")
    samples: int = 20_000
    batch: int = 100
    small = DepthOfImages.small | dict(tasks=("digits-conv",), width=64, channels=2)


def claims_of_images(summary: Mapping[str, float], tasks: Sequence[str]) -> Iterator[Claim]:
    """A network is at most a point worse than the DEQ, by the lower end of its interval."""
    for network, words in (
        ("plain2", "A plain network of as many parameters is as accurate as the DEQ"),
        ("longer", "A plain network of less training time is as accurate as the DEQ"),
        ("unrolled3", "Three applications, trained, are as accurate as the DEQ"),
    ):
        gaps = [f"{t} {signed(100 * summary[f'{t}_{network}_gap_mean'], 1)}" for t in tasks]
        ends = {task: summary[f"{task}_{network}_gap_low"] for task in tasks}
        criteria = criteria_for(
            "{}: lower end of the difference at least −1 point", ends, least=-_EQUAL
        )
        if network == "longer":  # the sentence on its time must hold, too
            times = {t: summary[f"{t}_longer_seconds"] / summary[f"{t}_deq_seconds"] for t in tasks}
            criteria += criteria_for("{}: at most the training time of the DEQ", times, most=1.0)
        claimed = "depth at equilibrium is expressive"
        yield Claim(words, claimed, f"{'; '.join(gaps)} points", SECTION, criteria)


_AXES = {
    "gain": "gain",
    "scale": "width, relative",
    "readout": "scale of the readout: rich to lazy",
    "activation": "activation",
    "optimizer": "optimizer",
}
_LINES = {"deq": COLORS[1], "free": COLORS[4], "unrolled10": COLORS[3], "unrolled3": COLORS[5]}
_LINES |= {"plain3": COLORS[2], "plain2": COLORS[0], "plain1": GRAY, "flattened": "#222222"}


def draw_study(rows: Sequence[Compared]) -> Figure:
    """Centers above; changes with the distance and with one variation at a time below."""
    center = [row for row in rows if not row.axis]
    by_task = {
        task: [row for row in center if row.task == task]
        for task in dict.fromkeys(row.task for row in center)
    }
    order = [name for name in NETWORKS if any(row.network == name for row in center)]
    far = [name for name in by_task if by_task[name][0].places.shape[1] > 1]
    axes = [axis for axis in _AXES if any(row.axis == axis for row in rows)]
    varied = next((row.task for row in rows if row.axis), "")
    columns = max(len(by_task), 3 if far or axes else 0)
    height = 1 + -(-(len(far) + len(axes)) // columns)
    figure = Figure(figsize=(3.3 * columns + 1.2, 3.3 * height))
    panels: Any = figure.subplots(height, columns, squeeze=False)
    for panel in panels.flat:
        panel.set_axis_off()
    lower = iter(panels[1:].flat)
    for name, panel in zip(by_task, panels[0], strict=False):
        _draw_center(panel, by_task[name], order, panel is panels[0, 0])
        _finish(panel, name, xlabel="test accuracy (%)")
    for name, panel in zip(far, lower, strict=False):
        length = by_task[name][0].places.shape[1]
        for row in by_task[name]:
            if row.network in _LINES:
                style = "--" if row.network == "flattened" else "-"  # it may lie on another line
                look = {"color": _LINES[row.network], "label": NETWORKS[row.network]}
                panel.plot(range(length), 100 * row.places.mean(0), style, **look)
        panel.set(xlim=(-0.5, 1.6 * length), xticks=range(0, length, 5))  # room for the legend
        distance = "distance from where the answer is told"
        _finish(panel, name, ": how far it reaches", xlabel=distance, ylabel="test accuracy (%)")
        panel.legend(fontsize=7, loc="center right")
    for axis, panel in zip(axes, lower, strict=False):
        _draw_axis(panel, axis, [row for row in rows if row.task == varied])
        _finish(panel, varied, xlabel=_AXES[axis], ylabel="test accuracy (%)")
    return figure


def _finish(axes: Axes, task: str, words: str = "", **labels: str) -> None:
    axes.set_axis_on()
    axes.set(**labels)
    axes.set_title(TASKS[task] + words, fontsize=10)


def _draw_center(axes: Axes, rows: Sequence[Compared], order: list[str], names: bool) -> None:
    """Accuracies of all networks with their intervals, below each other."""
    for row in rows:
        mean, low, high = (100 * row.numbers[key] for key in ("mean", "low", "high"))
        color = _LINES["deq"] if row.network in ("deq", "free") else _LINES["plain2"]
        look = {"xerr": [[mean - low], [high - mean]], "color": color, "markersize": 4}
        axes.errorbar([mean], [-order.index(row.network)], fmt="o", **look)
        if row.network == "deq":
            axes.axvline(mean, color=color, linewidth=0.8, linestyle=":")
    labels = [NETWORKS[name] if names else "" for name in order]
    axes.set_yticks([-place for place in range(len(order))], labels)
    axes.set_ylim(-len(order) + 0.5, 0.5)


def _draw_axis(axes: Axes, axis: str, rows: Sequence[Compared]) -> None:
    """Accuracies against one thing that is varied, the center among it."""
    varied = [row for row in rows if row.axis == axis]
    values: list[Any] = [CENTER[axis], *{row.value for row in varied}]
    values = values if isinstance(CENTER[axis], str) else sorted(values)
    networks = [name for name in dict.fromkeys(row.network for row in varied) if name in _LINES]
    for index, network in enumerate(networks):
        places = [place + 0.05 * (index - (len(networks) - 1) / 2) for place in range(len(values))]
        line = [row for row in rows if row.network == network and row.axis in ("", axis)]
        numbers = {row.value if row.axis else CENTER[axis]: row.numbers for row in line}
        means, highs = ([100 * numbers[value][key] for value in values] for key in ("mean", "high"))
        errors = [high - mean for high, mean in zip(highs, means, strict=True)]
        look = {"fmt": "o-", "markersize": 3, "linewidth": 1.2, "color": _LINES[network]}
        label = "DEQ" if network == "deq" else NETWORKS[network]
        # the legend avoids caps, but not bare error bars
        axes.errorbar(places, means, errors, capsize=2, label=label, **look)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.margins(y=0.2)  # for the legend
    axes.legend(fontsize=7)

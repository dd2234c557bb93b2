"""What is said of depth at equilibrium, and what must be measured for it to hold."""

from collections.abc import Mapping, Sequence

from shoal.lab.claims import Claim, Criterion, each
from shoal.lab.formatting import signed

__all__ = ["claims_of_images", "claims_of_tasks"]

SECTION = "When depth pays"
_EQUAL = 0.01  # of accuracy: what is no worse by more counts as good


def claims_of_images(summary: Mapping[str, float], tasks: Sequence[str]) -> tuple[Claim, ...]:
    """Where everything is within reach, no network needs an equilibrium."""
    return tuple(
        _as_good(summary, tasks, network, words)
        for network, words in (
            ("plain2", "A plain network of as many parameters is as accurate as the DEQ"),
            ("longer", "A plain network of less training time is as accurate as the DEQ"),
            ("unrolled3", "Three applications, trained, are as accurate as the DEQ"),
        )
    )


def claims_of_tasks(summary: Mapping[str, float], tables: Sequence[str]) -> tuple[Claim, ...]:
    """The same of tables; but answers far away need depth, and a gain that lets them come."""
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

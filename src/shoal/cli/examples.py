"""What ``--help`` ends with: the files that commands read and write, and examples."""

from typing import NamedTuple

__all__ = ["EXAMPLES", "Example", "epilog"]


class Example(NamedTuple):
    """A command, and what it is for."""

    words: str
    command: str


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "analyze": (
        Example("the default: handwritten digits, tanh", "shoal analyze"),
        Example("with report.html, figure and numbers", "shoal analyze --output analysis"),
        Example(
            "a CSV file whose classes are in the column 'kind'",
            "shoal analyze flowers.csv --label kind --activation relu --output flowers",
        ),
        Example(
            "two sections, for machines",
            "shoal analyze x.npy -n 500 --only kernels,spectrum --json",
        ),
    ),
    "design": (
        Example("the network with the NTK of the default DEQ", "shoal design"),
        Example(
            "for a readout that is trained alone, with a report",
            "shoal design --activation relu --trainable readout --output design",
        ),
        Example(
            "exact on the sphere, exported without shoal",
            "shoal design --method sphere --export shallow.py --in-features 784 --out-features 10",
        ),
        Example("the norm of the inputs from data", "shoal design --data x.npy --json"),
    ),
    "diagnose": (
        Example("a network of shoal.save on digits", "shoal diagnose net.safetensors"),
        Example(
            "your model: weights.pt is the state dictionary of what net.py's Model() makes",
            "shoal diagnose weights.pt --model net.py:Model --data x.npy --output diagnosis",
        ),
        Example(
            "how far training moved it from its kernel, for machines",
            "shoal diagnose net.safetensors --reference initial.safetensors --json",
        ),
    ),
    "certify": (
        Example("the network of Ling 2023 on 8 digits", "shoal certify"),
        Example(
            "with the report and the network to train",
            "shoal certify d.npz -n 4 --width 2000 --output certificate",
        ),
        Example(
            "a network that shoal.save wrote, for a step size",
            "shoal certify d.npz --load net.safetensors --step-size 0.01",
        ),
    ),
    "reproduce": (
        Example("the list", "shoal reproduce"),
        Example("one figure, small", "shoal reproduce ling2024 figure1 --quick"),
        Example(
            "all of a paper, at full size, in 4 processes",
            "shoal reproduce ling2023 --jobs 4 --output results",
        ),
    ),
    "bench": (
        Example("all, small", "shoal bench --quick"),
        Example("one, with a page", "shoal bench kernel --output times"),
    ),
}

_DATA = """\
  digits                 scikit-learn's handwritten digits, 1797 of dimension 64
  mnist, fashion-mnist, cifar-10, svhn
                         their official files, below the folder that the
                         environment variable SHOAL_DATA names
  FILE.npy               a matrix (n, p) of numbers; --label FILE.npy for labels
  FILE.npz               the array X (or x, features), and for labels y (or labels)
  FILE.csv, FILE.csv.gz  numbers, a sample in each row, with or without a header;
                         --label COLUMN for labels
  Labels that are integers, names or truth values are classes, real numbers are targets."""
_WRITES = {
    "analyze": "report.html (the page for people), analysis.json, analysis.png and .svg",
    "design": "report.html (the page for people), design.json, activations.png and .svg",
    "diagnose": "report.html (the page for people), diagnosis.json, diagnosis.png and .svg",
    "certify": "report.html (the page for people), certificate.json, network.safetensors",
    "reproduce": "for each run a folder with report.html (the page for people),\n"
    "  run.json, figure.png and .svg, points/*.npz; for a whole paper PAPER.html",
    "bench": "report.html (the page for people), bench.json",
}
_EXIT = {
    "analyze": "1 failed, or a section has no result; 2 bad input",
    "design": "1 failed; 2 bad input; 3 no network of the wanted kind has the kernel",
    "diagnose": "1 failed; 2 bad input; 3 some samples have no equilibrium",
    "certify": "1 failed; 2 bad input; 3 nothing is established",
    "reproduce": "1 failed; 2 bad input",
    "bench": "1 failed; 2 bad input",
}


def epilog(command: str) -> str:
    """The end of a command's help.

    Args:
        command: Its name.
    """
    parts = [f"Data:\n{_DATA}"] if command in ("analyze", "design", "diagnose", "certify") else []
    parts.append(f"Into the folder of --output go:\n  {_WRITES[command]}")
    parts.append(f"Exit codes:\n  0 done; {_EXIT[command]}; 130 Ctrl-C")
    examples = "\n".join(f"  {one.command}\n      {one.words}" for one in EXAMPLES[command])
    parts.append(f"Examples:\n{examples}")
    return "\n\n".join(f"\b\n{part}" for part in parts)  # \b: as it stands

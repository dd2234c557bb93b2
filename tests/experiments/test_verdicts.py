"""What the recorded runs say to the papers' claims, and that other numbers would say otherwise."""

import pytest

from experiments.experiment import registered
from result_tables import committed
from result_tables.results import summary

YES, CORRECTED = "reproduced", "reproduced with correction"
PART, NO = "in part", "not reproduced"
VERDICTS = {
    "du2018-convergence": [YES],
    "du2018-depth": [YES],
    "gao2022-figure1": [PART, PART, PART],
    "gao2022-lemma3.3": [YES],
    "gao2022-lemma3.4": [YES],
    "ling2023-depth": [YES],
    "ling2023-figure1": [CORRECTED, YES],
    "ling2023-theorem2": [YES],
    "ling2024-figure1": [CORRECTED],
    "ling2024-figure2": [CORRECTED],
    "ling2024-figure3": [YES, PART],
    "ling2024-figure4": [CORRECTED],
    "ling2024-figure5": [PART],
    "ling2024-figure6": [PART],
    "ling2024-figure7": [CORRECTED],
    "ling2024-mnist-figure5": [NO],
    "ling2024-mnist-figure6": [NO],
    "ling2024-mnist-figure7": [CORRECTED],
    "ling2024-tables": [YES, PART],
    "shoal-conv-width": [CORRECTED],
    "shoal-depth": [NO, PART, PART, PART, YES],
    "shoal-depth-convolutions": [YES, YES, YES],
    "shoal-depth-images": [YES, PART, PART],
}


def judged(name: str, numbers: dict[str, float]) -> list[str]:
    kind = registered()[tuple(name.split("-", 1))]
    return [claim.verdict for claim in kind().claims(numbers)]


@pytest.mark.parametrize("name", ["-".join(name) for name in committed()])
def test_the_verdict_of_a_record(name: str) -> None:
    assert judged(name, summary(name)) == VERDICTS.get(name, [])


@pytest.mark.parametrize(
    ("name", "key", "value", "verdicts"),
    [
        ("ling2023-figure1", "cifar-10_4000_norm_upper", 1.01, [CORRECTED, NO]),
        ("ling2023-figure1", "sphere_4000_loss", 0.05, [PART, YES]),
        ("ling2024-figure1", "tanh_paper_slope_high", -0.49, [NO]),
        ("ling2024-figure2", "tanh_ck_hard_tanh_slope_high", -0.4, [PART]),
        ("ling2024-figure3", "readout_tanh_mnist_moments_256_z", -4.0, [PART, PART]),
        ("ling2024-figure5", "relu_exact_paper", 0.27, [YES]),
        ("ling2024-figure7", "tanh_exact", 0.9, [PART]),
        ("ling2024-mnist-figure5", "relu_centered-unit_exact_paper", 3.0, [PART]),
        ("ling2024-tables", "784_relu_moments_32_single_ratio", 0.9, [NO, PART]),
        ("ling2023-theorem2", "4096_large", 0.875, [NO]),
        ("ling2023-depth", "4096_tied_rate", 0.9, [PART]),
        ("gao2022-lemma3.4", "1024_steepest_least", 0.4, [NO]),
        ("gao2022-figure1", "fashion-mnist_4000_norm", 0.2001, [PART, PART, YES]),
        ("du2018-convergence", "resnet_below_bound", 0.95, [NO]),
        ("du2018-depth", "resnet_slope", -1.5, [PART]),
        ("shoal-conv-width", "layer4_slope_high", -0.1, [NO]),
        ("shoal-depth-convolutions", "fashion-conv_longer_seconds", 1e9, [YES, PART, YES]),
    ],
)
def test_another_number_has_another_verdict(
    name: str, key: str, value: float, verdicts: list[str]
) -> None:
    assert key in summary(name)
    assert judged(name, summary(name) | {key: value}) == verdicts != VERDICTS[name]

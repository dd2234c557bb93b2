"""Where shoal's numbers are better than the papers', and where they are not."""

from collections.abc import Iterator

from result_tables.printed import EPOCHS, INFERENCE
from result_tables.results import Row, short, summary, table

__all__: list[str] = []


@table
def better() -> Iterator[Row]:
    """What, printed, ours, and the section."""
    yield "", "printed", "shoal", ""
    yield from _errors()
    for words, printed, kind, unit in (
        ("Training epoch", EPOCHS, "epoch", "s"),
        ("Inference of one image", INFERENCE, "single", "ms"),
    ):
        yield from _times(words, printed, kind, unit)
    regression = summary("shoal-regression")
    seconds = sum(
        regression[f"mnist_ntk_cholesky_0.1_{part}_seconds"]
        for part in ("form", "prepare", "solve")
    )
    yield (
        "Largest exact kernel",
        "none; estimates of n = 3000 images",
        f"n = 60,000 images, formed and solved in {seconds:.1f} s",
        "[findings](findings.md#sixty-thousand-images)",
    )
    widths = summary("shoal-required-width")
    certified = [int(value) for key, value in widths.items() if key.endswith("_certificate")]
    yield (
        "Widths from which convergence is proved, n = 2 to 16",
        "none: the conditions hold at no width",
        f"{min(certified)} to {max(certified)} for zero readouts and labels ±0.1; "
        f"{short(widths['deq_paper_2_flow'])} and more for the papers' initialization, flow",
        "[findings](findings.md#certificates)",
    )


def _errors() -> Iterator[Row]:
    design = summary("ling2024-figure7")
    yield (
        "‖G\\* − Σ‖ of the designs, mixture: ReLU, Tanh",
        f"{design['relu_printed']:.2f}, {design['tanh_printed']:.2f}",
        f"{short(design['relu_exact'])}, {short(design['tanh_exact'])}",
        "[Figure 7](#ling-2024-figure-7)",
    )
    for figure, kernel in (("5", "CK"), ("6", "NTK")):
        found = summary(f"ling2024-figure{figure}")
        yield (
            f"Error of the {kernel} equivalents, mixture: ReLU, Tanh",
            f"{found['relu_printed']:.2f}, {found['tanh_printed']:.2f}",
            f"{found['relu_exact_measured']:.3f}, {found['tanh_exact_measured']:.2f}",
            f"[Figure {figure}](#ling-2024-figure-{figure})",
        )
    sphere = summary("shoal-sphere")
    ck, ntk = (
        max(value for key, value in sphere.items() if key.endswith(f"_{kernel}_anywhere"))
        for kernel in ("ck", "ntk")
    )
    yield (
        "Designs for inputs of one norm: CK, NTK",
        "none for the NTK",
        f"every entry within {short(ck)}, {short(ntk)} of the diagonal",
        "[findings](findings.md#designs-on-the-sphere)",
    )


def _times(words: str, printed: str, kind: str, unit: str) -> Iterator[Row]:
    ours = summary("ling2024-tables")
    scale = 1000 if unit == "ms" else 1
    for network, ending, name in (("DEQ", "DEQ", "deq"), ("design", "ENN", "moments")):
        rows = (row.split() for row in printed.split("\n") if f"-{ending} " in row)
        theirs = [float(cell) for row in rows for cell in row[2:]]
        found = [scale * v for k, v in ours.items() if k.endswith(kind) and f"_{name}_" in k]
        yield (
            f"{words}, {network}",
            f"{short(min(theirs))} to {short(max(theirs))}" + (" s" if unit == "s" else ""),
            f"{short(min(found))} to {short(max(found))} {unit}",
            "[Tables 1 and 2](#ling-2024-tables-1-and-2)",
        )

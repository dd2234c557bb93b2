"""Tables of the reproductions of Ling 2023, Gao 2022 and Du 2018."""

from collections.abc import Iterator

from result_tables.results import Row, interval, short, signed, summary, table

__all__: list[str] = []


WIDTHS = (500, 1000, 2000, 4000)
DATASETS = {
    "sphere": "sphere",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10": "CIFAR-10",
    "svhn": "SVHN",
}


@table
def losses(paper: str) -> Iterator[Row]:
    """Figure 1 of Ling 2023 or of Gao 2022: losses at the end."""
    found = summary(f"{paper}-figure1")
    yield "last loss", "", *(f"width {width}" for width in WIDTHS)
    for data, title in DATASETS.items():
        for key, words in (("loss", "training"), ("test", "test")):
            cells = [found.get(f"{data}_{width}_{key}") for width in WIDTHS]
            if any(cells):
                yield title, words, *("–" if v is None else short(v, 3) for v in cells)


@table
def widths() -> Iterator[Row]:
    """From which widths the two claims hold, and what their proofs ask for."""
    yield (
        "claim",
        "λ, least eigenvalue of the limit",
        "slope of the error",
        "all networks reach the eigenvalue from width",
        "the error is as small as the proof requires from width",
    )
    claims = {
        "ling2023-theorem2": "Ling 2023, Theorem 2: ½λ_\\* by ‖G/m − K‖ ≤ ½λ_\\*",
        "gao2022-lemma3.3": "Gao 2022, Lemma 3.3: ¾λ_0 by ‖G(0) − G^∞‖ ≤ ¼λ_0",
    }
    for name, claim in claims.items():
        found = summary(name)
        large = next(k for k, v in found.items() if k.endswith("_large") and v == 1)
        near = any(v == 1 for k, v in found.items() if k.endswith("_near"))
        yield (
            claim,
            f"{found['limit']:.3f}",
            interval(found, "error_slope"),
            large.removesuffix("_large"),
            f"{round(found['width_near'], -3):,.0f}" + ("" if near else " (extrapolated)"),
        )


@table
def depth() -> Iterator[Row]:
    """Theorems 3 to 5 of Ling 2023."""
    found = summary("ling2023-depth")
    sizes = [key.removesuffix("_tied_rate") for key in found if key.endswith("_tied_rate")]
    tied = ", ".join(f"{found[f'{size}_tied_rate']:.3f}" for size in sizes)
    reached = ", ".join(f"{found[f'{size}_finite_depth']:.0f}" for size in sizes)
    names = ", ".join(sizes)
    bound = found["paper_rate"]
    yield "", "printed", "measured rate per layer", "expected"
    yield (
        "Theorem 3, ‖K − K^(l)‖",
        "l·σ_w^{2l}",
        f"{found['population_rate']:.4f}",
        f"σ_w² = {found['population_rate_predicted']:.2f}, without the l",
    )
    yield (
        "Theorem 4, ‖G − G^(l)‖/m",
        f"(2√2σ_w)^l, {bound:.1f} per layer",
        f"{tied} at widths {names}",
        f"σ_w = {found['tied_rate_predicted']:.3f}",
    )
    yield (
        "Theorem 5, ‖G^(l)/m − K^(l)‖",
        f"n(2√2σ_w)^l, {bound:.1f} per layer",
        f"does not fall; below the bound down to depth {reached}",
        f"width to the power {interval(found, 'finite_slope')}",
    )


@table
def stability() -> Iterator[Row]:
    """Lemma 3.4 of Gao 2022."""
    found = summary("gao2022-lemma3.4")
    yield (
        "width",
        "direction",
        "least λ_min(G)/λ_0 within R (claimed: ½)",
        "largest ‖G − G(0)‖/λ_0 within R (claimed: ¼)",
        "first λ_min(G) < λ_0/2 at",
    )
    for key in found:
        if key.endswith("_drift"):
            name = key.removesuffix("_drift")
            width, direction = name.split("_")
            cells = [f"{found[f'{name}_least']:.3f}", short(found[key])]
            far = f"{found[f'{name}_breaks']:g} R" if f"{name}_breaks" in found else "none"
            yield f"{int(width):,}", direction, *cells, far


KINDS = {"fully_connected": "fully connected", "resnet": "ResNet", "convolutional": "conv. ResNet"}


@table
def du2018() -> Iterator[Row]:
    """Theorems 3.1, 4.1 and 5.1 of Du 2018, and how the least eigenvalue falls with the depth."""
    found, deep = summary("du2018-convergence"), summary("du2018-depth")
    rows: dict[str, list[str]] = {}
    for kind in KINDS:
        ratio = found[f"{kind}_loss_ratio"]
        below = f"{100 * found[f'{kind}_below_bound']:.0f}%"
        rows.setdefault("runs whose loss never exceeds (1 − ηλ_0/2)^k", []).append(below)
        left = short(ratio) if ratio > 1e-28 else "1e-28 or less, rounding"
        rows.setdefault("last loss over the first, largest width", []).append(left)
        drift = interval(found, f"{kind}_drift_slope")
        rows.setdefault("power of the width in ‖G^(H)(k) − G^(H)(0)‖", []).append(drift)
        power = f"{kind}_slope"
        fall = (
            f"H to the power {interval(deep, power)}"
            if power in deep
            else f"a factor of {signed(deep[f'{kind}_factor'])} a layer"
        )
        rows.setdefault("λ_0 against the depth H", []).append(fall)
    yield "", *KINDS.values()
    for words, cells in rows.items():
        yield words, *cells

"""The summary of all reproductions."""

from collections.abc import Iterator

from result_tables.printed import WIDTHS
from result_tables.results import Row, Tables, interval, short, signed, summary

__all__ = ["TABLES"]


YES = "reproduced"
CORRECTED = "reproduced with correction"
PART = "in part"
NO = "not reproduced"


def verdicts() -> Iterator[Row]:
    """Claim, printed, ours, verdict and section."""
    yield "claim", "printed", "ours", "verdict", ""
    ling2024 = (*_errors(), *_spectra(), *_designs(), *_networks(), *_times())
    yield from sorted(ling2024, key=lambda row: row[-1])  # by figure
    yield from (*_ling2023(), *_gao2022(), *_lemmas(), *_du2018())


def _link(section: str) -> str:
    return f"[{section}](#{section.lower().replace(',', '').replace('.', '').replace(' ', '-')})"


def _errors() -> Iterator[Row]:
    for figure, kernel in (("1", "CK"), ("4", "NTK")):
        found = summary(f"ling2024-figure{figure}")
        names = ("relu", "tanh", "swish", "leakyrelu")
        slopes = [found[f"{name}_paper_slope"] for name in names]
        errors = [100 * found[f"{name}_paper_error"] for name in names]
        yield (
            f"Errors of {kernel} equivalents fall with n",
            "a figure; the theorem says n^(−1/2)",
            f"slopes {signed(max(slopes))} to {signed(min(slopes))}, "
            f"{short(min(errors))}% to {short(max(errors))}% at n = 6400",
            CORRECTED,
            _link(f"Ling 2024, Figure {figure}"),
        )


def _spectra() -> Iterator[Row]:
    for figure, kernel in (("5", "CK"), ("6", "NTK")):
        mixture = summary(f"ling2024-figure{figure}")
        images = summary(f"ling2024-mnist-figure{figure}")
        link = _link(f"Ling 2024, Figure {figure}")
        values = [f"{mixture[f'{name}_exact_paper']:.2f}" for name in ("relu", "tanh")]
        printed = [f"{mixture[f'{name}_printed']:.2f}" for name in ("relu", "tanh")]
        claim = f"Error of the {kernel} equivalents: ReLU, Tanh"
        yield (
            f"{claim}, mixture",
            ", ".join(printed),
            ", ".join(values),
            f"{PART}: neither σ_b nor the number of networks is stated",
            link,
        )
        printed = [f"{images[f'{name}_printed']:.2f}" for name in ("relu", "tanh")]
        values = [
            short(images[f"{name}_centered-unit_exact_paper"], 3) for name in ("relu", "tanh")
        ]
        yield (
            f"{claim}, MNIST",
            ", ".join(printed),
            ", ".join(values) + " at best, with σ_b² = 0.8",
            f"{NO}: neither the scaling of images nor σ_b is stated; nearer with σ_b² = 0.2",
            link,
        )


def _designs() -> Iterator[Row]:
    found = summary("ling2024-figure2")
    yield (
        "Errors of designed networks fall with n",
        "a figure; the examples say n^(−1/2)",
        f"ReLU {interval(found, 'relu_ck_leaky_relu_slope')}, "
        f"Tanh {interval(found, 'tanh_ck_hard_tanh_slope')}",
        CORRECTED,
        _link("Ling 2024, Figure 2"),
    )
    link = _link("Ling 2024, Figure 7")
    mixture, images = summary("ling2024-figure7"), summary("ling2024-mnist-figure7")
    for place, found, kind in (("mixture", mixture, ""), ("MNIST, `pixels`", images, "pixels_")):
        yield (
            f"Error of the designs: ReLU, Tanh, {place}",
            ", ".join(f"{found[f'{name}_printed']:.2f}" for name in ("relu", "tanh")),
            ", ".join(short(found[f"{name}_{kind}exact"]) for name in ("relu", "tanh")),
            f"{CORRECTED}: nearer than printed, which has the size of random networks' noise",
            link,
        )


def _networks() -> Iterator[Row]:
    found = summary("ling2024-figure3")
    link = _link("Ling 2024, Figure 3")

    def accuracies(activation: str, *networks: str) -> str:
        keys = (f"readout_{activation}_mnist_{network}_256" for network in networks)
        return ", ".join(f"{100 * found[key]:.1f}" for key in keys)

    yield (
        "Designs classify as well as DEQs",
        "a figure",
        f"MNIST, width 256, readout trained: ReLU {accuracies('relu', 'deq', 'moments')}%, "
        f"Tanh {accuracies('tanh', 'deq', 'moments')}%",
        YES,
        link,
    )
    yield (
        "Networks with the DEQ's own activation do worse",
        "a figure; “noticeable gap”",
        f"ReLU {accuracies('relu', 'deq', 'naive')}%, Tanh {accuracies('tanh', 'deq', 'naive')}%",
        f"{PART}: ReLU yes, while networks are not wide; Tanh no, as the kernels agree",
        link,
    )


def _times() -> Iterator[Row]:
    times = summary("ling2024-tables")
    for words, kind, printed, verdict in (
        ("Inference", "single", "“2 − 3×”, 1.5 to 3.2 in the table", YES),
        (
            "Training",
            "epoch",
            "16 to 266 times as long in the table",
            f"{PART}: our DEQ trains faster",
        ),
    ):
        ratios = [
            times[f"{size}_{activation}_moments_{width}_{kind}_ratio"]
            for size in (784, 3072)
            for activation in ("relu", "tanh")
            for width in WIDTHS
        ]
        yield (
            f"{words} of a DEQ takes longer than of its design",
            printed,
            f"{short(min(ratios))} to {short(max(ratios))} times as long",
            verdict,
            _link("Ling 2024, Tables 1 and 2"),
        )


def _ling2023() -> Iterator[Row]:
    found, widths = summary("ling2023-figure1"), (500, 1000, 2000, 4000)
    link = _link("Ling 2023, Figure 1")
    losses = ", ".join(short(found[f"sphere_{width}_loss"]) for width in widths)
    yield (
        "Wider DEQs train faster, to smaller losses",
        "a figure",
        f"sphere: {losses} at widths 500 to 4000",
        f"{CORRECTED}: the step size explains it, not stable Gram matrices",
        link,
    )
    uppers = [value for key, value in found.items() if key.endswith("norm_upper")]
    norms = [value for key, value in found.items() if key.endswith("_norm")]
    yield (
        "‖W‖ < 1 throughout",
        "a figure",
        f"at most {max(norms):.3f}, certified below {max(uppers):.3f}",
        YES,
        link,
    )
    yield _concentration(
        "ling2023-theorem2",
        "λ_0 ≥ mλ_\\*/2 for wide DEQs",
        "m ≥ const·(n/λ_\\*)² log(n/(λ_\\* t))",
        "Ling 2023, Theorem 2",
    )
    depth = summary("ling2023-depth")
    yield (
        "Gram matrices converge in the depth",
        "σ_w^{2l}·l and (2√2σ_w)^l = 0.8^l",
        f"{depth['population_rate']:.4f}^l and {depth['4096_tied_rate']:.3f}^l",
        f"{YES}, faster; Theorem 5 holds for small depths only",
        _link("Ling 2023, Theorems 3 to 5"),
    )


def _concentration(name: str, claim: str, printed: str, section: str) -> Row:
    found = summary(name)
    width = next(k for k, v in found.items() if k.endswith("_large") and v == 1)
    ours = f"all networks from width {width.removesuffix('_large')} on, n = 32"
    return claim, printed, ours, YES, _link(section)


def _gao2022() -> Iterator[Row]:
    found, link = summary("gao2022-figure1"), _link("Gao 2022, Figure 1")
    sets = ("mnist", "fashion-mnist", "cifar-10")

    def ends(key: str) -> str:
        pairs = (
            f"{short(found[f'{d}_500_{key}'])} → {short(found[f'{d}_4000_{key}'])}" for d in sets
        )
        return "; ".join(pairs)

    yield (
        "Wider networks train faster",
        "a figure",
        f"last losses, widths 500 → 4000: {ends('loss')}",
        f"{PART}: slightly; the rate has a limit",
        link,
    )
    yield (
        "Wider networks have a smaller test loss",
        "a figure",
        ends("test"),
        f"{PART}: on CIFAR-10 only",
        link,
    )
    means = [sum(found[f"{d}_{w}_norm"] for d in sets) / len(sets) for w in (500, 4000)]
    yield (
        "γ‖A‖/√m stays near its start, and is slightly larger for larger m",
        "a figure; axis 0.1980 to 0.1992",
        f"means over datasets {means[0]:.4f} → {means[1]:.4f}",
        YES,
        link,
    )


def _lemmas() -> Iterator[Row]:
    yield _concentration(
        "gao2022-lemma3.3",
        "λ_min(G(0)) ≥ ¾λ_0 for wide networks",
        "m ≥ const·(n/λ_0)² log(n/δ)",
        "Gao 2022, Lemma 3.3",
    )
    stable = summary("gao2022-lemma3.4")
    least = min(value for key, value in stable.items() if key.endswith("steepest_least"))
    breaks = min(value for key, value in stable.items() if key.endswith("_breaks"))
    yield (
        "λ_min(G) ≥ λ_0/2 within the radius R",
        "½",
        f"at least {least:.2f}; below ½ first at {breaks:g} R",
        f"{YES}, with much room",
        _link("Gao 2022, Lemma 3.4"),
    )


def _du2018() -> Iterator[Row]:
    found, deep = summary("du2018-convergence"), summary("du2018-depth")
    link = _link("Du 2018, Theorems 3.1, 4.1 and 5.1")
    kept = min(value for key, value in found.items() if key.endswith("_below_bound"))
    yield (
        "Linear convergence, three architectures",
        "loss ≤ (1 − ηλ_0/2)^k",
        f"kept by {100 * kept:.0f}% of the runs",
        YES,
        link,
    )
    yield (
        "λ_0 falls like H^(−2) in ResNets",
        "−2",
        f"{interval(deep, 'resnet_slope')}; convolutional {interval(deep, 'convolutional_slope')}",
        YES,
        link,
    )
    ratio = summary("shoal-conv-width")["printed_over_limit"]
    yield (
        "The Gram matrix of convolutional ResNets, Equation 6",
        "Equation 6",
        f"Equation 6 is {short(ratio, 3)} times the limit of finite networks",
        CORRECTED,
        link,
    )


TABLES: Tables = {"verdicts": verdicts}

"""What the page computes is what the library computes."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from app.javascript import evaluated
from explorer_tables import ACTIVATIONS, SCALES, activation_table
from oracles.standard_errors import assert_near_mean
from shoal.app.explorer import TESTED, stored_tables
from shoal.asymptotics.law import Law

ANGLES = [0.0, 1e-3, 0.3, 1.1, math.pi / 2, 2.0, 3.0, math.pi]
KERNELS = """given.map((setting) => {
  const made = model(setting), found = equilibrium(made);
  if (found.status !== "found") return { status: found.status };
  const { at } = kernels(made, found);
  const values = setting.angles.map((psi) => [at(psi).ck, at(psi).ntk]);
  return { status: "found", rate: found.rate, values };
})"""


def settings(count: int) -> list[dict[str, Any]]:
    """Random settings over the whole ranges of the sliders."""
    draw = np.random.default_rng(26)
    names = list(ACTIVATIONS)
    return [
        {
            "activation": (name := names[i % len(names)]),
            "recurrent": draw.uniform(0, 2.5) / ACTIVATIONS[name].lipschitz ** 2,
            "input": math.exp(draw.uniform(math.log(0.05), math.log(3))),
            "bias": draw.choice([0.0, draw.uniform(0, 1)]),
            "norm": math.exp(draw.uniform(math.log(0.25), math.log(3))),
            "angles": [*ANGLES, *draw.uniform(0, math.pi, 4)],
        }
        for i in range(count)
    ]


def deq(setting: dict[str, Any]) -> shoal.DEQ:
    return shoal.DEQ(
        ACTIVATIONS[setting["activation"]],
        setting["recurrent"],
        setting["input"],
        bias_variance=setting.get("bias", 0.0),
    )


@pytest.mark.parametrize("count", [13, pytest.param(150, marks=pytest.mark.thorough)])
def test_kernels_are_those_of_the_library(count: int) -> None:
    chosen = settings(count)
    kept = 0
    for setting, found in zip(chosen, evaluated(KERNELS, chosen), strict=True):
        squared = setting["norm"] ** 2
        products = squared * torch.tensor(setting["angles"], dtype=torch.float64).cos()
        function = shoal.kernel_function(deq(setting))
        if found["status"] == "outside":
            continue  # the tables end before the library does
        if found["status"] != "found":
            with pytest.raises(shoal.ConvergenceError):
                function(squared, squared, products)
            continue
        wanted = function(squared, squared, products)
        kept += 1
        for place, kernel in enumerate((wanted.ck, wanted.ntk)):
            values = torch.tensor(found["values"], dtype=torch.float64)[:, place]
            allowed = TESTED if found["rate"] < 0.95 else 10 * TESTED  # NTKs have a pole at one
            assert float((values - kernel).abs().max() / kernel[0]) < allowed, setting
    assert kept > 0.6 * count


def test_settings_without_a_kernel_are_found() -> None:
    wrong = [
        {"activation": "relu", "recurrent": 2.1, "input": 0.8, "bias": 0, "norm": 1, "angles": []},
        {"activation": "tanh", "recurrent": 2.0, "input": 0.1, "bias": 0, "norm": 1, "angles": []},
        {"activation": "gelu", "recurrent": 1.0, "input": 3, "bias": 0, "norm": 9, "angles": []},
    ]
    assert [one["status"] for one in evaluated(KERNELS, wrong)] == ["none", "unstable", "outside"]


def test_coefficients_are_those_of_the_library() -> None:
    names = ("relu", "gelu", "sigmoid")
    chosen = [
        {"activation": name, "recurrent": 0.4, "input": 0.7, "norm": norm}
        for name in names
        for norm in (0.6,)
    ]
    result = evaluated("given.map((setting) => highDimensional(model(setting)))", chosen)
    for setting, found in zip(chosen, result, strict=True):
        wanted = shoal.coefficients(deq(setting), input_norm=setting["norm"])
        for kernel in ("ck", "ntk"):
            for name, value in found[kernel].items():
                expected = getattr(getattr(wanted, kernel), name)
                assert value == pytest.approx(expected, rel=1e-5, abs=1e-7), (setting, name)


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_the_twin_has_the_kernel(which: str) -> None:
    names = ("tanh", "gelu", "softplus", "cosine", "swish")
    chosen = [
        {"activation": name, "recurrent": 0.3, "input": 0.8, "bias": bias, "norm": 1.2}
        for name in names
        for bias in (0.0, 0.2)
    ]
    result = evaluated(
        f"""given.map((setting) => {{
          const made = model(setting), found = equilibrium(made), functions = kernels(made, found);
          const twin = designedTwin(made, found, functions, "{which}");
          const at = linear(0, Math.PI, 7);
          const values = Array.from(twin.values);
          return {{ grid: TWIN_GRID, values, at, kernel: at.map(twin.at) }};
        }})""",
        chosen,
    )
    for setting, found in zip(chosen, result, strict=True):
        squared = setting["norm"] ** 2
        angles = torch.tensor(found["at"], dtype=torch.float64)
        function = shoal.kernel_function(deq(setting))
        wanted = getattr(function(squared, squared, squared * angles.cos()), which)
        assert np.allclose(found["kernel"], wanted, rtol=0, atol=1e-4 * float(wanted[0]))
        # the drawn function itself, by quadrature: its mean square at own inputs
        grid, values = np.array(found["grid"]), np.array(found["values"])
        density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
        square = np.trapezoid(density * values**2, grid)
        slope = np.trapezoid(density * np.gradient(values, grid) ** 2, grid)
        own = square + (slope if which == "ntk" else 0)
        assert own == pytest.approx(float(wanted[0]), rel=0.03), setting  # 3.5 deviations of it


def population(separation: float, size: int = 1000) -> dict[str, Any]:
    spike = separation**2
    return {
        "size": size,
        "values": [1.0, 1 + spike],
        "shares": [1 - 1 / size, 1 / size],
        "signal": [0, spike / (1 + spike)],
        "noise": 1 / (1 + spike),
    }


def mixture(separation: float, size: int) -> shoal.GaussianMixture:
    mean = torch.full((size,), separation / size**0.5, dtype=torch.float64)
    eye = torch.eye(size, dtype=torch.float64)
    return shoal.GaussianMixture([mean, -mean], [eye, eye], [0.5, 0.5])


@pytest.mark.parametrize("ratio", [0.4, 1.0, 3.0])
def test_the_law_is_that_of_the_library(ratio: float) -> None:
    values = np.sort(np.random.default_rng(0).uniform(0.2, 1.0, 30))
    values = np.r_[values, 4.0, 9.0]
    shares = np.full(len(values), 1 / len(values))
    given = {
        "population": {
            "values": values.tolist(),
            "shares": shares.tolist(),
            "signal": [0.0] * len(values),
            "noise": 1.0,
            "size": len(values),
        },
        "ratio": ratio,
    }
    found = evaluated(
        """(() => {
          const law = new Law(given.population, given.ratio), bulks = law.bulks();
          return { edges: law.edges().map(([x]) => x), atom: law.atom, bulks };
        })()""",
        given,
    )
    law = Law([values], np.array([ratio * len(values)]))
    assert np.allclose(found["edges"], law.support.ravel(), rtol=1e-9, atol=1e-12)
    assert found["atom"] == pytest.approx(law.atom, abs=1e-12)
    points = [point for bulk in found["bulks"] for point in bulk["points"]]
    wanted = law.density(np.array([point["x"] for point in points]))
    assert np.allclose([point["density"] for point in points], wanted, rtol=1e-6, atol=1e-9)
    assert sum(bulk["mass"] for bulk in found["bulks"]) + law.atom == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("separation", "ratio"), [(0.3, 2.0), (2.0, 2.0), (3.0, 0.5)])
def test_spikes_appear_where_they_should(separation: float, ratio: float) -> None:
    setting = {"activation": "relu", "recurrent": 0.3, "input": 0.8, "norm": 1.0}
    given = {"setting": setting, "population": population(separation), "ratio": ratio}
    found = evaluated(
        """["ck", "ntk"].map((kernel) => {
          const law = new Law(given.population, given.ratio);
          const coefficients = highDimensional(model(given.setting))[kernel];
          const { slope, shift } = scaled(coefficients, 1);
          return { spikes: spikes(law, coefficients, 1).map(({ x }) => x),
            edges: law.edges().map(([x]) => slope * x + shift) };
        })""",
        given,
    )
    size = 400
    wanted = shoal.spectrum(deq(setting), mixture(separation, size), n=int(ratio * size))
    for one, limit in zip(found, (wanted.ck, wanted.ntk), strict=True):
        values = [spike.value for spike in limit.spikes]
        assert len(one["spikes"]) == len(values)
        assert np.allclose(np.sort(one["spikes"]), np.sort(values), rtol=0.02)
        assert one["edges"][0] == pytest.approx(float(np.asarray(limit.edges).min()), rel=0.04)


@pytest.fixture(scope="module")
def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two classes of 500 dimensions, 1000 samples and 1000 others: labels and the NTK."""
    x, labels = mixture(2.0, 500).sample(2000, seed=1)
    mixed = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    x, y = x[mixed], (1.0 - 2.0 * labels[mixed]).to(torch.float64)
    centered = shoal.centered(deq(SMOOTH), input_norm=1.0)
    return y[:1000], y[1000:], shoal.kernel(centered, x[:1000], x).ntk


SMOOTH = {"activation": "tanh", "recurrent": 0.3, "input": 0.8, "norm": 1.0}


@pytest.mark.parametrize(("n", "ridge"), [(250, 0.0), (250, 0.3), (1000, 0.0), (1000, 0.3)])
def test_learning_curves_are_errors_of_regressions(
    n: int, ridge: float, sample: tuple[torch.Tensor, ...]
) -> None:
    y, new, ntk = sample
    found = evaluated(
        f"""regressionError(given.population, {n / 500},
          highDimensional(model(given.setting)).ntk, 1, {ridge})""",
        {"setting": SMOOTH, "population": population(2.0, 500)},
    )
    own = ntk[:n, :n] + ridge * torch.eye(n, dtype=torch.float64)
    weights = torch.linalg.solve(own, y[:n])
    assert found["test"] == pytest.approx(
        float((ntk[:n, 1000:].T @ weights - new).square().mean()), rel=0.08
    )
    assert found["train"] == pytest.approx(float((ridge * weights).square().mean()), rel=0.08)


def test_training_curves_are_those_of_gradient_flow(sample: tuple[torch.Tensor, ...]) -> None:
    y, _, ntk = sample
    values, vectors = torch.linalg.eigh(ntk[:, :1000])
    parts = (vectors.T @ y).square() / 1000
    times = [0.02, 0.1, 0.5, 2.0]
    wanted = [float((parts * torch.exp(-2 * t * values)).sum()) for t in times]
    found = evaluated(
        """trainingCurve(new Law(given.population, 2),
          highDimensional(model(given.setting)).ntk, 1, given.times)""",
        {"setting": SMOOTH, "population": population(2.0, 500), "times": times},
    )
    assert found == pytest.approx(wanted, rel=0.08)


def test_a_solver_takes_about_as_many_steps() -> None:
    setting = {"activation": "tanh", "recurrent": 0.6, "input": 0.8, "bias": 0, "norm": 1.0}
    rate = evaluated("equilibrium(model(given)).rate", setting)
    steps = evaluated("solverSteps(equilibrium(model(given)).rate)", setting)
    draw, width = np.random.default_rng(0), 600
    factors = []
    for _ in range(6):
        weights = draw.standard_normal((width, width)) * math.sqrt(0.6 / width)
        injected = draw.standard_normal((width, 3)) * math.sqrt(0.8)
        z, sizes = np.tanh(injected), [float(np.linalg.norm(np.tanh(injected)))]
        while sizes[-1] > 1e-6 * sizes[0]:
            new = np.tanh(weights @ z + injected)
            sizes.append(float(np.linalg.norm(new - z)))
            z = new
        assert abs(len(sizes) - 1 - steps) <= 1
        factors.append((sizes[-1] / sizes[4]) ** (1 / (len(sizes) - 5)))
    # the rate is that of squares; finite networks are off by 1/m
    assert_near_mean(math.sqrt(rate), factors, more=4 / width)


@pytest.mark.parametrize("name", ["relu", "erf"])
def test_stored_tables_are_up_to_date(name: str) -> None:
    stored, made = stored_tables()["activations"][name], activation_table(ACTIVATIONS[name])
    assert stored["source"] == made.source
    assert stored["lipschitz"] == pytest.approx(made.lipschitz, rel=1e-12)
    for field in ("slopes", "hermite"):
        pairs = zip(stored[field], getattr(made, field), strict=True)
        for old, new in pairs:
            longest = max(len(old), len(new))
            rows = [np.pad(row, (0, longest - len(row))) for row in (old, new)]
            assert np.abs(rows[0] - rows[1]).max(initial=0) <= 20  # units of 1e-10


def test_tables_know_all_that_the_sliders_reach() -> None:
    tables = stored_tables()
    assert list(tables["activations"]) == list(ACTIVATIONS)
    assert tables["scales"] == list(SCALES)
    assert max(table["error"] for table in tables["activations"].values()) < 1e-6

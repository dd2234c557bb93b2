"""Every activation against reference values computed in ball arithmetic, independently of shoal."""

import pytest
import torch
from reference import ACTIVATIONS, REFERENCE, numbers

from shoal.gaussian import dual, dual_derivative, hermite, moments

ATTRIBUTES = {
    "phi": "mean",
    "d1": "first",
    "d2": "second",
    "d3": "third",
    "phi_sq": "square",
    "d1_sq": "first_square",
    "phi_sq_d2": "square_second",
}
TRUNCATED = 1e-21
"""What lies beyond ten standard deviations is not counted; the density there is below 1e-22."""


def rows(table, name):
    values = REFERENCE[table]["values"][name]
    return [(tau, row) for tau, row in zip(REFERENCE[table]["tau"], values, strict=True) if row]


@pytest.mark.thorough("Mish", "AbsCubed", "SquaredReLU", "Cosine")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_moments(name):
    for tau, row in rows("moments", name):
        expected = numbers(row)
        result = moments(ACTIVATIONS[name], tau)
        found = torch.stack(
            [getattr(result, ATTRIBUTES[q]) for q in REFERENCE["moments"]["quantities"]]
        )
        defined = ~expected.isnan()
        largest = expected[defined].abs().max()
        error = (found - expected)[defined].abs().max()
        assert error <= 1e-12 * largest + TRUNCATED, f"tau = {tau}"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_hermite_coefficients(name):
    for tau, row in rows("hermite", name):
        degrees = [k for k, s in zip(REFERENCE["hermite"]["k"], row, strict=True) if s is not None]
        expected = numbers([s for s in row if s is not None])
        found = hermite(ACTIVATIONS[name], tau, max(degrees))
        error = (found[degrees] - expected).abs().max()
        assert error <= 1e-12 * expected.abs().max() + TRUNCATED, f"tau = {tau}"


@pytest.mark.thorough("AbsCubed", "SquaredReLU", "ShiftedReLU", "ELU_1", "Step", "Mish", "Swish")
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("quantity", "function"), [("D", dual), ("Dp", dual_derivative)])
def test_duals(name, quantity, function):
    phi, table = ACTIVATIONS[name], REFERENCE["duals"]
    expected = numbers(table["values"][name][quantity])
    defined = ~expected.isnan()
    if not defined.any():
        assert any(kink.jumps[0] for kink in phi.kinks), "only an activation that jumps has none"
        return
    a, b, c = (
        torch.tensor([t[key] for t in table["triples"]], dtype=torch.float64)[defined]
        for key in "abc"
    )
    scale = (function(phi, a, a, a) * function(phi, b, b, b)).sqrt()
    error = (function(phi, a, b, c) - expected[defined]).abs()
    assert (error <= 1e-10 * scale + TRUNCATED).all()
    assert (error <= 1e-13 * scale + TRUNCATED).all(), "the accuracy that the documentation states"


@pytest.mark.thorough("ShiftedReLU", "HardTanh")
@pytest.mark.parametrize("name", REFERENCE["dual_derivatives"]["values"])
def test_derivatives_of_duals(name):
    table = REFERENCE["dual_derivatives"]
    for triple, row in zip(table["triples"], table["values"][name], strict=True):
        if row is None:
            continue
        a, b, c = (
            torch.tensor(triple[key], dtype=torch.float64, requires_grad=True) for key in "abc"
        )
        first = torch.autograd.grad(dual(ACTIVATIONS[name], a, b, c), (a, b, c), create_graph=True)
        second_a = torch.autograd.grad(first[0], (a, b, c), create_graph=True)
        (second_c,) = torch.autograd.grad(first[2], (c,))
        found = dict(zip(("a", "b", "c"), first, strict=True))
        found |= dict(zip(("aa", "ab", "ac"), second_a, strict=True)) | {"cc": second_c}
        expected = numbers(row)
        # errors are relative to mean squares: E[φ'φ'] may be far smaller than both
        squares = [dual_derivative(ACTIVATIONS[name], t, t, t).detach() for t in (a, b)]
        bound = (squares[0] * squares[1]).sqrt()
        for quantity, value in zip(table["quantities"], expected, strict=True):
            scale = expected.abs().max()
            if quantity == "c" and bool(bound.isfinite()):
                scale = torch.maximum(scale, bound)
            error = (found[quantity] - value).abs()
            assert error <= 1e-12 * scale + TRUNCATED, (triple, quantity)

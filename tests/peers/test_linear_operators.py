"""The linear_operator package's own tests of operators, run on equivalents."""

from unittest import TestCase

import pytest
import torch

pytest.importorskip("linear_operator", reason="linear_operator is not installed")
from linear_operator.settings import fast_computations
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase

from shoal.asymptotics.linear import EquivalentLinearOperator

SUITE = "linear_operator: `LinearOperatorTestCase`"
PACKAGE = "linear_operator"

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def as_without_botorch():
    """BoTorch, once imported, switches off for all what these tests expect."""
    with fast_computations():
        yield


class Equivalent(LinearOperatorTestCase):
    seed = 0
    should_call_cg = False  # solves are exact, by a factorization of the inputs
    features = 3

    def create_linear_op(self):
        core = torch.tensor([[0.7, 0.2], [0.2, 0.5]])
        parts = (torch.randn(6, self.features), torch.randn(6, 2), core, torch.tensor(0.6))
        leaves = [part.requires_grad_() for part in (*parts, torch.tensor(1.7))]
        return EquivalentLinearOperator(*leaves)

    def evaluate_linear_op(self, linear_op):
        x, u, core, scale, shift = linear_op.representation()
        core = (core + core.mT) / 2
        return scale * x @ x.mT + u @ core @ u.mT + shift * torch.eye(len(x)).to(x)


class TestFewFeatures(Equivalent, TestCase):
    pass


class TestManyFeatures(Equivalent, TestCase):
    features = 9

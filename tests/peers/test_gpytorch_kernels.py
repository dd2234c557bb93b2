"""GPyTorch's own tests of kernels, run on the kernels of networks."""

from unittest import TestCase

import pytest
import torch

import shoal

pytest.importorskip("gpytorch", reason="GPyTorch is not installed")
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase

from peers.excuses import excused
from shoal.adapters import GPyTorchKernel

SUITE = "GPyTorch: `BaseKernelTestCase`"
PACKAGE = "gpytorch"

pytestmark = pytest.mark.filterwarnings("default")


class KernelOfNetwork(BaseKernelTestCase):
    architecture: shoal.Architecture
    which = "ck"

    def setUp(self) -> None:
        torch.manual_seed(0)

    def create_kernel_no_ard(self, **options):
        return GPyTorchKernel(self.architecture, which=self.which, **options)

    def create_kernel_ard(self, num_dims, **options):
        return self.create_kernel_no_ard(ard_num_dims=num_dims, **options)


class TestDEQ(KernelOfNetwork, TestCase):
    architecture = shoal.DEQ("relu", 0.2, 0.8)


@pytest.mark.thorough
class TestDEQTangent(KernelOfNetwork, TestCase):
    architecture = shoal.DEQ("relu", 0.2, 0.8, bias_variance=0.3)
    which = "ntk"


@pytest.mark.thorough
class TestDEQTanh(KernelOfNetwork, TestCase):
    architecture = shoal.DEQ("tanh", 0.2, 0.8)


class TestFullyConnected(KernelOfNetwork, TestCase):
    architecture = shoal.FullyConnected(["relu", "relu"], bias_variance=0.5)


@pytest.mark.thorough
class TestResNetTangent(KernelOfNetwork, TestCase):
    architecture = shoal.ResNet("relu", 3, bias_variance=0.5)
    which = "ntk"


@excused({"test_kernel_dtype_device": "without parameters, a kernel has no dtype"})
class TestWithoutParameters(KernelOfNetwork, TestCase):
    architecture = shoal.ImplicitNetwork(0.4)

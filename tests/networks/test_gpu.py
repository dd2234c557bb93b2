"""Networks on a GPU do what they do on the CPU."""

import copy
import threading

import pytest
import torch

import shoal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEQ = shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8)


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 20, dtype=dtype, generator=generator) / 20**0.5


@pytest.mark.parametrize(
    "solver",
    [shoal.Picard(), shoal.Anderson(), shoal.Broyden(), shoal.NewtonKrylov()],
    ids=lambda solver: type(solver).__name__,
)
def test_values_and_gradients(solver):
    found = []
    for device in ("cpu", "cuda"):
        net = shoal.build(
            DEQ, in_features=20, width=64, dtype=torch.float64, device=device, solver=solver
        )
        output = net(inputs().to(device))
        output.square().sum().backward()
        found.append([output.detach().cpu(), *(p.grad.cpu() for p in net.parameters())])
        assert net.last_solve.converged.all()
        assert net.well_posedness().contraction
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def test_saving_and_kernels(tmp_path):
    net = shoal.build(DEQ, in_features=20, width=512, dtype=torch.float64, device="cuda")
    shoal.save(net, tmp_path / "net")
    same = shoal.load(tmp_path / "net")
    x = inputs()
    torch.testing.assert_close(same(x), net(x.cuda()).cpu(), rtol=1e-9, atol=1e-10)
    left, right = shoal.empirical_kernel(net, x.cuda()), shoal.empirical_kernel(same, x)
    torch.testing.assert_close(left.ntk.cpu(), right.ntk, rtol=1e-8, atol=1e-9)


def test_inputs_on_the_wrong_device():
    net = shoal.build(DEQ, in_features=20, width=8, dtype=torch.float64, device="cuda")
    with pytest.raises(TypeError, match=r"on cuda:0, got torch\.float64 on cpu"):
        net(inputs())


def passes(net, x):
    """Outputs and gradients of a forward and a backward pass."""
    net.zero_grad()
    output = net(x)
    output.square().sum().backward()
    assert net.last_solve.converged.all()
    assert net.last_adjoint.converged.all()
    return [output.detach(), *(p.grad.clone() for p in net.parameters())]


def test_several_streams_and_new_weights():
    net = shoal.build(DEQ, in_features=20, width=64, dtype=torch.float64, device="cuda")
    x = inputs().cuda()
    expected, streams = passes(net, x), [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(4):
        for stream in streams:
            with torch.cuda.stream(stream), torch.no_grad():
                found = net(x)
            stream.synchronize()
            torch.testing.assert_close(found, expected[0], rtol=1e-9, atol=1e-10)
    net.recurrent.data = net.recurrent.data / 2  # elsewhere in memory
    for _ in range(4):
        found = passes(net, x)[0]
    cpu = shoal.build(DEQ, in_features=20, width=64, dtype=torch.float64)
    cpu.load_state_dict({name: tensor.cpu() for name, tensor in net.state_dict().items()})
    torch.testing.assert_close(found.cpu(), cpu(inputs()).detach(), rtol=1e-9, atol=1e-10)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), found, rtol=1e-9, atol=1e-10)


ARCHITECTURES = [
    DEQ,
    shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8),
    shoal.DEQ(shoal.activations.GELU(), 0.2, 0.8),
    shoal.ImplicitNetwork(gamma=0.3, bias_variance=0.1),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: repr(a)[:30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_training_passes_are_those_of_the_cpu(architecture, dtype):
    cpu, gpu = (
        shoal.build(architecture, in_features=20, width=64, dtype=dtype, device=device)
        for device in ("cpu", "cuda")
    )
    rtol, atol = (1e-3, 2e-5) if dtype == torch.float32 else (1e-8, 1e-10)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3) for net in (cpu, gpu)]
    for step in range(8):
        x = inputs(dtype).roll(step, 1) if step < 6 else inputs(dtype)[:7]
        expected, found = passes(cpu, x), passes(gpu, x.cuda())
        for left, right in zip(expected, found, strict=True):
            torch.testing.assert_close(right.cpu(), left, rtol=rtol, atol=atol)
        with torch.inference_mode():
            torch.testing.assert_close(gpu(x.cuda()).cpu(), expected[0], rtol=rtol, atol=atol)
        for optimizer in optimizers:
            optimizer.step()
    assert gpu.last_solve.status.tolist() == [0] * 7
    assert gpu.last_solve.steps.tolist() == [gpu.last_solve.evaluations - 1] * 7


def test_unsolved_samples_and_bad_inputs():
    net = shoal.build(
        DEQ,
        in_features=20,
        width=64,
        dtype=torch.float64,
        device="cuda",
        solver=shoal.Picard(),
        on_failure="status",
    )
    x = inputs().cuda()
    with torch.no_grad():
        for _ in range(5):
            expected = net(x)
        for bad in (torch.nan, torch.inf):
            spoiled = x.clone()
            spoiled[3, 2] = bad
            with pytest.raises(ValueError, match="x must be finite"):
                net(spoiled)
        torch.testing.assert_close(net(x), expected, rtol=1e-9, atol=1e-11)
        net.recurrent.mul_(6.0)
        for _ in range(4):
            net(x)
            assert not net.last_solve.converged.all()
    for _ in range(4):
        net(x).sum().backward()
        assert not net.last_solve.converged.all()


def test_autocast_copies_and_threads():
    net = shoal.build(DEQ, in_features=20, width=64, device="cuda")
    x = inputs(torch.float32).cuda()
    with torch.no_grad():
        for _ in range(5):
            expected = net(x)
        same = copy.deepcopy(net)
        same.recurrent.mul_(0.5)
        assert not torch.allclose(same(x), expected, rtol=1e-3)
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)
        with torch.autocast("cuda", torch.float16):
            torch.testing.assert_close(net(x).float(), expected, rtol=2e-2, atol=2e-2)
    found = []

    def work(stream):
        with torch.cuda.stream(stream), torch.no_grad():
            found.extend([net(x) for _ in range(20)])
            stream.synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(torch.cuda.Stream(),)) for _ in range(3)]
    threads += [threading.Thread(target=work, args=(torch.cuda.default_stream(),))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for one in found:
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


class Cell(torch.nn.Module):
    """A user's cell: a normalized layer, or a convolution."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        if channels:
            self.map = torch.nn.Conv2d(channels, channels, 3, padding=1)
            self.norm = torch.nn.GroupNorm(2, channels)
        else:
            self.map, self.norm = torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)

    def forward(self, z, x):
        return torch.tanh(0.3 * self.norm(self.map(z)) + x)


@pytest.mark.parametrize("channels", [0, 4])
@pytest.mark.parametrize("warm_start", [False, True])
def test_a_users_cell(channels, warm_start):
    torch.manual_seed(0)
    cell = Cell(channels).double()
    shape = (6, channels, 8, 8) if channels else (6, 32)
    cells = {"cpu": cell, "cuda": copy.deepcopy(cell).cuda()}
    layers = {
        device: shoal.Equilibrium(one, warm_start=warm_start) for device, one in cells.items()
    }
    optimizers = {d: torch.optim.Adam(layer.parameters(), 1e-3) for d, layer in layers.items()}
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    for _ in range(8):
        if not warm_start:
            x = torch.randn(shape, dtype=torch.float64, generator=generator)
        found = []
        for device, layer in layers.items():
            optimizers[device].zero_grad()
            here = x.clone().to(device).requires_grad_()
            z = layer(torch.zeros_like(here), here)
            z.square().sum().backward()
            assert layer.solution.converged.all()
            assert layer.solution.adjoint.converged.all()
            gradients = [p.grad.cpu() for p in layer.parameters()]
            found.append([z.detach().cpu(), here.grad.cpu(), *gradients])
            optimizers[device].step()
        for left, right in zip(*found, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-7, atol=1e-8)

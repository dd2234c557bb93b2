"""Networks on a GPU do what they do on the CPU."""

import pytest
import torch

import shoal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEQ = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)


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


def test_weights_are_the_same():
    cpu = shoal.build(DEQ, in_features=20, width=64)
    gpu = shoal.build(DEQ, in_features=20, width=64, device="cuda")
    for name, parameter in gpu.groups.items():
        assert parameter.is_cuda
        assert torch.equal(parameter.cpu(), cpu.groups[name])


@pytest.mark.parametrize("coarse_steps", [0, 5])
def test_warm_starts_and_coarse_steps(coarse_steps):
    x = inputs(torch.float32).cuda()
    net = shoal.build(
        DEQ,
        in_features=20,
        width=256,
        device="cuda",
        warm_start=True,
        solver=shoal.Picard(coarse_steps=coarse_steps),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    evaluations = []
    for _ in range(10):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        evaluations.append(net.last_solve.evaluations + net.last_adjoint.evaluations)
        optimizer.step()
    assert evaluations[-1] < 0.5 * evaluations[0]
    assert (net.last_solve.residual <= 2e-6 * net.last_solve.value.norm(dim=1)).all()


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


@pytest.mark.parametrize("count", [1, 32])
def test_graphs_of_steps_change_nothing(count):
    nets = [
        shoal.build(
            DEQ,
            in_features=20,
            width=64,
            dtype=torch.float64,
            device="cuda",
            solver=shoal.Picard(graphs=graphs),
        )
        for graphs in (True, False)
    ]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in nets]
    for turn in range(6):  # the first ones are without a graph; weights change in place
        x = inputs()[:count].cuda() + 0.1 * turn
        for left, right in zip(*(passes(net, x) for net in nets), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-9)
        for optimizer in optimizers:
            optimizer.step()


def test_graphs_in_several_streams_and_after_new_weights():
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

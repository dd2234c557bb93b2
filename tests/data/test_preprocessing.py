"""The papers' preprocessings, against computations by hand; the samplers, by their laws."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal import data
from shoal.data import Dataset


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def images(n: int = 30, shape: tuple[int, int, int] = (3, 8, 6), classes: int = 5) -> Dataset:
    names = tuple("abcdefghij"[:classes])
    y = torch.arange(n) % classes
    return Dataset(noise(n, *shape), y, "noise", classes=names, image_shape=shape)


def unchanged(before: Dataset, after: Dataset, *changed: str) -> None:
    for field in dataclasses.fields(Dataset):
        if field.name not in changed:
            assert getattr(before, field.name) is getattr(after, field.name), field.name


def test_select_classes() -> None:
    whole = images()
    for chosen in [(3, 1), ("d", "b"), (3, "b")]:
        part = data.select_classes(whole, *chosen)
        rows = [i for i in range(30) if i % 5 in (1, 3)]
        assert torch.equal(part.x, whole.x[rows])
        assert part.y.tolist() == [0 if i % 5 == 3 else 1 for i in rows]
        assert part.classes == ("d", "b")
        unchanged(whole, part, "x", "y", "classes")


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ((), ValueError, "one or more different classes"),
        ((1, 1), ValueError, "one or more different classes"),
        ((1, "b"), ValueError, "one or more different classes"),
        ((5,), ValueError, r"in 0\.\.4, got 5"),
        ((-1,), ValueError, "classes must be >= 0, got -1"),
        (("z",), ValueError, "classes must be among 'a', 'b', 'c', 'd', 'e', got 'z'"),
        ((1.0,), TypeError, "classes must be an integer"),
    ],
)
def test_classes_that_do_not_exist(chosen: tuple, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        data.select_classes(images(), *chosen)
    with pytest.raises(ValueError, match="no samples of class 'e'"):
        data.select_classes(images(n=4), 4)


def test_subsample() -> None:
    whole = images(n=103)
    part = data.subsample(whole, 7, seed=1)
    assert torch.bincount(part.y).tolist() == [7] * 5
    rows = [int(torch.nonzero((whole.x == row).flatten(1).all(1))) for row in part.x]
    assert rows == sorted(set(rows))  # without replacement, in their order
    assert part.y.tolist() == [row % 5 for row in rows]
    assert torch.equal(part.x, data.subsample(whole, 7, seed=1).x)
    assert not torch.equal(part.x, data.subsample(whole, 7, seed=2).x)
    assert torch.equal(data.subsample(images(n=30), 6, seed=0).x, images(n=30).x)
    with pytest.raises(ValueError, match="must be <= 20, the size of class 'd' of 'noise', got 21"):
        data.subsample(whole, 21, seed=0)
    with pytest.raises(ValueError, match="n_per_class must be >= 1"):
        data.subsample(whole, 0, seed=0)
    with pytest.raises(TypeError, match="seed must be an integer"):
        data.subsample(whole, 1, seed=None)


def test_every_sample_is_drawn_equally_often() -> None:
    whole = data.select_classes(images(n=50), 0)  # 10 samples
    marked = dataclasses.replace(whole, x=torch.arange(10.0)[:, None], image_shape=None)
    drawn = torch.cat([data.subsample(marked, 3, seed=seed).x[:, 0] for seed in range(500)])
    counts = torch.bincount(drawn.long(), minlength=10).double()
    assert (counts - 150).abs().max() < 4 * math.sqrt(500 * 0.3 * 0.7)


def test_labels_as_numbers() -> None:
    pair = data.select_classes(images(), 2, 4)
    signed = data.signed_labels(pair)
    assert signed.y.dtype == torch.float64
    assert signed.y.tolist() == [-1.0 if k == 0 else 1.0 for k in pair.y.tolist()]
    unchanged(pair, signed, "y")
    hot = data.one_hot(images())
    assert (hot.y.numpy() == np.eye(5)[np.arange(30) % 5]).all()
    with pytest.raises(ValueError, match="two classes, got 5 in 'noise'"):
        data.signed_labels(images())
    for function in (data.signed_labels, data.one_hot, lambda d: data.subsample(d, 1, seed=0)):
        with pytest.raises(ValueError, match="must have class indices as y"):
            function(signed)
    raw = dataclasses.replace(pair, x=(pair.x * 255).to(torch.uint8))
    assert data.one_hot(raw).y.dtype == torch.get_default_dtype()


@pytest.mark.parametrize("flat", [False, True])
def test_to_gray(flat: bool) -> None:
    color = data.flatten(images()) if flat else images()
    gray = data.to_gray(color)
    red, green, blue = color.x.reshape(-1, 3, 8, 6).unbind(1)
    expected = (299 * red + 587 * green + 114 * blue)[:, None] / 1000
    torch.testing.assert_close(
        gray.x, expected.flatten(1) if flat else expected, rtol=1e-15, atol=0
    )
    assert gray.image_shape == (1, 8, 6)
    assert data.to_gray(gray) is gray
    white = dataclasses.replace(images(), x=torch.ones(30, 3, 8, 6))
    torch.testing.assert_close(data.to_gray(white).x, torch.ones(30, 1, 8, 6))
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        data.to_gray(images(shape=(2, 4, 4)))


def triangle_weights(before: int, after: int) -> np.ndarray:
    """Row i: the weights of the old pixels in the new pixel i, by a triangle of unit mass."""
    scale = before / after
    reach = max(scale, 1.0)
    centers = (np.arange(after) + 0.5) * scale
    distance = np.abs(np.arange(before) + 0.5 - centers[:, None]) / reach
    weights = np.maximum(0, 1 - distance)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("size", [(4, 3), (7, 5), (8, 3), (12, 13), (1, 1)])
def test_resize(size: tuple[int, int], flat: bool) -> None:
    before = data.flatten(images()) if flat else images()
    after = data.resize(before, *size)
    rows, columns = triangle_weights(8, size[0]), triangle_weights(6, size[1])
    expected = np.einsum("ih,jw,nchw->ncij", rows, columns, images().x.numpy())
    assert after.image_shape == (3, *size)
    np.testing.assert_allclose(after.x.numpy().reshape(expected.shape), expected, atol=1e-13)


def test_resize_as_gao2022_does() -> None:
    before = images(n=2, shape=(1, 32, 32), classes=2)
    after = data.resize(before, 28, 28).x.numpy()
    weights = triangle_weights(32, 28)
    np.testing.assert_allclose(after, weights @ before.x.numpy() @ weights.T, atol=1e-13)
    assert data.resize(before, 32, 32) is before
    with pytest.raises(ValueError, match="height must be >= 1, got 0"):
        data.resize(before, 0, 28)
    with pytest.raises(ValueError, match="must be of images, got 'sphere'"):
        data.resize(data.sphere(2, 4, seed=0), 2, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    color = dataclasses.replace(images(), x=images().x.to(dtype))
    exact = dataclasses.replace(color, x=color.x.double())
    for step in (data.to_gray, lambda d: data.resize(d, 7, 5), data.center, data.unit_norm):
        found = step(color).x
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.double(), step(exact).x, rtol=0, atol=torch.finfo(dtype).eps
        )


def test_flatten_and_center() -> None:
    whole = images()
    flat = data.flatten(whole)
    assert (flat.x.numpy() == whole.x.numpy().reshape(30, 144)).all()
    assert flat.image_shape == whole.image_shape
    centered = data.center(flat)
    expected = flat.x.numpy() - flat.x.numpy().sum(0) / 30
    np.testing.assert_allclose(centered.x.numpy(), expected, atol=1e-15)
    test = data.center(flat, mean=torch.ones(144))
    assert torch.equal(test.x, flat.x - 1)
    with pytest.raises(ValueError, match=r"mean must have shape \(144,\), got \(3,\)"):
        data.center(flat, mean=torch.ones(3))
    with pytest.raises(TypeError, match="mean must be a tensor, got float"):
        data.center(flat, mean=1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norms(dtype: torch.dtype) -> None:
    whole = dataclasses.replace(images(), x=noise(30, 3, 8, 6, dtype=dtype))
    unit, root = data.unit_norm(whole), data.scale_norm(whole, math.sqrt(144))
    assert unit.x.shape == whole.x.shape
    assert unit.x.dtype == dtype
    epsilon = torch.finfo(dtype).eps
    for row, one, twelve in zip(whole.x.double(), unit.x.double(), root.x.double(), strict=True):
        length = math.sqrt(math.fsum(float(v) ** 2 for v in row.flatten()))
        torch.testing.assert_close(one, row / length, rtol=2 * epsilon, atol=0)
        torch.testing.assert_close(twelve, row * 12 / length, rtol=2 * epsilon, atol=0)
    black = dataclasses.replace(whole, x=whole.x * (torch.arange(30) != 4)[:, None, None, None])
    for function in (data.unit_norm, lambda d: data.perturb_parallel(d, seed=0)):
        with pytest.raises(ValueError, match="no zero sample, got one at 4 in 'noise'"):
            function(black)
    with pytest.raises(ValueError, match="norm must be > 0"):
        data.scale_norm(whole, 0.0)


def test_norms_of_extreme_samples() -> None:
    x = torch.tensor([[3e-200, 4e-200], [-3e200, 4e200], [3.0, 4.0]], dtype=torch.float64)
    unit = data.unit_norm(Dataset(x, torch.zeros(3), "extreme")).x
    expected = torch.tensor([[0.6, 0.8], [-0.6, 0.8], [0.6, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(unit, expected, rtol=1e-15, atol=0)
    for bad in (math.nan, math.inf):
        broken = Dataset(torch.tensor([[1.0, 2.0], [bad, 0.0]]), torch.zeros(2), "broken")
        for function in (data.unit_norm, lambda d: data.perturb_parallel(d, seed=0)):
            with pytest.raises(ValueError, match="no NaN or infinite sample, got one at 1"):
                function(broken)
    half = Dataset(torch.ones(2, 2, dtype=torch.float16), torch.zeros(2), "half")
    with pytest.raises(ValueError, match=r"norm must not be too large for torch\.float16"):
        data.scale_norm(half, 1e6)


def sines(x: Tensor) -> dict[tuple[int, int], float]:
    """The sine of the angle of each pair, from the part that is orthogonal."""
    unit = x.flatten(1).double()
    unit = unit / unit.norm(dim=1, keepdim=True)
    pairs = itertools.combinations(range(len(unit)), 2)
    return {(i, j): float((unit[j] - (unit[i] @ unit[j]) * unit[i]).norm()) for i, j in pairs}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_parallel_samples_are_parted(dtype: torch.dtype) -> None:
    x = noise(9, 1, 4, 4, dtype=dtype)
    x[3], x[5], x[7], x[8] = x[1], -x[1] / 3, 2 * x[2], x[6] * (1 + 1e-12)
    before = Dataset(x, torch.zeros(9), "parallel", image_shape=(1, 4, 4))
    kept = x.clone()
    after = data.perturb_parallel(before, seed=0)
    assert torch.equal(x, kept)  # the input is not written to
    assert min(sines(before.x).values()) < 1e-6
    assert min(sines(after.x).values()) > 1e-3
    turned = [3, 5, 7, 8]
    for i in range(9):
        assert torch.equal(after.x[i], x[i]) == (i not in turned)
    norms = [d.flatten(1).double().norm(dim=1) for d in (after.x, x)]
    torch.testing.assert_close(*norms, rtol=4 * torch.finfo(dtype).eps, atol=0)
    for i in turned:  # by an angle of about the scale
        assert 0.003 < sines(torch.stack([x[i], after.x[i]]))[0, 1] < 0.03
    assert torch.equal(after.x, data.perturb_parallel(before, seed=0).x)
    assert not torch.equal(after.x, data.perturb_parallel(before, seed=1).x)
    assert torch.equal(data.perturb_parallel(after, seed=5).x, after.x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-7, 1e-6, 1e-5, 1e-3])
def test_what_is_returned_is_never_parallel(dtype: torch.dtype, scale: float) -> None:
    """Rounding must not hide it: the norms of rounded samples are not those of the samples."""
    x = noise(2, 300, seed=3).to(dtype)[[0, 0, 0, 1]]
    twins = Dataset(x, torch.zeros(4), "twins")
    if scale < 1e-6 or (dtype == torch.float16 and scale < 1e-5):  # which is lost in rounding
        with pytest.raises(ValueError, match="scale must be large enough"):
            data.perturb_parallel(twins, seed=0, scale=scale)
        return
    after = data.perturb_parallel(twins, seed=0, scale=scale)
    assert min(sines(after.x).values()) > 0.99e-6


def test_parallel_samples_far_apart_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.data.transforms.geometry._BLOCK", 4)
    x = noise(23, 5)
    x[22], x[9] = x[0], x[8]
    after = data.perturb_parallel(Dataset(x, torch.zeros(23), "far"), seed=0).x
    changed = [i for i in range(23) if not torch.equal(after[i], x[i])]
    assert changed == [9, 22]


def test_what_cannot_be_parted() -> None:
    line = Dataset(torch.ones(2, 1), torch.zeros(2), "line")
    with pytest.raises(ValueError, match="at least two entries"):
        data.perturb_parallel(line, seed=0)
    twins = Dataset(torch.ones(2, 3), torch.zeros(2), "twins")
    with pytest.raises(ValueError, match="scale must be large enough"):
        data.perturb_parallel(twins, seed=0, scale=1e-12)
    with pytest.raises(ValueError, match="scale must be > 0"):
        data.perturb_parallel(twins, seed=0, scale=0.0)


def test_pipe_is_a_call() -> None:
    by_pipe = images().pipe(data.select_classes, 0, 1).pipe(data.subsample, 3, seed=4)
    by_call = data.subsample(data.select_classes(images(), 0, 1), 3, seed=4)
    assert torch.equal(by_pipe.x, by_call.x)


def test_the_preprocessing_of_gao2022() -> None:
    whole = images(n=60, shape=(3, 32, 32))
    steps = whole.pipe(data.select_classes, 0, 1).pipe(data.subsample, 10, seed=0)
    steps = steps.pipe(data.to_gray).pipe(data.resize, 28, 28).pipe(data.flatten)
    ready = steps.pipe(data.unit_norm).pipe(data.perturb_parallel, seed=0)
    assert ready.x.shape == (20, 784)
    torch.testing.assert_close(ready.x.norm(dim=1), torch.ones(20, dtype=torch.float64))
    assert torch.equal(ready.x, steps.pipe(data.unit_norm).x)  # none were parallel


@pytest.mark.parametrize(
    "function",
    [
        data.to_gray,
        data.flatten,
        data.center,
        data.unit_norm,
        data.one_hot,
        data.signed_labels,
        lambda d: data.resize(d, 2, 2),
        lambda d: data.select_classes(d, 0),
    ],
)
def test_only_datasets(function: object) -> None:
    with pytest.raises(TypeError, match=r"dataset must be a shoal\.data\.Dataset, got Tensor"):
        function(torch.ones(2, 3))


def test_sphere() -> None:
    points = data.sphere(2000, 30, seed=0, dtype=torch.float64)
    torch.testing.assert_close(
        points.x.norm(dim=1), torch.full((2000,), math.sqrt(30), dtype=torch.float64)
    )
    # uniform: mean 0 and covariance I, and the fourth moment 3d/(d + 2) of a coordinate
    assert points.x.mean(0).abs().max() < 5 / math.sqrt(2000)
    assert (points.x.T @ points.x / 2000 - torch.eye(30)).abs().max() < 8 / math.sqrt(2000)
    assert abs(float((points.x**4).mean()) - 90 / 32) < 0.1
    assert abs(float(points.y.mean())) < 0.1
    assert abs(float(points.y.var()) - 1) < 0.15
    assert points.classes == ()
    assert torch.equal(points.x, data.sphere(2000, 30, seed=0, dtype=torch.float64).x)
    assert torch.equal(points.x.float(), data.sphere(2000, 30, seed=0, dtype=torch.float32).x)
    assert not torch.equal(points.x, data.sphere(2000, 30, seed=1, dtype=torch.float64).x)


def test_two_gaussians() -> None:
    p = 25
    points = data.two_gaussians(20001, p, seed=0, dtype=torch.float64)
    assert torch.bincount(points.y).tolist() == [10001, 10000]
    for a in (0, 1):
        scaled = points.x[points.y == a] * math.sqrt(p)
        mean, variance = torch.zeros(p, dtype=torch.float64), 1 + 8 * a / math.sqrt(p)
        mean[8 * a] = 8
        assert (scaled.mean(0) - mean).abs().max() < 5 * math.sqrt(variance / 10_000)
        assert (scaled.T.cov() - variance * torch.eye(p)).abs().max() < 6 * variance / 100
    assert torch.equal(points.x, data.two_gaussians(20001, p, seed=0, dtype=torch.float64).x)


@pytest.mark.parametrize("sampler", [data.sphere, data.two_gaussians])
def test_bad_arguments_of_samplers(sampler: object) -> None:
    with pytest.raises(ValueError, match="samples must be >= "):
        sampler(0, 20, seed=0)
    with pytest.raises(ValueError, match="dimension must be >= "):
        sampler(4, 0, seed=0)
    with pytest.raises(ValueError, match="seed must be >= 0"):
        sampler(4, 20, seed=-1)
    with pytest.raises(TypeError, match="dtype must be a floating-point dtype"):
        sampler(4, 20, seed=0, dtype=torch.int32)

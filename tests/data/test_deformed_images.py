"""A stream of deformed images: what an index decides, and what the sizes of deformations mean."""

import math

import pytest
import torch

from shoal import data


def ramp(count=3, channels=1, height=21, width=21):
    """Images whose pixels are their columns and rows, of which interpolations are exact."""
    across = torch.arange(width, dtype=torch.float64).expand(height, width)
    down = torch.arange(height, dtype=torch.float64)[:, None].expand(height, width)
    images = torch.stack([across, down][:channels]).expand(count, -1, -1, -1).contiguous()
    return data.Dataset(images, torch.arange(count), classes=tuple("abcdefgh")[:count])


def stream(base=None, **sizes):
    none = {"rotation": 0.0, "scaling": 0.0, "shift": 0.0, "elastic": 0.0}
    return data.DeformedImages(ramp() if base is None else base, **{**none, **sizes})


def test_an_image_is_its_seed_and_its_index():
    base = data.load("digits", raw=True)
    images = data.DeformedImages(base, seed=3, elastic=0.3, smoothness=1.5)
    n = len(base)
    whole = images.take(range(2 * n - 5, 2 * n + 5))
    few = images.take(torch.tensor([2 * n + 3, 7, 2 * n - 5]))
    assert torch.equal(few.x[0], whole.x[8])
    assert torch.equal(few.x[1], base.x[7])  # the first are as they were
    assert torch.equal(few.x[2], whole.x[0])
    assert torch.equal(whole.labels, base.labels[torch.arange(2 * n - 5, 2 * n + 5) % n])
    assert whole.x.dtype == torch.uint8
    other = data.DeformedImages(base, seed=4, elastic=0.3, smoothness=1.5).take(torch.tensor([n]))
    assert not torch.equal(other.x, images.take(torch.tensor([n])).x)
    assert not torch.equal(images.take(torch.tensor([n])).x, images.take(torch.tensor([2 * n])).x)
    assert images.take(torch.tensor([10**15])).x.shape == (1, 1, 8, 8)


def test_without_deformations_images_stay():
    torch.testing.assert_close(stream().take(range(3, 9)).x, ramp().x.repeat(2, 1, 1, 1))


@pytest.mark.parametrize("axis", [0, 1])
def test_shifts_are_uniform(axis):
    moved = stream(ramp(channels=2), shift=2.0).take(range(3, 2003)).x
    shifts = moved[:, axis, 10, 10] - 10
    assert float(shifts.abs().max()) <= 2.0
    assert abs(float(shifts.mean())) < 0.1
    # squares of uniform numbers have a variance of 4/5 of their squared mean
    assert float(shifts.var()) == pytest.approx(4 / 3, rel=4 * math.sqrt(0.8 / 2000))
    inside = moved[:, axis, 5:-5, 5:-5] - ramp(channels=2).x[0, axis, 5:-5, 5:-5]
    torch.testing.assert_close(inside, shifts[:, None, None].expand_as(inside))


def test_rotations_keep_the_distance_to_the_middle():
    moved = stream(ramp(channels=2), rotation=30.0).take(range(3, 503)).x - 10
    before = ramp(channels=2).x[0] - 10
    inside = before.square().sum(0).sqrt() < 7
    torch.testing.assert_close(
        moved.square().sum(1)[:, inside], before.square().sum(0)[inside].expand(500, -1)
    )
    angles = torch.atan2(moved[:, 1, 10, 15], moved[:, 0, 10, 15])
    assert math.radians(28) < float(angles.abs().max()) <= math.radians(30)


def test_scalings_are_about_the_middle():
    moved = stream(ramp(channels=2), scaling=0.25).take(range(3, 503)).x - 10
    ratios = moved[:, 0, 10, 15] / 5
    assert 1 / 1.25 <= float(ratios.min()) < 0.82
    assert 1.22 < float(ratios.max()) <= 1.25
    torch.testing.assert_close(moved[:, 1, 15, 8], 5 * ratios)


def test_elastic_displacements_have_their_size_and_are_smooth():
    moved = stream(ramp(channels=2), elastic=0.7, smoothness=3.0).take(range(3, 1503)).x
    fields = (moved - ramp(channels=2).x[0])[:, :, 4:-4, 4:-4]
    assert float(fields.square().mean().sqrt()) == pytest.approx(0.7, rel=0.03)
    nearby = (fields[:, :, :, 2:] * fields[:, :, :, :-2]).mean() / fields.square().mean()
    assert float(nearby) == pytest.approx(math.exp(-(2**2) / (4 * 3.0**2)), abs=0.02)
    both = (fields[:, 0] * fields[:, 1]).mean() / fields.square().mean()
    assert abs(float(both)) < 0.05


def test_bad_streams_are_refused():
    with pytest.raises(ValueError, match=r"base must have images .* got \(4, 3\)"):
        data.DeformedImages(data.Dataset(torch.ones(4, 3)))
    with pytest.raises(ValueError, match="elastic must be"):
        stream(elastic=-1.0)
    with pytest.raises(ValueError, match="smoothness must be"):
        stream(smoothness=0.0)
    with pytest.raises(ValueError, match="indices must be"):
        stream().take(torch.tensor([1, -1]))
    with pytest.raises(ValueError, match=r"indices must be int64 of shape \(n,\)"):
        stream().take(torch.ones(2, 2, dtype=torch.int64))


def test_smoothing_over_less_than_a_pixel():
    """Each pixel moves by itself, and no width is too small."""
    moved = [stream(elastic=1.0, smoothness=s).take(range(3, 9)).x for s in (1e-3, 1e-200)]
    assert torch.equal(*moved)
    assert bool(moved[0].isfinite().all())


@pytest.mark.parametrize(
    ("indices", "kind", "text"),
    [
        ([1, 2], TypeError, "indices must be a range or a tensor, got"),
        (5, TypeError, "indices must be a range or a tensor, got 5"),
        (range(2**63, 2**63 + 1), ValueError, r"indices must be < 2\*\*63"),
        (range(-2, 1), ValueError, "indices must be >= 0, got -2"),
        (torch.tensor([-1]), ValueError, "indices must be >= 0, got -1"),
    ],
)
def test_indices_that_are_none(indices, kind, text):
    with pytest.raises(kind, match=text):
        stream().take(indices)

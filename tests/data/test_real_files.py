"""The official files, where they are: below the folder that SHOAL_DATA names, or the cache."""

import hashlib
import warnings

import pytest
import torch

from shoal import data

# Class counts, and mean and standard deviation of the pixels, from the bytes behind the headers.
MNIST = {
    "train": ([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 0.1307, 0.3081),
    "test": ([980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], 0.1325, 0.3105),
}
FASHION = {"train": ([6000] * 10, 0.2860, 0.3530), "test": ([1000] * 10, 0.2868, 0.3524)}


def real(name: str, **options: object) -> data.Dataset:
    try:
        return data.load(name, **options)
    except FileNotFoundError as error:
        pytest.skip(f"the files are not here: {str(error).split(':')[0]}")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("name", "facts"), [("mnist", MNIST), ("fashion-mnist", FASHION)])
def test_mnist(name: str, facts: dict, split: str) -> None:
    found = real(name, split=split)  # without a warning: the checksums are right
    counts, mean, deviation = facts[split]
    assert torch.bincount(found.y).tolist() == counts
    assert found.x.shape == (sum(counts), 1, 28, 28)
    assert (float(found.x.min()), float(found.x.max())) == (0.0, 1.0)
    assert abs(float(found.x.double().mean()) - mean) < 1e-4
    assert abs(float(found.x.double().std()) - deviation) < 1e-4


def test_first_labels_of_mnist() -> None:
    assert real("mnist").y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert real("mnist", split="test").y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert real("fashion-mnist").y[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]


def test_one_dataset_in_place_of_the_other_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = real("mnist", split="test").source.split(", ")
    place = tmp_path_factory.mktemp("wrong")
    for file in source:
        (place / file.rpartition("/")[2]).symlink_to(file)
    with pytest.raises(ValueError, match="got the file of MNIST, t10k-images-idx3-ubyte"):
        data.load("fashion-mnist", split="test", folder=place)


@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar(split: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", data.UnofficialDataWarning)  # a sample will do
        found = real("cifar-10", split=split, raw=True)
    assert found.x.shape[1:] == (3, 32, 32)
    assert found.y.unique().tolist() == list(range(10))
    # photographs: neighboring pixels are alike, along rows and along columns, in each channel
    pixels = found.x.double()
    for a, b in [(pixels[..., 1:], pixels[..., :-1]), (pixels[..., 1:, :], pixels[..., :-1, :])]:
        for channel in range(3):
            pair = torch.stack([a[:, channel].flatten(), b[:, channel].flatten()])
            assert float(torch.corrcoef(pair)[0, 1]) > 0.9
    digests = {hashlib.sha256(image.numpy().tobytes()).digest() for image in found.x}
    assert len(digests) > 0.99 * len(found)  # hardly any image comes twice


def test_svhn() -> None:
    found = real("svhn", split="test", raw=True)
    assert found.x.shape[1:] == (3, 32, 32)
    assert found.y.unique().tolist() == list(range(10))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
def test_the_preprocessing_of_gao2022(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", data.UnofficialDataWarning)
        whole = real(name, dtype=torch.float64)
    part = whole.pipe(data.select_classes, 0, 1).pipe(data.subsample, 500, seed=0)
    ready = part.pipe(data.to_gray).pipe(data.resize, 28, 28).pipe(data.flatten)
    ready = ready.pipe(data.unit_norm).pipe(data.perturb_parallel, seed=0)
    assert ready.x.shape == (1000, 784)
    torch.testing.assert_close(ready.x.norm(dim=1), torch.ones(1000, dtype=torch.float64))
    gram = ready.x @ ready.x.T
    assert float(gram.fill_diagonal_(0).abs().max()) < 1 - 1e-13

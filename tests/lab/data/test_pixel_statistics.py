"""Channel statistics, per-image normalisation, and ZCA whitening with its cache."""

import pytest
import torch
from safetensors.torch import save_file

from isda.lab.data import DataSet, ZCAWhitening, channel_statistics, load, normalise_per_image, zca_whitening
from isda.lab.data.augment import Compose, Draws, HorizontalFlip, Normalize


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, 3, 7, 5), dtype=torch.uint8)


def test_channel_statistics_equal_mean_and_standard_deviation_of_all_pixels(images):
    images[:, 2] = 51
    pixels = images.double().transpose(0, 1).flatten(1) / 255
    mean, std = channel_statistics(images)
    assert mean == pytest.approx(pixels.mean(1).tolist(), abs=1e-12)
    assert std == pytest.approx([*pixels.std(1, correction=0)[:2].tolist(), 1.0], abs=1e-12)
    normalised = Normalize(mean, std)(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(N, C, H, W\), got torch.float32"):
        channel_statistics(images.float())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_each_image_gets_zero_mean_and_unit_standard_deviation(images, dtype):
    given = images if dtype == torch.uint8 else (images.double() / 255).to(dtype)
    normalised = normalise_per_image(given)
    assert normalised.dtype == (torch.float32 if dtype == torch.uint8 else dtype)
    flat, tolerance = normalised.double().flatten(1), 1e-3 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(flat.mean(1), torch.zeros(40).double(), atol=tolerance, rtol=0)
    torch.testing.assert_close(flat.std(1, correction=0), torch.ones(40).double(), atol=tolerance, rtol=0)


def test_constant_images_become_zero_and_one_pixel_that_differs_by_one_is_not_constant():
    assert normalise_per_image(torch.full((2, 3, 224, 224), 0.7)).abs().max() == 0
    image = torch.full((1, 3, 224, 224), 100, dtype=torch.uint8)
    image[0, 1, 5, 5] += 1
    assert normalise_per_image(image).std(correction=0).item() == pytest.approx(1, abs=1e-2)
    with pytest.raises(ValueError, match=r"images must be uint8 or floating point in 0\.\.1, got torch.int64"):
        normalise_per_image(image.long())


# -- whitening -------------------------------------------------------------------------------------------------------


def natural_images(count, size=6, seed=0):
    """Random bytes with a natural image's correlation: smooth over space, and shared between the channels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 3, size, size, generator=generator)
    noise += 2 * torch.randn(count, 1, size, size, generator=generator)
    frequency = (torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.rfftfreq(size) ** 2).sqrt() * size
    smooth = torch.fft.irfft2(torch.fft.rfft2(noise) / (1 + frequency), s=(size, size))
    return (128 + 60 * smooth / smooth.std()).clamp(0, 255).round().to(torch.uint8)


def inverse(zca, whitened):
    """x = W^-1 z + mean in float64."""
    pixels = torch.linalg.solve(zca.whitening.double(), whitened.flatten(1).double().T).T + zca.mean
    return pixels.float().unflatten(1, zca.image_shape)


def covariance(whitened):
    return torch.cov(whitened.double().flatten(1).T, correction=0)


def test_images_become_white_and_come_back():
    images = natural_images(300)
    zca = ZCAWhitening.fit(images)
    whitened = zca(images)
    assert zca.rank == 108
    torch.testing.assert_close(zca.whitening, zca.whitening.T)
    torch.testing.assert_close(covariance(whitened), torch.eye(108).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(inverse(zca, whitened), images / 255, atol=1e-4, rtol=0)
    torch.testing.assert_close(ZCAWhitening.fit(images / 255)(images / 255), whitened, atol=1e-3, rtol=0)


def test_eps_damps_each_direction_by_its_variance():
    images = natural_images(300)
    variances = torch.linalg.eigvalsh(covariance(images / 255))
    whitened = torch.linalg.eigvalsh(covariance(ZCAWhitening.fit(images, eps=1e-3)(images)))
    torch.testing.assert_close(whitened, variances / (variances + 1e-3), atol=1e-4, rtol=0)


def test_digits_are_white_on_the_pixels_that_vary_and_zero_elsewhere():
    images = load("digits").x_train
    constant = images.flatten(1).amax(0) == images.flatten(1).amin(0)
    zca = ZCAWhitening.fit(images)
    assert zca.rank == int((~constant).sum()) < 64
    torch.testing.assert_close(covariance(zca(images)), torch.diag((~constant).double()), atol=1e-3, rtol=0)


def test_an_unseen_image_is_neither_blown_up_nor_lost_outside_the_subspace_of_few_images():
    fitted, unseen = natural_images(50), natural_images(20, seed=1)
    zca = ZCAWhitening.fit(fitted)
    assert zca.rank == 49
    whitened = zca(unseen)
    torch.testing.assert_close(inverse(zca, whitened), unseen / 255, atol=1e-4, rtol=0)
    directions = torch.linalg.svd((fitted / 255).flatten(1) - zca.mean).Vh[49:]
    outside = ((unseen / 255).flatten(1) - zca.mean) @ directions.T
    torch.testing.assert_close(whitened.flatten(1) @ directions.T, outside, atol=1e-3, rtol=0)


@pytest.fixture
def data():
    images, labels = natural_images(60, size=4), torch.zeros(60, dtype=torch.int64)
    return DataSet("tiny", images, labels, images, labels, classes=("all",))


def test_the_fit_is_kept_restored_exactly_and_fitted_anew_where_the_file_is_damaged(data, tmp_path):
    first = zca_whitening(data, tmp_path)
    (path,) = (tmp_path / "zca").iterdir()
    written = path.stat().st_mtime_ns
    second = zca_whitening(data, tmp_path)
    assert path.stat().st_mtime_ns == written
    assert torch.equal(first(data.x_test), second(data.x_test))
    assert (second.rank, second.eps, second.image_shape) == (first.rank, first.eps, first.image_shape)
    path.write_bytes(path.read_bytes()[:1000])
    assert torch.equal(first.whitening, zca_whitening(data, tmp_path).whitening)
    data.x_train[-1, -1, -1, -1] ^= 1
    zca_whitening(data, tmp_path)
    zca_whitening(data, tmp_path, eps=1e-6)
    assert len(list((tmp_path / "zca").iterdir())) == 3


@pytest.mark.parametrize("damage", ["missing", "cut", "of other tensors", "of other data"])
def test_a_file_that_holds_no_whitening_is_named(data, tmp_path, damage):
    path = tmp_path / "whitening.safetensors"
    zca = ZCAWhitening.fit(data.x_train)
    zca.save(path, of="tiny")
    assert torch.equal(ZCAWhitening.read(path, of="tiny").whitening, zca.whitening)
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "of other tensors":
        save_file({"mean": zca.mean}, path)
    with pytest.raises(ValueError, match=r"whitening\.safetensors does not hold a whitening: "):
        ZCAWhitening.read(path, of="other")


def test_it_ends_a_pipeline_like_any_transform(data):
    zca = ZCAWhitening.fit(data.x_train)
    draws = [Draws.for_samples(torch.arange(60), seed=0) for _ in range(2)]
    pipeline = Compose(HorizontalFlip(), zca)
    assert torch.equal(pipeline(data.x_train, draws[0]), zca(HorizontalFlip()(data.x_train, draws[1])))


def test_a_root_that_cannot_be_written_only_warns(data, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="the whitening is not kept for the next run"):
        assert zca_whitening(data, tmp_path / "file").image_shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ZCAWhitening.fit(x, eps=-1.0), r"eps must be at least 0, got -1\.0"),
        (lambda x: ZCAWhitening.fit(x[:1]), r"N of at least 2, got \(1, 3, 4, 4\)"),
        (lambda x: ZCAWhitening.fit(x)(x[:, :1]), r"must have the shape \(N, \*\(3, 4, 4\)\), got \(60, 1, 4, 4\)"),
    ],
)
def test_wrong_arguments_say_what_is_expected(data, call, message):
    with pytest.raises(ValueError, match=message):
        call(data.x_train)

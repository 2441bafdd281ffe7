"""ZCA whitening: identity covariance, exact inverse, sense on rank-deficient data, and a cache that is not fooled."""

import pytest
import torch
from safetensors.torch import save_file

import isda.lab.data
from isda.lab.data import DataSet, ImageFiles, ZCAWhitening, zca_whitening
from isda.lab.data.augment import Compose, Draws, HorizontalFlip
from isda.lab.data.whitening import whitening_cache_path


def natural_images(count, channels=3, size=32, seed=0):
    """Random bytes with a natural image's correlation: smooth over space, and shared between the channels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, channels, size, size, generator=generator)
    noise += 2 * torch.randn(count, 1, size, size, generator=generator)
    spectrum = torch.fft.rfft2(noise)
    frequency = (torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.rfftfreq(size) ** 2).sqrt() * size
    smooth = torch.fft.irfft2(spectrum / (1 + frequency), s=(size, size))
    return (128 + 60 * smooth / smooth.std()).clamp(0, 255).round().to(torch.uint8)


def covariance(whitened):
    return torch.cov(whitened.double().flatten(1).T, correction=0)


def assert_white_with_inverse(zca, images):
    whitened = zca(images)
    dimension = images[0].numel()
    assert zca.rank == dimension
    # In float32, which is exact enough for 1e-3 and twice as fast.
    covariance = torch.cov(whitened.flatten(1).T, correction=0)
    torch.testing.assert_close(covariance, torch.eye(dimension), atol=1e-3, rtol=0)
    torch.testing.assert_close(whitened.flatten(1).mean(0), torch.zeros(dimension), atol=1e-3, rtol=0)
    torch.testing.assert_close(zca.inverse(whitened), images / 255, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_images_of_cifar_size_become_white_and_come_back():
    images = natural_images(3600)
    assert_white_with_inverse(ZCAWhitening.fit(images), images)


def test_floating_point_images_are_whitened_alike():
    images = natural_images(300, size=6)
    zca = ZCAWhitening.fit(images)
    assert_white_with_inverse(zca, images)
    fitted_to_floats = ZCAWhitening.fit(images / 255)
    torch.testing.assert_close(fitted_to_floats(images / 255), zca(images), atol=1e-3, rtol=0)


def test_the_whitening_is_symmetric():
    zca = ZCAWhitening.fit(natural_images(300, size=6))
    torch.testing.assert_close(zca.whitening, zca.whitening.T)


def test_eps_damps_each_direction_by_its_variance():
    images = natural_images(300, size=6)
    variances = torch.linalg.eigvalsh(covariance(images / 255))
    zca = ZCAWhitening.fit(images, eps=1e-3)
    whitened = torch.linalg.eigvalsh(covariance(zca(images)))
    torch.testing.assert_close(whitened, variances / (variances + 1e-3), atol=1e-4, rtol=0)
    torch.testing.assert_close(zca.inverse(zca(images)), images / 255, atol=1e-4, rtol=0)


def test_digits_are_white_on_the_pixels_that_vary_and_zero_elsewhere():
    images = isda.lab.data.load("digits").x_train
    constant = images.flatten(1).amax(0) == images.flatten(1).amin(0)
    assert constant.any()
    zca = ZCAWhitening.fit(images)
    assert zca.rank == int((~constant).sum())
    whitened = zca(images)
    expected = torch.diag((~constant).double())
    torch.testing.assert_close(covariance(whitened), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(zca.inverse(whitened), images / 255, atol=1e-4, rtol=0)


def test_fewer_images_than_pixels_are_white_on_their_own_subspace():
    images = natural_images(50, size=6)
    zca = ZCAWhitening.fit(images)
    assert zca.rank == 49
    projector = covariance(zca(images))
    torch.testing.assert_close(projector @ projector, projector, atol=1e-3, rtol=0)
    assert projector.trace().item() == pytest.approx(49, abs=1e-2)


def test_an_unseen_image_is_neither_blown_up_nor_lost_outside_the_subspace():
    fitted, unseen = natural_images(50, size=6), natural_images(20, size=6, seed=1)
    zca = ZCAWhitening.fit(fitted)
    whitened = zca(unseen)
    torch.testing.assert_close(zca.inverse(whitened), unseen / 255, atol=1e-4, rtol=0)
    directions = torch.linalg.svd((fitted / 255).flatten(1) - zca.mean).Vh[49:]
    outside = ((unseen / 255).flatten(1) - zca.mean) @ directions.T
    torch.testing.assert_close(whitened.flatten(1) @ directions.T, outside, atol=1e-3, rtol=0)


def test_the_module_follows_dtype():
    zca = ZCAWhitening.fit(natural_images(300, size=6)).double()
    assert zca(natural_images(2, size=6)).dtype == torch.float64


@pytest.fixture
def data():
    images, labels = natural_images(60, size=4), torch.zeros(60, dtype=torch.int64)
    return DataSet("tiny", images, labels, images, labels, classes=("all",))


def test_the_fit_is_kept_and_restored_exactly(data, tmp_path):
    first = zca_whitening(data, tmp_path)
    (path,) = (tmp_path / "zca").iterdir()
    written = path.stat().st_mtime_ns
    second = zca_whitening(data, tmp_path)
    assert path.stat().st_mtime_ns == written
    assert torch.equal(first(data.x_test), second(data.x_test))
    assert (second.rank, second.eps, second.image_shape) == (first.rank, first.eps, first.image_shape)


def test_a_saved_whitening_is_read_back_to_the_bit(data, tmp_path):
    zca = ZCAWhitening.fit(data.x_train, eps=1e-5)
    zca.save(tmp_path / "run" / "whitening.safetensors")
    again = ZCAWhitening.read(tmp_path / "run" / "whitening.safetensors")
    assert torch.equal(again(data.x_test), zca(data.x_test))
    assert (again.rank, again.eps, again.image_shape) == (zca.rank, zca.eps, zca.image_shape)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["whitening.safetensors"]


@pytest.mark.parametrize("damage", ["missing", "cut", "text", "of other tensors", "of another shape"])
def test_a_file_that_holds_no_whitening_is_named(data, tmp_path, damage):
    path = tmp_path / "whitening.safetensors"
    zca = ZCAWhitening.fit(data.x_train)
    if damage == "of another shape":
        zca.image_shape = (3, 4, 5)
    zca.save(path)
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "text":
        path.write_text("no tensors")
    elif damage == "of other tensors":
        save_file({"mean": zca.mean}, path)
    with pytest.raises(ValueError, match=r"whitening\.safetensors does not hold a whitening: "):
        ZCAWhitening.read(path)


def test_it_ends_a_pipeline_like_any_transform(data):
    zca = ZCAWhitening.fit(data.x_train)
    pipeline = Compose(HorizontalFlip(), zca)
    draws = [Draws.for_samples(torch.arange(60), seed=0) for _ in range(2)]
    assert torch.equal(pipeline(data.x_train, draws[0]), zca(HorizontalFlip()(data.x_train, draws[1])))


def test_other_images_another_shape_and_another_eps_have_other_files(data, tmp_path):
    changed = data.x_train.clone()
    changed[-1, -1, -1, -1] ^= 1
    paths = {
        whitening_cache_path("tiny", images, tmp_path, eps)
        for images, eps in [
            (data.x_train, 0.0),
            (data.x_train, 1e-6),
            (changed, 0.0),
            (data.x_train[:-1], 0.0),
            (data.x_train.reshape(60, 1, 12, 4), 0.0),
        ]
    }
    assert len(paths) == 5


def test_a_damaged_file_is_fitted_anew(data, tmp_path):
    first = zca_whitening(data, tmp_path)
    (path,) = (tmp_path / "zca").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    again = zca_whitening(data, tmp_path)
    assert torch.equal(first.whitening, again.whitening)
    assert path.read_bytes() == whole


def test_a_root_that_cannot_be_written_only_warns(data, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="the whitening is not kept for the next run"):
        zca = zca_whitening(data, tmp_path / "file")
    assert zca.image_shape == (3, 4, 4)


def test_images_on_disk_cannot_be_whitened(data, tmp_path):
    files = ImageFiles([tmp_path / "a.png"])
    label = torch.tensor([0])
    with pytest.raises(ValueError, match=r"data must hold images in memory .* got lazy, decoded on access"):
        zca_whitening(DataSet("lazy", files, label, files, label, classes=("all",)), tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ZCAWhitening.fit(x, eps=-1.0), r"eps must be at least 0, got -1\.0"),
        (lambda x: ZCAWhitening.fit(x[:1]), r"N of at least 2, got \(1, 3, 4, 4\)"),
        (lambda x: ZCAWhitening.fit(x[0]), r"images must have the shape \(N, C, H, W\)"),
        (lambda x: ZCAWhitening.fit(x)(x[:, :1]), r"must have the shape \(N, \*\(3, 4, 4\)\), got \(60, 1, 4, 4\)"),
    ],
)
def test_wrong_arguments_say_what_is_expected(data, call, message):
    with pytest.raises(ValueError, match=message):
        call(data.x_train)

"""Small archives in the official formats, made by the tests themselves."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_tar(path: Path, folder: str, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


@pytest.fixture(name="write_tar")
def write_tar_fixture() -> Callable[[Path, str, dict[str, bytes]], Path]:
    return write_tar


@pytest.fixture
def cifar10_binary(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """A cifar-10-binary.tar.gz with 4 images per batch, and the 24 images (N, 3, 32, 32) and labels in it."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, 24, dtype=np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(24, -1)], axis=1)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    members = {name: records[4 * i : 4 * i + 4].tobytes() for i, name in enumerate(names)}
    members["batches.meta.txt"] = ("\n".join(CIFAR10_NAMES) + "\n\n").encode()
    members["readme.html"] = b"<a href='...'>"
    folder = tmp_path / "official"
    folder.mkdir()
    return write_tar(folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", members), images, labels


@pytest.fixture
def write_images() -> Callable[..., None]:
    """Writes random PNG images: write_images(folder, count, size=(height, width), mode="RGB")."""
    from PIL import Image

    def write(folder: Path, count: int, size: tuple[int, int] = (6, 5), mode: str = "RGB", seed: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(seed)
        for i in range(count):
            shape = (*size, 3) if mode == "RGB" else size
            pixels = random.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i:03d}.png")

    return write

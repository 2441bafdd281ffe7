"""The data sets that have a name: what they hold, which files they are made of, where those are looked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isda.data.archives import File, find
from isda.data.dataset import Arrays
from isda.data.normalise import PUBLISHED, ChannelStatistics
from isda.data.readers import cifar, imagenet
from isda.data.readers.digits import read_digits
from isda.data.readers.fashion_mnist import read_fashion_mnist
from isda.data.readers.svhn import read_svhn

__all__ = ["CATALOGUE", "Layout", "NamedSet"]

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
FASHION_MNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


@dataclass(frozen=True)
class Layout:
    """One way a data set can lie on disk: these files, in this order, go to `read`."""

    files: tuple[File, ...]
    read: Callable[[list[Path]], Arrays]
    verify: bool = True
    """Whether the md5s are compared at each load; not where the reader has a checksum of its own to compare."""


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A named data set, with the published number of images."""

    name: str
    train: int
    test: int
    classes: int
    channels: int
    size: int | None
    """Height and width, None where it varies."""
    folders: tuple[str, ...] = ()
    """Where its files are looked for, relative to the root; downloads go into the first."""
    layouts: tuple[Layout, ...]
    """In order of preference; the first is the one that is downloaded."""
    published: ChannelStatistics | None = None

    def places(self, root: Path) -> list[Path]:
        """The folders that are searched."""
        return [root / folder for folder in self.folders]

    def locate(self, root: Path) -> tuple[Layout, list[Path]] | None:
        """The first layout of which every file is there, with the paths of its files."""
        for layout in self.layouts:
            paths = [find(file, self.places(root)) for file in layout.files]
            complete = [path for path in paths if path is not None]
            if len(complete) == len(paths):
                return layout, complete
        return None

    def wanted(self, root: Path) -> str:
        """Which files to put where, in words."""
        choices = " or ".join(" and ".join(map(str, layout.files)) for layout in self.layouts)
        places = " or ".join(map(str, self.places(root)))
        return f"put {choices} into {places}, or {self.name}.npz (x_train, y_train, x_test, y_test) into {root}"


def _cifar(name: str, number: int, variant: cifar.Variant, binary_md5: str, python_md5: str) -> NamedSet:
    binary, python = f"cifar-{number}-binary.tar.gz", f"cifar-{number}-python.tar.gz"
    return NamedSet(
        name=name,
        train=50_000,
        test=10_000,
        classes=number,
        channels=3,
        size=32,
        folders=(name, "."),
        layouts=(
            Layout((File(binary, binary_md5, CIFAR_URL + binary),), lambda p: cifar.read_binary(p[0], variant)),
            Layout((File(python, python_md5, CIFAR_URL + python),), lambda p: cifar.read_python(p[0], variant)),
        ),
        published=PUBLISHED[name],
    )


def _svhn_file(name: str, md5: str) -> File:
    return File(name, md5, SVHN_URL + name)


SVHN_TRAIN = _svhn_file("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373")
SVHN_TEST = _svhn_file("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3")
SVHN_EXTRA = _svhn_file("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7")

_SETS = (
    NamedSet(
        name="digits",
        train=1_297,
        test=500,
        classes=10,
        channels=1,
        size=8,
        layouts=(Layout((), lambda paths: read_digits()),),
    ),
    NamedSet(
        name="fashion-mnist",
        train=60_000,
        test=10_000,
        classes=10,
        channels=1,
        size=28,
        # torchvision's folder, and where Debian's package dataset-fashion-mnist puts the files.
        folders=("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
        layouts=(
            Layout(
                tuple(
                    File(name, md5, FASHION_MNIST_URL + name)
                    for name, md5 in (
                        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
                    )
                ),
                lambda paths: read_fashion_mnist(*paths),
                # gzip has its own checksum, and Debian compresses the files anew.
                verify=False,
            ),
        ),
    ),
    _cifar("cifar10", 10, cifar.CIFAR10, "c32a1d4ab5d03f1284b67883e8d87530", "c58f30108f718f92721af3b95e74349a"),
    _cifar("cifar100", 100, cifar.CIFAR100, "03b5dce01913d631647c71ecec9e9cb8", "eb9058c3a382ffc7106e4002c42a8d85"),
    NamedSet(
        name="svhn",
        train=73_257,
        test=26_032,
        classes=10,
        channels=3,
        size=32,
        folders=("svhn", "."),
        layouts=(Layout((SVHN_TRAIN, SVHN_TEST), lambda paths: read_svhn(*paths)),),
        published=PUBLISHED["svhn"],
    ),
    NamedSet(
        name="svhn-extra",
        train=73_257 + 531_131,
        test=26_032,
        classes=10,
        channels=3,
        size=32,
        folders=("svhn", "."),
        layouts=(Layout((SVHN_TRAIN, SVHN_TEST, SVHN_EXTRA), lambda paths: read_svhn(*paths)),),
        published=PUBLISHED["svhn"],
    ),
    NamedSet(
        name="imagenet",
        train=1_281_167,
        test=50_000,
        classes=1_000,
        channels=3,
        size=None,
        folders=("imagenet",),
        layouts=(
            Layout((File("train"), File("val")), lambda paths: imagenet.read_imagenet(paths[0].parent), verify=False),
            Layout(
                (
                    File("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf"),
                    File("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e"),
                    File("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622"),
                ),
                lambda paths: imagenet.unpack_imagenet(*paths),
                # Compared while unpacking, which happens once.
                verify=False,
            ),
        ),
        published=PUBLISHED["imagenet"],
    ),
)

CATALOGUE = {named.name: named for named in _SETS}
"""The named data sets, in the order of `isda data`."""

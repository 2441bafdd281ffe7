"""Views of images in semi-supervised training: translated and mirrored ones, in pairs, and strongly augmented ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isda.data.augment import Compose, Cutout, Draws, HorizontalFlip, RandAugment, RandomTranslation, Transform
from isda.semi import UnlabelledBatch
from isda.semi.defaults import MethodSettings

__all__ = ["WEAK", "Views"]

WEAK: dict[str, tuple[Compose, Compose]] = {
    "none": (Compose(), Compose()),
    "translate": (Compose(), Compose(RandomTranslation(2))),
    "translate-flip": (Compose(HorizontalFlip()), Compose(RandomTranslation(2))),
}
"""The augmentations of semi-supervised methods by name: mirroring, then translation."""


@dataclass(frozen=True)
class Views:
    """Makes the views of a method. The first is the same for all methods, so that their runs are paired."""

    augment: str
    """One of WEAK."""
    second: bool = False
    shared_flip: bool = False
    """Whether the second view is mirrored like the first."""
    strong: Compose | None = None
    """From uint8 pixels to strongly augmented, normalised images."""

    @classmethod
    def of(cls, augment: str, settings: MethodSettings, normalise: Transform, image_size: tuple[int, int]) -> Views:
        """The views that a method's publication has.

        Strong views are translated (and mirrored), then go through RandAugment and Cutout of half the image's side, as
        FixMatch's do; RandAugment has torchvision's magnitude, where FixMatch draws one.
        """
        strong = None
        if settings.strong_view:
            strong = Compose(*WEAK[augment], RandAugment(), Cutout(max(1, min(image_size) // 2)), normalise)
        return cls(augment, settings.second_view, settings.shared_flip, strong)

    def first(self, images: Tensor, draws: Draws) -> Tensor:
        """One view of normalised images."""
        flip, translate = WEAK[self.augment]
        return translate(flip(images, draws), draws)

    def all(self, images: Tensor, pixels: Tensor | None, indices: Tensor, draws: Draws) -> UnlabelledBatch:
        """Every view that the method needs.

        Args:
            images: (N, C, H, W) normalised.
            pixels: (N, C, H, W) uint8, for a strong view.
            indices: (N,) which of the run's images they are.
            draws: of the samples; each view draws on.
        """
        flip, translate = WEAK[self.augment]
        flipped = flip(images, draws)
        first, second, strong = translate(flipped, draws), None, None
        if self.second:
            second = translate(flipped if self.shared_flip else flip(images, draws), draws)
        if self.strong is not None and pixels is not None:
            strong = self.strong(pixels, draws)
        return UnlabelledBatch(first, second, strong, indices)

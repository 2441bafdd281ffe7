"""Feature inversion: images for deep features, by a generator (the paper's appendix; docs/visualize.md).

Open a run and a generator, reconstruct images, then find images for other features::

    observed = observe(Path("runs/digits"))
    generator = generator_of_run(load_generator(Path("runs/gan")))
    inverter = Inverter(observed, generator)

    rows = observed.rows_of(3)[:4]                                # four images of the fourth class
    found = inverter.reconstruct(rows)                            # step I: found.images, found.error
    target = augmented_features(observed, rows, 5)                # ISDA's draws from N(a, lambda Sigma_y)
    moved = inverter.reach(found, target)                         # step II: 20 images, five for each
    target = features_along(observed, rows, direction, [-2, 2])   # or along a given direction
    moved = inverter.reach(found, target)

`study` does what ``isda visualize`` does. `conditional`, `unconditional` and `biggan` adapt other generators.
"""

from isda.lab.analysis.inversion.generator_adapters import (
    LatentGenerator,
    biggan,
    conditional,
    generator_of_run,
    normalised_noise,
    open_biggan,
    unconditional,
)
from isda.lab.analysis.inversion.inverter import PIXEL_WEIGHT, Descent, InvertedFeatures, Inverter
from isda.lab.analysis.inversion.study import InversionStudy, choose_rows, nearest_images, study
from isda.lab.analysis.inversion.targets import augmented_features, features_along, strength_of

__all__ = [
    "PIXEL_WEIGHT",
    "Descent",
    "InversionStudy",
    "InvertedFeatures",
    "Inverter",
    "LatentGenerator",
    "augmented_features",
    "biggan",
    "choose_rows",
    "conditional",
    "features_along",
    "generator_of_run",
    "nearest_images",
    "normalised_noise",
    "open_biggan",
    "strength_of",
    "study",
    "unconditional",
]

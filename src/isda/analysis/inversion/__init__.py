"""Feature inversion: images for deep features, by a generator (the paper's appendix; docs/visualize.md).

Open a run and a generator, reconstruct images, then ask for other features and see what they look like::

    observed = observe(Path("runs/digits"))
    generator = generator_of_run(load_generator(Path("runs/gan")))
    inverter = Inverter(observed, generator)

    rows = observed.rows_of(3)[:4]                                # four images of the fourth class
    found = inverter.reconstruct(rows)                            # step I: found.images, found.error
    asked = augmented_features(observed, rows, 5)                 # ISDA's draws from N(a, lambda Sigma_y)
    moved = inverter.reach(found, asked)                          # step II: 20 images, five for each
    asked = features_along(observed, rows, direction, [-2, 2])    # or along a direction of one's own
    moved = inverter.reach(found, asked)

`study` does what ``isda visualize`` does. `conditional`, `unconditional` and `biggan` make other generators fit.
"""

from isda.analysis.inversion.generator_adapters import (
    LatentGenerator,
    biggan,
    conditional,
    generator_of_run,
    normalised_noise,
    unconditional,
)
from isda.analysis.inversion.inverter import PIXEL_WEIGHT, Descent, InvertedFeatures, Inverter
from isda.analysis.inversion.study import InversionStudy, choose_rows, nearest_images, study
from isda.analysis.inversion.targets import augmented_features, features_along, strength_of

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
    "strength_of",
    "study",
    "unconditional",
]

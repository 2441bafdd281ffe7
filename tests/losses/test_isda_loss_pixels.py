"""Dense prediction: labels at another resolution than features and logits, ignored pixels, and the memory of a step."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import (
    bilinear,
    bound_rows,
    class_covariances,
    jensen_tilts,
    library_tilt,
    log_sum_exp,
    maps_of,
    nearest_labels,
    normal,
    one_hot,
    rows_of,
)
from torch import nn

from isda import ISDALoss

CLASSES, DIM, STRENGTH, IGNORED = 3, 4, 0.7, 255
N, HEIGHT, WIDTH = 2, 3, 2
FINE = (7, 5)


def inputs(logit_size=(HEIGHT, WIDTH), label_size=FINE):
    features = normal(N, DIM, HEIGHT, WIDTH, seed=1) + 1
    logits = normal(N, CLASSES, *logit_size, seed=2).requires_grad_()
    weight = normal(CLASSES, DIM, seed=3).requires_grad_()
    targets = torch.randint(0, CLASSES, (N, *label_size), generator=torch.Generator().manual_seed(4))
    targets[0, :3, :2] = IGNORED
    return logits, targets, features, weight


def make(bound, **settings):
    return ISDALoss(
        CLASSES, DIM, bound=bound, ignore_index=IGNORED, dtype=torch.float64, schedule="constant", **settings
    )


def oracle(criterion, logits, targets, features, weight, align_corners=False):
    """Variances at the features, everything interpolated to the logits and then to the labels, pixel by pixel."""
    classes = nearest_labels(targets, HEIGHT, WIDTH).flatten()
    keep = [i for i, c in enumerate(classes) if int(c) != IGNORED]
    sigmas = class_covariances("full", rows_of(features)[keep], classes[keep], CLASSES)
    coarse = rows_of(bilinear(logits, HEIGHT, WIDTH, align_corners)) if logits.shape[2] != HEIGHT else rows_of(logits)
    tilts = jensen_tilts(classes[keep], CLASSES)
    if criterion.bound == "tilted":
        chosen = classes.where(classes != IGNORED, 0)
        # The library's own interpolation here, so that the search takes the same turns to the last bit.
        rows = rows_of(F.interpolate(logits.detach(), (HEIGHT, WIDTH), mode="bilinear", align_corners=align_corners))
        tilts = library_tilt(criterion, rows, chosen, weight.detach(), STRENGTH)[keep]
    augmented = bound_rows(coarse[keep], weight, sigmas, classes[keep], tilts, STRENGTH)
    added = [torch.zeros(CLASSES, dtype=torch.float64)] * len(classes)
    for i, row in zip(keep, augmented, strict=True):
        added[i] = row - coarse[i]
    added = maps_of(torch.stack(added), N, HEIGHT, WIDTH)
    height, width = targets.shape[1:]
    plain = logits if logits.shape[2:] == targets.shape[1:] else bilinear(logits, height, width, align_corners)
    fine = plain + bilinear(added, height, width, align_corners)
    # The published segmentation loss is the cross-entropy of the augmented logits; the tilted bound is F - z_y.
    aimed = plain if criterion.bound == "tilted" else fine
    losses = [
        log_sum_exp(row) - sum(q * z for q, z in zip(one_hot(int(c), CLASSES), aim, strict=True))
        for row, aim, c in zip(rows_of(fine), rows_of(aimed), targets.flatten(), strict=True)
        if int(c) != IGNORED
    ]
    return sum(losses) / len(losses)


def assert_same(loss, expected, leaves):
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)
    for ours, theirs in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("logit_size", [(HEIGHT, WIDTH), FINE], ids=["logits at features", "logits at labels"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_labels_finer_than_features_equal_the_oracle(bound, logit_size, align_corners):
    logits, targets, features, weight = inputs(logit_size)
    criterion = make(bound, align_corners=align_corners)
    loss = criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
    expected = oracle(criterion, logits, targets, features, weight, align_corners)
    assert_same(loss, expected, [logits, weight])


def test_nearest_labels_choose_the_statistics():
    logits, targets, features, weight = inputs()
    criterion = make("jensen")
    criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
    nearest = nearest_labels(targets, HEIGHT, WIDTH).flatten()
    expected = [int((nearest == c).sum()) for c in range(CLASSES)]
    assert criterion.covariance.count.tolist() == expected
    assert sum(expected) < N * HEIGHT * WIDTH  # some are ignored


def test_labels_coarser_than_features_equal_the_oracle():
    logits, targets, features, weight = inputs(label_size=(2, 1))
    targets[0, 0] = IGNORED
    criterion = make("jensen")
    loss = criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
    assert_same(loss, oracle(criterion, logits, targets, features, weight), [logits, weight])


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_pixels_at_one_resolution_equal_the_same_pixels_as_rows(bound):
    logits, targets, features, weight = inputs(label_size=(HEIGHT, WIDTH))
    maps = make(bound, reduction="none")(logits, targets, features=features, weight=weight, strength=STRENGTH)
    rows = make(bound, reduction="none")(
        rows_of(logits), targets.flatten(), features=rows_of(features), weight=weight, strength=STRENGTH
    )
    assert maps.shape == targets.shape
    assert_same(maps.sum(), rows.sum(), [logits, weight])
    torch.testing.assert_close(maps.flatten(), rows, atol=1e-12, rtol=0)


def test_distributions_per_pixel_equal_the_same_rows():
    logits, _, features, weight = inputs()
    targets = torch.softmax(3 * normal(N, CLASSES, HEIGHT, WIDTH, seed=9), 1)
    maps = make("tilted")(logits, targets, features=features, weight=weight, strength=STRENGTH)
    rows = make("tilted")(
        rows_of(logits), rows_of(targets), features=rows_of(features), weight=weight, strength=STRENGTH
    )
    assert_same(maps, rows, [logits, weight])


def test_a_sequence_of_tokens_is_a_row_of_pixels():
    logits, features = normal(2, CLASSES, 5, seed=1), normal(2, DIM, 5, seed=2)
    weight, targets = normal(CLASSES, DIM, seed=3), torch.arange(10).view(2, 5) % CLASSES
    tokens = make("jensen")(logits, targets, features=features, weight=weight, strength=STRENGTH)
    rows = make("jensen")(
        logits.mT.flatten(0, 1),
        targets.flatten(),
        features=features.mT.flatten(0, 1),
        weight=weight,
        strength=STRENGTH,
    )
    torch.testing.assert_close(tokens, rows, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_lambda_0_zero_is_the_ordinary_segmentation_baseline_to_the_bit(bound):
    logits, targets, features, weight = (t.float() if t.is_floating_point() else t for t in inputs())
    ours, theirs = (logits.detach().clone().requires_grad_() for _ in range(2))
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.0, bound=bound, ignore_index=IGNORED)
    loss = criterion(ours, targets, features=features, weight=weight)
    upsampled = F.interpolate(theirs, size=FINE, mode="bilinear", align_corners=False)
    expected = nn.CrossEntropyLoss(ignore_index=IGNORED)(upsampled, targets)
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, ours)[0], torch.autograd.grad(expected, theirs)[0])


STEP = """
    import sys

    import torch

    from isda import ISDALoss

    bound = sys.argv[1]
    torch.manual_seed(0)
    features = torch.empty(8, 512, 97, 97).normal_()
    logits = torch.empty(8, 19, 97, 97).normal_().requires_grad_()
    weight = (0.05 * torch.randn(19, 512, 1, 1)).requires_grad_()
    targets = torch.randint(0, 19, (8, 97, 97))
    targets[:, :5] = 255
    criterion = ISDALoss(19, 512, lambda_0=1.0, bound=bound, ignore_index=255, schedule="constant")

    def status(name):
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    before = status("VmRSS")
    loss = criterion(logits, targets, features=features, weight=weight)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(weight.grad).all()
    print(max(status("VmHWM"), status("VmRSS")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell the peak memory")
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_a_cityscapes_step_with_full_covariance_takes_less_than_a_gigabyte_above_its_inputs(bound):
    command = [sys.executable, "-c", textwrap.dedent(STEP), bound]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    extra = int(result.stdout)
    assert extra < 1e9, f"{extra / 1e6:.0f} MB"
    assert extra > 1e7  # the statistics alone are 20 MB: the measurement works

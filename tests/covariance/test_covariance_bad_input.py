"""Bad input raises ValueError that names the argument, and leaves the state_dict as it was, bit for bit."""

from __future__ import annotations

import pytest
import torch
from covariance_cases import (
    ALL,
    EXACT,
    ONLINE,
    A,
    C,
    assert_matrices_close,
    assert_same_state,
    expected_matrices,
    fed,
    make,
    snapshot,
    stream,
)

from isda import covariance
from isda._utils.checks import NonFiniteFeatures, largest_feature
from pretend_accelerator import on_pretend

ROWS = torch.randn(3, A, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2])


def with_bad(value: float) -> torch.Tensor:
    rows = ROWS.clone()
    rows[0, 1] = rows[2, 0] = value
    return rows


UPDATES = {
    "features of another width": (rf"^features must have shape \(N, {A}\), got \(3, {A - 1}\)", ROWS[:, 1:], LABELS),
    "features with pixels": (r"^features must have shape .* got \(3, 5, 1\)", ROWS.unsqueeze(2), LABELS),
    "integer features": (r"^features must be floating point, got torch.int64", ROWS.long(), LABELS),
    "fewer targets": (r"^targets must have shape \(3,\) .* got \(2,\)", ROWS, LABELS[:2]),
    "targets with another axis": (r"^targets must have shape \(3,\) .* got \(3, 1\)", ROWS, LABELS.unsqueeze(1)),
    "float targets": (r"^targets must hold integer class indices, got torch.float32", ROWS, LABELS.float()),
    "bool targets": (r"^targets must hold integer class indices, got torch.bool", ROWS, LABELS > 0),
    "label too large": (rf"^targets must lie in 0..{C - 1}, got {C} \(1 of 3", ROWS, torch.tensor([0, C, 1])),
    "label negative": (rf"^targets must lie in 0..{C - 1}, got -1 \(2 of 3", ROWS, torch.tensor([-1, 0, -1])),
    "NaN": (r"^features must be finite, got NaN or infinity in 2 of 3 rows", with_bad(torch.nan), LABELS),
    "infinity": (r"^features must be finite, got NaN or infinity in 2 of 3 rows", with_bad(-torch.inf), LABELS),
    "an empty batch": (r"^features must hold at least one row, got an empty batch", ROWS[:0], LABELS[:0]),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", UPDATES)
def test_bad_updates_raise_and_change_nothing(name, case):
    message, features, targets = UPDATES[case]
    model = fed(name)
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        model.update(features, targets)
    assert_same_state(model, before)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_features_that_are_not_finite_have_an_error_of_their_own(name, value):
    with pytest.raises(NonFiniteFeatures):
        make(name).update(with_bad(value), LABELS)
    with pytest.raises(ValueError, match="targets must lie in") as caught:
        make(name).update(with_bad(value), LABELS - 1)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 1e20), (torch.float32, -1e18), (torch.float64, 1e160)])
@pytest.mark.parametrize("name", ONLINE)
def test_features_whose_squares_overflow_are_refused_and_change_nothing(name, dtype, value):
    model = make(name, dtype=dtype)
    model.update(ROWS, LABELS)
    before = snapshot(model)
    message = rf"^features must be smaller than .* {dtype}, got .*e\+\d+ \(2 of 3 rows are too large\); statistics were"
    with pytest.raises(NonFiniteFeatures, match=message):
        model.update(with_bad(value).to(dtype), LABELS)
    assert_same_state(model, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ONLINE)
def test_the_largest_features_that_are_taken_leave_the_statistics_finite(name, dtype):
    model, largest = make(name, dtype=dtype), 0.99 * largest_feature(dtype)
    rows = largest * torch.tensor([-1.0, 1.0], dtype=dtype).repeat(500).unsqueeze(1).expand(-1, A)
    for _ in range(3):
        model.update(rows, torch.zeros(len(rows), dtype=torch.int64))
    variance = model.covariance(0).diagonal()
    torch.testing.assert_close(variance / largest**2, torch.ones_like(variance), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", sorted(set(ALL) - set(ONLINE)))
def test_models_that_take_no_squares_count_large_features(name):
    model = make(name)
    model.update(with_bad(1e200), LABELS)
    assert int(model.count.sum()) == 3


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mask", [torch.ones(2, dtype=torch.bool), torch.ones(3), torch.ones(3, 1, dtype=torch.bool)])
def test_bad_masks_raise_and_change_nothing(name, mask):
    model = fed(name)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"^mask must be bool of shape \(3,\)"):
        model.update(ROWS, LABELS, mask=mask)
    assert_same_state(model, before)


@pytest.mark.parametrize("name", ALL)
def test_bad_rows_outside_the_mask_do_no_harm(name):
    model, clean = fed(name), fed(name)
    clean.load_state_dict(model.state_dict())
    mask = torch.tensor([True, False, True])
    spoiled, labels = ROWS.clone(), torch.tensor([0, -100, 2])
    spoiled[1] = torch.nan
    model.update(spoiled, labels, mask=mask)
    clean.update(ROWS[mask], labels[mask])
    assert_same_state(model, snapshot(clean))


@pytest.mark.parametrize("name", ONLINE)
def test_validation_can_be_turned_off(name):
    model = fed(name)
    model.validate = False
    model.update(with_bad(torch.nan), LABELS)
    assert model.covariance(0).isnan().any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(C + 1, A), (C, A - 1), (C * A,), (1, C, A)])
def test_weights_of_another_shape_raise(name, shape):
    with pytest.raises(ValueError, match=rf"^weight must have shape \({C}, {A}\), got"):
        fed(name).margin_variance(torch.randn(shape), [0])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, C], rf"^classes must lie in 0..{C - 1}, got {C}"),
        ([-1], rf"^classes must lie in 0..{C - 1}, got -1"),
        ([0.5], r"^classes must hold integer class indices"),
        (torch.tensor([[0, 1]]), r"^classes must have one dimension"),
    ],
)
def test_bad_classes_of_margin_variance_raise(name, classes, message):
    with pytest.raises(ValueError, match=message):
        fed(name).margin_variance(torch.randn(C, A), classes)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (([C],), {}, rf"^targets must lie in 0..{C - 1}, got {C}"),
        (([-1],), {}, rf"^targets must lie in 0..{C - 1}, got -1"),
        (([0.0],), {}, r"^targets must hold integer class indices"),
        (([[0]],), {}, r"^targets must have one dimension"),
        (([0], 0), {}, r"^n must be a positive integer, got 0"),
        (([0], 1.5), {}, r"^n must be a positive integer, got 1.5"),
        (([0],), {"strength": -1.0}, r"^strength must be a finite number >= 0, got -1.0"),
        (([0],), {"strength": float("nan")}, r"^strength must be a finite number >= 0, got nan"),
        (([0],), {"features": torch.randn(2, A)}, r"^targets must have shape \(2,\)"),
        (([0],), {"features": torch.randn(1, A + 1)}, rf"^features must have shape \(N, {A}\)"),
    ],
)
def test_bad_samples_raise_before_anything_is_drawn(name, arguments, settings, message):
    model, generator = fed(name), torch.Generator().manual_seed(3)
    before, noise = snapshot(model), generator.get_state()
    with pytest.raises(ValueError, match=message):
        model.sample(*arguments, generator=generator, **settings)
    assert_same_state(model, before)
    assert torch.equal(generator.get_state(), noise)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 4), r"^num_classes must be a positive integer"),
        ((3, -1), r"^feature_dim must be a positive integer"),
    ],
)
def test_bad_sizes_raise(name, sizes, message):
    with pytest.raises(ValueError, match=message):
        covariance.create(name, *sizes)


def test_bad_settings_raise():
    for decay in (0.0, 1.0, 1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"^decay must lie strictly between 0 and 1"):
            covariance.create("full", C, A, decay=decay)
    for name, rank in (("low_rank", 0), ("low_rank", 1.5), ("learned", 0), ("learned", A + 1)):
        with pytest.raises(ValueError, match=r"^rank must be"):
            covariance.create(name, C, A, rank=rank)


def test_an_unknown_model_is_refused_with_the_closest_name():
    with pytest.raises(ValueError, match=r"^covariance must be one of full, .*did you mean 'diagonal'"):
        covariance.create("diagonall", C, A)


# -- devices that must not wait ----------------------------------------------------------------------------------------


def spoiled_stream():
    """Twenty rows, six of them bad (a large one, where squares are taken), and which are good."""
    features, targets = stream(20)
    spoiled, labels, good = features.clone(), targets.clone(), torch.ones(20, dtype=torch.bool)
    spoiled[3, 1], spoiled[7, 0], spoiled[9, 2] = torch.nan, torch.inf, 1e170
    labels[11], labels[12], labels[13] = -1, C, -100
    good[[3, 7, 9, 11, 12, 13]] = False
    return spoiled, labels, good


REPORT = r"held 3 labels out of range and [23] rows of features with NaN or infinity, or too large"


@pytest.mark.parametrize("name", ALL)
def test_on_a_device_the_first_call_reports_bad_rows_and_changes_nothing(name, accelerator):
    spoiled, labels, _ = spoiled_stream()
    with accelerator:
        model = make(name, device="pretend")
        with pytest.raises(NonFiniteFeatures, match=REPORT):
            model.update(on_pretend(spoiled), on_pretend(labels))
        assert not model.count.cpu().any()


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("when", ["eval", "state_dict", "hundredth call"])
def test_on_a_device_bad_rows_are_kept_out_and_reported_later(name, when, accelerator):
    features, targets = stream(20)
    spoiled, labels, good = spoiled_stream()
    clean = make(name)
    for batch in ((features, targets), (spoiled[good], targets[good])):
        clean.update(*batch)
    with accelerator:
        model = make(name, device="pretend")
        model.update(on_pretend(features), on_pretend(targets))
        model.update(on_pretend(spoiled), on_pretend(labels))
        assert torch.equal(model.count.cpu(), clean.count)
        torch.testing.assert_close(model.scatter.cpu(), clean.scatter, rtol=1e-12, atol=1e-12)
        if when == "hundredth call":
            for _ in range(98):
                model.update(on_pretend(features[:2]), on_pretend(targets[:2]))
        look = {"eval": model.eval, "state_dict": model.state_dict}.get(
            when, lambda: model.update(on_pretend(features), on_pretend(targets))
        )
        with pytest.raises(NonFiniteFeatures, match=REPORT.replace("[23]", "3")):
            look()
        model.state_dict()  # reported once


@pytest.mark.parametrize("name", EXACT)
def test_on_a_device_masked_rows_are_left_out_and_not_reported(name, accelerator):
    seen = []
    with accelerator:
        model = make(name, device="pretend")
        for seed in range(4):
            features, targets = stream(11, seed=seed, mean=50.0)
            mask = torch.rand(11, generator=torch.Generator().manual_seed(seed)) < 0.7
            seen.append((features[mask], targets[mask]))
            features[~mask], targets[~mask] = torch.nan, -100
            model.update(on_pretend(features), on_pretend(targets), mask=on_pretend(mask))
        model.eval()
        home = make(name)
        home.load_state_dict({key: value.cpu() for key, value in model.state_dict().items()})
    features, targets = torch.cat([f for f, _ in seen]), torch.cat([t for _, t in seen])
    assert_matrices_close(home, expected_matrices(name, features, targets), 1e-10)


def test_on_a_device_decay_forgets_only_classes_with_good_rows(accelerator):
    features, targets = stream(12)
    clean = make("full", decay=0.5)
    clean.update(features, targets)
    spoiled = features[:4].clone()
    spoiled[targets[:4] == targets[0]] = torch.nan
    good = torch.isfinite(spoiled).all(1)
    assert good.any()
    clean.update(features[:4][good], targets[:4][good])
    with accelerator:
        model = make("full", decay=0.5, device="pretend")
        model.update(on_pretend(features), on_pretend(targets))
        model.update(on_pretend(spoiled), on_pretend(targets[:4]))
        torch.testing.assert_close(model.effective.cpu(), clean.effective, rtol=0, atol=1e-12)
        torch.testing.assert_close(model.scatter.cpu(), clean.scatter, rtol=0, atol=1e-12)

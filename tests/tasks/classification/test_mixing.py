"""Mixup, CutMix and manifold mixup against loops over samples and pixels; without mixing they are the method below."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from isda.lab.methods.mixup import ManifoldMixBatch, draw_box, draw_share
from isda.lab.methods.registry import METHODS, find_method
from isda.lab.tasks.classification.settings import recipe_for
from isda.lab.tasks.common.data import ImageBatch
from small_runs import small_config, small_job

MIXING = ("mixup", "cutmix", "manifold-mixup")
SETTINGS = {"precision": "float64", "network": "resnet-8", "width": 0.1, "augment": "none"}


def method_and_job(text, **changes):
    job = small_job(method=text, **(SETTINGS | changes))
    return job.method, job


def shares_of(batch):
    """By hand: each label's one-hot."""
    return torch.eye(10, dtype=torch.float64)[batch.targets]


def mixed_by_hand(values, partners, share):
    return torch.stack([share * values[i] + (1 - share) * values[j] for i, j in enumerate(partners.tolist())])


# -- what is drawn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_shares_follow_the_beta_distribution(alpha):
    shares = torch.tensor([draw_share(alpha) for _ in range(1000)], dtype=torch.float64)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 4 * (variance / 1000) ** 0.5
    assert shares.var() == pytest.approx(variance, rel=0.2)


def test_boxes_have_their_share_where_nothing_is_cut_off_and_stay_inside():
    whole = 0
    for share in (0.0, 0.25, 0.6, 0.99):
        for _ in range(50):
            box = draw_box(20, 12, share)
            assert 0 <= box.top <= box.bottom <= 20
            assert 0 <= box.left <= box.right <= 12
            sides = [2 * (int(length * (1 - share) ** 0.5) // 2) for length in (20, 12)]
            assert box.area <= sides[0] * sides[1]
            whole += box.area == sides[0] * sides[1]
    assert whole > 20


def test_a_step_draws_from_the_seeded_generator_and_nothing_else():
    method, job = method_and_job("cutmix:probability=1")
    batch = next(job.batches(0))
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(method.prepare(batch).images)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


# -- what is mixed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixup", "mixup+isda"])
def test_mixup_is_the_loop(name):
    method, job = method_and_job(name)
    batch = next(job.batches(0))
    torch.manual_seed(3)
    mixed = method.prepare(batch)
    torch.manual_seed(3)
    share, partners = draw_share(1.0), torch.randperm(20)
    assert 0.02 < share < 0.98
    torch.testing.assert_close(mixed.images, mixed_by_hand(batch.images, partners, share))
    torch.testing.assert_close(mixed.targets, mixed_by_hand(shares_of(batch), partners, share))
    assert torch.equal(mixed.indices, batch.indices)


def test_cutmix_is_the_loop_over_pixels_and_labels_count_by_area():
    method, job = method_and_job("cutmix:probability=1")
    batch = next(job.batches(0))
    height, width = batch.images.shape[2:]
    # Every pixel of every image says whose it is.
    told = torch.arange(20, dtype=torch.float64).view(-1, 1, 1, 1).expand(20, 1, height, width)
    areas = set()
    for seed in range(30):
        torch.manual_seed(seed)
        mixed = method.prepare(replace(batch, images=told))
        if mixed.targets.ndim == 1:  # the box was empty
            assert torch.equal(mixed.images, told)
            continue
        for row in range(20):
            owners, counts = mixed.images[row].unique(return_counts=True)
            expected = torch.zeros(10, dtype=torch.float64)
            for owner, count in zip(owners.long().tolist(), counts.tolist(), strict=True):
                expected[batch.targets[owner]] += count / (height * width)
            torch.testing.assert_close(mixed.targets[row], expected)
        taken = (mixed.images != told).any(0)[0]
        rows, columns = taken.any(1), taken.any(0)
        assert torch.equal(taken, rows.unsqueeze(1) & columns)  # a box
        areas.add(int(taken.sum()))
    assert len(areas) > 5


def test_cutmix_leaves_batches_alone_by_its_probability():
    method, job = method_and_job("cutmix")
    batch = next(job.batches(0))
    mixed = sum(method.prepare(batch) is not batch for _ in range(200))
    assert 60 < mixed < 140


def test_manifold_mixup_mixes_behind_the_layer_that_was_drawn():
    method, job = method_and_job("manifold-mixup:layers=5")
    batch, network = next(job.batches(0)), job.network
    places = {"input": None, "stage1": network.body.stage1, "stage2": network.body.stage2}
    places |= {"stage3": network.body.stage3, "features": network.body}
    seen = set()
    for seed in range(25):
        torch.manual_seed(seed)
        mixed = method.prepare(batch)
        torch.manual_seed(seed)
        share, partners = draw_share(2.0), torch.randperm(20)
        torch.testing.assert_close(mixed.targets, mixed_by_hand(shares_of(batch), partners, share))
        layer = mixed.layer if isinstance(mixed, ManifoldMixBatch) else None
        (name,) = (name for name, place in places.items() if place is layer)
        seen.add(name)
        logits = method(network, mixed).outputs
        # By hand: the body piece by piece.
        values = batch.images
        if name == "input":
            values = mixed_by_hand(values, partners, share)
        for part, module in network.body.named_children():
            values = module(values)
            if part == name:
                values = mixed_by_hand(values, partners, share)
        if name == "features":
            values = mixed_by_hand(values, partners, share)
        torch.testing.assert_close(logits, network.classifier(values))
    assert seen == set(places)
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("network", "layers", "expected"),
    [("resnet-8", "", 3), ("fast-cnn", "", 3), ("fast-cnn", ":layers=1", 1), ("fast-cnn", ":layers=5", 5)],
)
def test_the_published_layers_are_the_input_and_two_stages(network, layers, expected):
    method, _ = method_and_job(f"manifold-mixup{layers}", network=network)
    assert 1 + len(method._inner) == expected


def test_features_that_are_mixed_are_those_that_isda_learns_from():
    method, job = method_and_job("manifold-mixup+isda:layers=5")
    batch, network = next(job.batches(0)), job.network
    seed = next(seed for seed in range(100) if drawn_layer(method, batch, seed) is network.body)
    torch.manual_seed(seed)
    mixed = method.prepare(batch)
    method(network, mixed)
    features = mixed_by_hand(network.body(batch.images), mixed.mixture.partners, mixed.mixture.share)
    covariance, classes = method.criterion.covariance, mixed.targets.argmax(1)
    for label in classes.unique().tolist():
        torch.testing.assert_close(covariance.mean[label], features[classes == label].mean(0))
    assert torch.equal(covariance.count, classes.bincount(minlength=10))


def drawn_layer(method, batch, seed):
    torch.manual_seed(seed)
    return getattr(method.prepare(batch), "layer", None)


# -- the loss ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixup", "cutmix:probability=1", "manifold-mixup"])
def test_the_loss_is_the_cross_entropy_of_both_labels_by_their_shares(name):
    method, job = method_and_job(name)
    batch = next(job.batches(0))
    torch.manual_seed(4)
    mixed = method.prepare(batch)
    terms, logits = method(job.network, mixed)
    assert mixed.targets.shape == (20, 10)
    expected = -(mixed.targets * F.log_softmax(logits, 1)).sum(1).mean()
    torch.testing.assert_close(terms["cross-entropy"], expected)


@pytest.mark.parametrize("name", [name + suffix for name in MIXING for suffix in ("", "+isda")])
def test_without_mixing_it_is_the_method_below_to_the_bit(name):
    base = "isda:lambda_0=2" if name.endswith("+isda") else "cross-entropy"
    written = f"{name}:alpha=0" + (",lambda_0=2" if name.endswith("+isda") else "")
    jobs = [small_job(method=text) for text in (base, written)]
    for step, batch in enumerate(jobs[0].batches(0)):
        for job in jobs:
            job.step(batch, step)
    for mine, theirs in zip(*(job.network.parameters() for job in jobs), strict=True):
        assert torch.equal(mine, theirs)
    assert jobs[0].finish_epoch(1, 5) == jobs[1].finish_epoch(1, 5)


def test_the_training_error_is_the_share_of_the_targets_that_was_missed():
    _, job = method_and_job("mixup")
    logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    targets = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.4, 0.6]])
    batch = ImageBatch(torch.empty(2, 1, 8, 8), targets, torch.arange(2))
    assert float(job.measured(logits, batch)["error"]) == pytest.approx(75 + 40)


# -- as a user writes it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixup:alpha=-1", "alpha must be a finite number >= 0, got -1.0"),
        ("cutmix+isda:alpha=inf", "alpha must be a finite number >= 0, got inf"),
        ("cutmix:probability=1.5", "probability must lie in 0..1, got 1.5"),
        (
            "manifold-mixup:layers=9",
            r"layers must be from 1 to 5 \(input, block1, block2, block3, features\), got 9",
        ),
        ("manifold-mixup:layers=0", "layers must be from 1 to 5"),
        ("sam:rho=-0.1", "rho must be a finite number >= 0, got -0.1"),
        ("mixup:lambda_0=1", "option of method mixup must be one of .*, got 'lambda_0'"),
        ("mixup+isda:bound=tight", "bound must be one of jensen, tilted, got 'tight'"),
        ("mixup:label_smoothing=2", "label_smoothing must lie in 0..1, got 2.0"),
        ("mixup+isa", r"method must be one of .*, got 'mixup\+isa'; did you mean 'mixup\+isda'"),
        ("explicit:samples=-1", "samples must be an integer >= 0, got -1"),
        ("explicit:bound=tilted", "option of method explicit must be one of .*, got 'bound'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(text, message):
    with pytest.raises(ValueError, match=message):
        small_config(method=text)


def test_manifold_mixup_is_not_for_compiled_networks():
    with pytest.raises(ValueError, match="method manifold-mixup does not support --compile"):
        small_config(method="manifold-mixup", compile=True)


def test_options_are_those_of_both_with_the_recipes_defaults():
    recipe = recipe_for("resnet-20")
    assert find_method("mixup").resolve("alpha=0.3", recipe) == {"alpha": 0.3}
    expected = {"lambda_0": 2.0, "covariance": "full", "bound": "jensen", "decay": 0.9, "rho": 0.1}
    assert find_method("sam+isda").resolve("rho=0.1,decay=0.9", recipe, {"lambda_0": 2.0}) == expected
    assert find_method("explicit").resolve("samples=3", recipe) == {
        "lambda_0": 0.5,
        "covariance": "full",
        "samples": 3,
    }


def test_what_is_tuned_by_default_are_options_of_the_method():
    recipe = recipe_for("resnet-20")
    grids = {name: method.grid_for(recipe) for name, method in METHODS.items()}
    for name, grid in grids.items():
        options = METHODS[name].Options.__dataclass_fields__
        assert all(key in options and len(values) > 1 for key, values in grid.items()), name
    assert [name for name, grid in grids.items() if not grid] == ["cross-entropy"]
    assert all(grid.keys() == {"lambda_0"} for name, grid in grids.items() if name.endswith("+isda"))

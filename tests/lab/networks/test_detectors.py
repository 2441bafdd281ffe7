"""Detectors against torchvision's, against themselves image by image, and against a cascade written out."""

from __future__ import annotations

import copy

import pytest
import torch
from small_detectors import SMALL, drawn, small
from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, batched_nms, box_iou, clip_boxes_to_image

from isda.lab.networks import detection
from isda.lab.networks.detection.proposals import KeyedSampler


def torchvisions(name: str) -> tuple[detection.Detector, nn.Module]:
    """Our detector and torchvision's with the same weights."""
    ours = small(name)
    levels, strides = ours.backbone.names, ours.backbone.strides
    settings = {
        "rpn_anchor_generator": AnchorGenerator(tuple((8 * s,) for s in strides), ((0.5, 1.0, 2.0),) * len(strides)),
        "box_roi_pool": MultiScaleRoIAlign(levels, 7, 2),
        "box_head": copy.deepcopy(ours.roi_heads.box_head),
        "box_predictor": copy.deepcopy(ours.roi_heads.box_predictor),
        "min_size": 64,
        "max_size": 64,
        "rpn_pre_nms_top_n_train": 80,
        "rpn_pre_nms_top_n_test": 40,
        "rpn_post_nms_top_n_train": 40,
        "rpn_post_nms_top_n_test": 40,
        "rpn_batch_size_per_image": 32,
        "box_batch_size_per_image": 24,
        "box_score_thresh": 0.01,
        "box_detections_per_img": 10,
    }
    if name == "mask-rcnn":
        settings |= {
            "mask_roi_pool": MultiScaleRoIAlign(levels, 14, 2),
            "mask_head": MaskRCNNHeads(8, (8,) * 4, 1),
            "mask_predictor": MaskRCNNPredictor(8, 8, 5),
        }
    kind = MaskRCNN if name == "mask-rcnn" else FasterRCNN
    theirs = kind(copy.deepcopy(ours.backbone), **settings).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("name", ["faster-rcnn", "mask-rcnn"])
def test_of_one_image_losses_and_gradients_are_torchvisions(name):
    ours, theirs = torchvisions(name)
    theirs.train()
    theirs.backbone.eval()
    ours.train()
    images, targets = drawn(1)
    plain = [{key: value for key, value in target.items() if key != "key"} for target in targets]
    gradients = []
    for detector in (ours, theirs):
        torch.manual_seed(0)
        losses = detector(images, plain)
        sum(losses.values()).backward()
        gradients.append((losses, {name: p.grad for name, p in detector.named_parameters()}))
    (mine, my_gradients), (others, their_gradients) = gradients
    # Without keys both draw from the global generator; torchvision has the labels of anchors in float32.
    assert mine.keys() == others.keys()
    for term, loss in mine.items():
        torch.testing.assert_close(loss, others[term], rtol=1e-6, atol=1e-9, check_dtype=False)
    for parameter, gradient in my_gradients.items():
        torch.testing.assert_close(gradient, their_gradients[parameter], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["faster-rcnn", "mask-rcnn"])
def test_detections_are_torchvisions(name):
    ours, theirs = torchvisions(name)
    images, _ = drawn(3)
    with torch.no_grad():
        for mine, others in zip(ours.eval()(images), theirs.eval()(images), strict=True):
            assert mine.keys() == others.keys()
            assert len(mine["boxes"]) == 10
            for key, value in mine.items():
                torch.testing.assert_close(value, others[key])


@pytest.mark.parametrize("name", detection.names())
def test_losses_of_a_batch_are_the_means_over_its_images(name):
    detector = small(name).train()
    images, targets = drawn(3)
    together = detector(images, targets)
    alone = [detector([image], [target]) for image, target in zip(images, targets, strict=True)]
    for term, loss in together.items():
        expected = torch.stack([losses[term] for losses in alone]).mean()
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", detection.names())
def test_images_of_several_sizes_do_not_depend_on_who_shares_their_process(name):
    detector = small(name, max_size=100).train()
    images, targets = drawn(1)
    wide, wide_targets = drawn(1, size=64, seed=5)
    image, target = torch.cat([wide[0], wide[0][:, :, :30]], 2), dict(wide_targets[0])
    target["masks"] = nn.functional.pad(target["masks"], (0, 30))
    sizes = [(64, 64), (64, 94)]
    pairs = [(images[0], targets[0]), (image, target)]
    pairs = [(picture, one | {"batch_sizes": sizes}) for picture, one in pairs]
    together = detector([picture for picture, _ in pairs], [one for _, one in pairs])
    alone = [detector([picture], [one]) for picture, one in pairs]
    for term, loss in together.items():
        expected = torch.stack([losses[term] for losses in alone]).mean()
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", detection.names())
def test_every_term_moves_what_it_should(name):
    detector = small(name).train()
    images, targets = drawn(2)
    losses = detector(images, targets)
    moved: dict[str, set[str]] = {}
    for term, loss in losses.items():
        gradients = torch.autograd.grad(loss, list(detector.parameters()), retain_graph=True, allow_unused=True)
        names = [name for name, _ in detector.named_parameters()]
        moved[term] = {n for n, g in zip(names, gradients, strict=True) if g is not None and g.abs().sum() > 0}
        assert any(name.startswith("backbone.body") for name in moved[term]), term
        assert any(
            name.startswith("rpn" if "rpn" in term or "objectness" in term else "roi_heads") for name in moved[term]
        )
    assert set().union(*moved.values()) == {name for name, _ in detector.named_parameters()}


def test_cascade_detections_written_out():
    detector = small("cascade-rcnn").eval()
    images, _ = drawn(1)
    heads = detector.roi_heads
    with torch.no_grad():
        found = detector(images)[0]
        batch, _ = detector.transform(images)
        features = detector.backbone(batch.tensors)
        proposals, _ = detector.rpn(batch, features)
        boxes, scores = proposals[0], []
        for stage, weights in zip(heads.stages, ((10, 5), (20, 10), (30, 15)), strict=True):
            pooled = heads.box_roi_pool(features, [boxes], batch.image_sizes)
            hidden = stage.head.fc7(stage.head.fc6(pooled.flatten(1)).relu()).relu()
            scores.append(stage.cls_score(hidden).softmax(1))
            dx, dy, dw, dh = stage.bbox_pred(hidden).T
            w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
            x, y = boxes[:, 0] + w / 2 + dx / weights[0] * w, boxes[:, 1] + h / 2 + dy / weights[0] * h
            w, h = w * (dw / weights[1]).exp(), h * (dh / weights[1]).exp()
            boxes = clip_boxes_to_image(torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1), (64, 64))
        mean = sum(scores) / 3
        rows = [
            (float(mean[i, c]), c, boxes[i])
            for i in range(len(boxes))
            for c in range(1, 5)
            if mean[i, c] > 0.01 and (boxes[i, 2:] - boxes[i, :2]).min() >= 1e-2
        ]
    all_boxes, all_scores = torch.stack([box for *_, box in rows]), torch.tensor([score for score, *_ in rows])
    labels = torch.tensor([label for _, label, _ in rows])
    kept = batched_nms(all_boxes, all_scores.double(), labels, 0.5)[:10]
    torch.testing.assert_close(found["boxes"], all_boxes[kept])
    assert torch.equal(found["labels"], labels[kept])
    torch.testing.assert_close(found["scores"], all_scores[kept].double(), rtol=1e-6, atol=1e-6)


def test_cascade_stages_ask_for_more_and_more_overlap():
    detector = small("cascade-rcnn")
    _, targets = drawn(1)
    truth = targets[0]["boxes"]
    # Boxes that are moved by growing parts of their width overlap less and less.
    widths = truth[:1, 2:3] - truth[:1, :1]
    moved = torch.cat([truth[:1] + widths * shift * truth.new_tensor([1, 0, 1, 0]) for shift in (0.1, 0.22, 0.3, 0.6)])
    overlaps = box_iou(truth[:1], moved)[0]
    for stage, iou in zip(detector.roi_heads.stages, (0.5, 0.6, 0.7), strict=True):
        stage.sampler.batch_size_per_image = 1000
        stage.sampler.positive_fraction = 1.0
        one = stage.sample([moved], [targets[0] | {"boxes": truth[:1], "labels": targets[0]["labels"][:1]}])[0]
        expected = torch.where(torch.cat([overlaps, torch.ones(1)]) >= iou, targets[0]["labels"][0], 0)
        assert torch.equal(one.labels, expected)
        assert one.ground_truth.tolist() == [False] * 4 + [True]
    assert 0.6 < overlaps[1] < 0.7 > overlaps[2] > 0.5


def test_an_image_without_objects_is_background():
    for name in detection.names():
        detector = small(name).train()
        images, targets = drawn(2)
        targets[0] |= {
            "boxes": torch.zeros(0, 4, dtype=torch.float64),
            "labels": torch.zeros(0, dtype=torch.int64),
            "masks": torch.zeros(0, 64, 64, dtype=torch.uint8),
        }
        losses = detector(images, targets)
        assert all(loss.isfinite() for loss in losses.values())


def test_what_is_frozen_stays():
    detector = small("faster-rcnn", frozen_stages=1).train()
    before = copy.deepcopy(detector.backbone.body.state_dict())
    images, targets = drawn(2)
    sum(detector(images, targets).values()).backward()
    torch.optim.SGD([p for p in detector.parameters() if p.requires_grad], lr=0.1).step()
    after = detector.backbone.body.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any("running" in name or name.startswith(("stem.", "block1.")) for name in changed)
    assert any(name.startswith("block2.") for name in changed)
    assert any(name.startswith("block3.") for name in changed)


def test_batch_norm_is_trained_where_it_is_asked_for():
    detector = small("faster-rcnn", freeze_batch_norm=False).train()
    before = copy.deepcopy(detector.backbone.body.state_dict())
    images, targets = drawn(2)
    detector(images, targets)
    after = detector.backbone.body.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if "running" in name or "num_batches" in name
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "faster-rcn"}, "network must be one of .* did you mean 'faster-rcnn'"),
        ({"backbone": "resnet-5"}, "unknown network 'resnet-5'"),
        ({"backbone": "timm:resnet5"}, "timm has no model 'resnet5'"),
        ({"backbone": "timm:vit_tiny_patch16_224", "backbone_options": {"bogus": 1}}, "cannot be a backbone"),
        ({"backbone_options": {"in_channels": 1}}, "a backbone must make maps of colour images"),
        ({"min_size": 0}, "min_size must be an integer"),
        ({"max_size": 32}, "max_size must be at least min_size=64, got 32"),
        ({"anchor_scale": 0.0}, "anchor_scale must be positive"),
        ({"frozen_stages": 4}, "frozen_stages must be from 0 to 3, got 4"),
    ],
)
def test_bad_arguments(changes, sentence):
    settings = SMALL | changes
    with pytest.raises(ValueError, match=sentence):
        detection.create(settings.pop("name", "faster-rcnn"), 4, **settings)


LABELS = torch.tensor([1, 0, 2, 0, 0, -1, 3, 0, 1, 0, 0])


def sampled(keys, labels, purpose=1):
    sampler = KeyedSampler(6, 0.5, purpose)
    sampler.keys = keys
    return [one + 2 * two for one, two in zip(*sampler(labels), strict=True)]


def test_few_positives_leave_room_for_negatives_and_few_candidates_are_all_taken():
    (one,) = sampled([3], [torch.tensor([1, 0, 0, 0, 0, 0, 0, 0])])
    assert ((one == 1).sum(), (one == 2).sum()) == (1, 5)
    (one,) = sampled([3], [torch.tensor([1, 0, -1])])
    assert one.tolist() == [1, 2, 0]


def test_what_is_drawn_for_an_image_follows_from_its_key_alone():
    many = torch.cat([LABELS] * 5)
    alone, together = sampled([5], [many])[0], sampled([4, 5], [LABELS, many])[1]
    assert torch.equal(alone, together)
    assert not torch.equal(alone, sampled([6], [many])[0])
    assert not torch.equal(alone, sampled([5], [many], purpose=2)[0])


def test_every_candidate_is_as_likely():
    counts = sum((sampled([key], [LABELS])[0] > 0).float() for key in range(1000))
    positive, negative = counts[LABELS > 0], counts[LABELS == 0]
    torch.testing.assert_close(positive, torch.full_like(positive, 1000 * 3 / 4), rtol=0.06, atol=0)
    torch.testing.assert_close(negative, torch.full_like(negative, 1000 * 3 / 6), rtol=0.1, atol=0)

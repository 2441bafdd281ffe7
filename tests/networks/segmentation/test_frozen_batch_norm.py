"""Frozen batch normalisation stays as it is, and changes nothing else about a network."""

import copy

import torch
from torch import nn

from isda.lab.networks import segmentation
from isda.lab.networks.segmentation.backbone import FrozenBatchNorm2d


def create():
    torch.manual_seed(0)
    network = segmentation.create("pspnet-resnet-18", 4, width=0.125, dropout=0.0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    return network


def test_training_uses_and_keeps_the_running_figures():
    images = torch.randn(2, 3, 24, 24)
    expected = create().eval()(images)
    network = segmentation.freeze_batch_norm(create()).train()
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    torch.testing.assert_close(network(images), expected)
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())


def test_the_rest_of_the_network_trains_as_before():
    network = segmentation.freeze_batch_norm(create()).train()
    modes = {type(module): module.training for module in network.modules()}
    assert modes.pop(FrozenBatchNorm2d) is False
    assert nn.BatchNorm2d not in modes
    assert all(modes.values())
    network(torch.randn(2, 3, 24, 24)).square().mean().backward()
    assert network.head.fuse[0][1].weight.grad.any()


def test_parameters_and_names_are_the_same():
    network = create()
    parameters, names = list(network.parameters()), list(network.state_dict())
    segmentation.freeze_batch_norm(network)
    assert all(one is other for one, other in zip(network.parameters(), parameters, strict=True))
    assert list(network.state_dict()) == names
    create().load_state_dict(network.state_dict())


def test_a_copy_is_frozen_by_itself():
    network = segmentation.freeze_batch_norm(create())
    other = copy.deepcopy(network).train()
    other.head.fuse[0][1].running_mean += 1
    assert not any(module.training for module in other.modules() if isinstance(module, nn.BatchNorm2d))
    assert not torch.equal(other.head.fuse[0][1].running_mean, network.head.fuse[0][1].running_mean)


def test_synchronised_batch_norm_can_be_frozen_and_twice_is_once():
    network = nn.SyncBatchNorm.convert_sync_batchnorm(create())
    segmentation.freeze_batch_norm(segmentation.freeze_batch_norm(network)).train()
    assert network(torch.randn(1, 3, 24, 24)).shape == (1, 4, 24, 24)

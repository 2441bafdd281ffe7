"""What the integrations share: the logits that an evaluation of lambda_0="auto" keeps."""

import pytest
import torch

from isda import ISDALoss
from isda.integrations.common import HeldOutLogits


class Received(ISDALoss):
    """The logits and labels that it is matched to."""

    def match(self, logits, targets):
        self.received = logits, targets
        return 0.0


@pytest.mark.parametrize(("batch", "batches", "step"), [(100, 7, 1), (1000, 33, 4), (20_000, 2, 4)])
def test_a_large_evaluation_keeps_evenly_spaced_rows(batch, batches, step):
    criterion = Received(3, 8, "auto")
    held_out = HeldOutLogits.of(criterion)
    numbers = torch.arange(batch * batches)
    for part in numbers.split(batch):
        held_out.add(part.float().unsqueeze(1).expand(-1, 3), part % 3)
    held_out.match()
    logits, labels = criterion.received
    assert len(logits) <= 16_384
    assert torch.equal(logits[:, 0].long(), numbers[::step])
    assert torch.equal(labels, numbers[::step] % 3)


def test_ignored_labels_are_not_kept_and_an_evaluation_without_labels_sets_nothing():
    criterion = Received(3, 8, "auto")
    held_out = HeldOutLogits.of(criterion)
    held_out.add(torch.randn(4, 3), torch.full((4,), -100))
    held_out.match()
    assert not hasattr(criterion, "received")
    held_out.add(torch.randn(4, 3), torch.tensor([-100, 2, 1, -100]))
    held_out.clear()
    held_out.add(torch.randn(4, 3), torch.tensor([-100, 0, 1, -100]))
    held_out.match()
    assert criterion.received[1].tolist() == [0, 1]
    with pytest.raises(ValueError, match="class indices, got distributions"):
        held_out.add(torch.randn(4, 3), torch.rand(4, 3))


def test_a_number_needs_no_evaluation():
    assert HeldOutLogits.of(ISDALoss(3, 8, 0.5, 10)) is None

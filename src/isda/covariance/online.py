"""Covariances estimated online from a stream of features: counting, forgetting, merging, many processes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from isda._utils import checks, distributed
from isda._utils.devices import READ_EVERY, HostMirror, in_graph, on_host
from isda.covariance.base import CovarianceModel, dense, peaks, statistics_dtype, without_autocast
from isda.functional.grouping import Groups, chunks, frozen, group_rows, rows_per_chunk
from isda.functional.moments import absorb_means, absorb_means_on_device
from isda.functional.patches import Patches


class OnlineCovariance(CovarianceModel, ABC):
    """Base of the models that learn Sigma_c from the features they see (paper eqs. (1) to (3)).

    It keeps counts and means; a model adds a buffer ``scatter``, ``absorb``, which adds to it, and ``product``.

    Args:
        num_classes: C.
        feature_dim: A.
        decay: forget old features: every update multiplies what was known of a class that occurs in it by this
            factor. None, as in the paper, never forgets.
        sync: share updates between the processes of torch.distributed when it is running.
        process_group: the processes that share them; None for all.
        device: where the statistics live.
        dtype: their type; anything below float32 is raised to float32.
    """

    origin: Tensor
    offset: Tensor
    effective: Tensor | None
    not_negative: tuple[str, ...] = ("count", "effective")

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        decay: float | None = None,
        sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, feature_dim, device=device)
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"decay must lie strictly between 0 and 1 (or be None: never forget), got {decay!r}")
        self.decay, self.sync, self.process_group = decay, sync, process_group
        shape, dtype = (self.num_means, self.feature_dim), statistics_dtype(dtype)
        self.register_buffer("origin", torch.zeros(shape, dtype=dtype, device=device))
        self.register_buffer("offset", torch.zeros(shape, dtype=dtype, device=device))
        effective = None if decay is None else torch.zeros(self.num_means, dtype=dtype, device=device)
        self.register_buffer("effective", effective)
        # Off the CPU: what an update has computed anyway, and what the host has learnt at the last look.
        self._known_scale: HostMirror[Tensor] = HostMirror()
        self._all_seen, self._updates = False, 0

    # -- what a model defines ----------------------------------------------------------------------------------------

    scatter: Tensor
    """(G, ...) what a model keeps of the outer products of the centred features, a sum over them."""

    @property
    def num_means(self) -> int:
        """How many means features are centred by: one per matrix, or one per class."""
        return self.num_matrices

    @abstractmethod
    def absorb(self, rows: Tensor, groups: Groups) -> None:
        """Add what is kept of z z' to the scatter of ``groups.labels[i]``, for the rows z_i (N, A).

        The labels are those of the means, which are the matrices' unless a model overrides ``num_means``.
        """

    def _scale(self, factors: Tensor) -> None:
        """Multiply the scatter of every matrix by its factor (G,)."""
        self.scatter *= factors.view(-1, *[1] * (self.scatter.ndim - 1))

    def _merge_scatter(self, other: CovarianceModel, between: Tensor) -> None:
        """Add the scatter of ``other`` and the outer product of each row of ``between`` (G, A)."""
        self.scatter += cast(OnlineCovariance, other).scatter
        everything = torch.arange(self.num_means, device=between.device)
        self.absorb(between, group_rows(everything, self.num_means))

    def _exchange_size(self) -> int:
        """Numbers a process sends when it exchanges statistics instead of features."""
        return sum(buffer.numel() for buffer in self.buffers())

    # -- the state ---------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the statistics."""
        return self.offset.dtype

    def weight_of(self, means: Tensor) -> Tensor:
        """(K,) effective number of features behind each mean; the counts (int64) unless ``decay`` is set."""
        return self._seen().index_select(0, means)

    @property
    def scale(self) -> Tensor:
        """(G,) factors 1/n that turn scatters into covariances; any number will do for a scatter of zero."""
        if on_host(self.count):
            return torch.from_numpy(1 / np.maximum(self._seen_by_matrix().numpy(), 1)).to(self.dtype)
        if in_graph() or self._recorded:
            return frozen(1 / self._seen_by_matrix().clamp_min(1).to(self.dtype))
        share = self._known_scale.read(self.count)
        if share is None or share.dtype != self.dtype:  # .double() leaves the counts as they are
            share = torch.ones((), dtype=self.dtype) / self._seen_by_matrix().clamp_min(1)
            self._known_scale.write(self.count, share)
        return share

    def scale_of(self, matrices: Tensor) -> Tensor:
        """(K,) the factors of the chosen matrices."""
        if on_host(self.count):
            weights = self._seen_by_matrix().index_select(0, matrices)
            return torch.from_numpy(1 / np.maximum(weights.numpy(), 1)).to(self.dtype)
        return self.scale.index_select(0, matrices)

    @property
    def mean(self) -> Tensor:
        """(C, A) running mean; the overall mean for every class where one matrix serves all."""
        return (self.origin + self.offset).expand(self.num_classes, -1)

    def classes_below(self, samples: int) -> int:
        """How many classes have a covariance of their own from fewer features than this; reads the counts."""
        return int((self.count < samples).sum()) if self.num_matrices == self.num_classes else 0

    @torch.no_grad()
    def reset(self) -> None:
        """Forget everything."""
        for buffer in self.buffers():
            buffer.zero_()
        self._all_seen, self._updates = False, 0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._all_seen, self._updates = False, 0

    def __deepcopy__(self, memo: dict[int, Any]) -> OnlineCovariance:
        """Copy the statistics and share the process group, which cannot be copied."""
        memo[id(self.process_group)] = self.process_group
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    # -- learning ----------------------------------------------------------------------------------------------------

    @without_autocast
    @torch.no_grad()
    def update(
        self, features: Tensor | Patches, targets: Tensor, *, mask: Tensor | None = None, groups: Groups | None = None
    ) -> None:
        """Absorb features (N, A) of the classes ``targets`` (N,); rows where ``mask`` is False are left out.

        ``groups`` are the targets grouped by class, from a caller who has checked shapes, types and labels by then.
        With several processes every one of them calls this with its own rows, and all end with the statistics of the
        concatenated batch. Bad rows raise ValueError and change nothing (see isda._utils.checks for what a GPU does).
        """
        together = self._world_size() > 1
        with self.reporting_failure():
            if groups is None:
                self._check_rows(features, targets, mask)
                targets = targets.long()
            features = features.detach()
            if features.dtype != self.dtype:
                features = features.to(self.dtype)
            if together and mask is not None:
                features, targets = features[mask], targets[mask]
        if together:
            self._update_together(features, targets)
            if self.validate and not len(features):
                self._late_errors.warn_of_empty()
        elif on_host(targets):
            if mask is not None:
                features, targets, groups = features[mask], targets[mask], None
            error = self._first_error(features, None if groups is not None else targets)
            if error is not None:
                raise error
            if len(features):
                self._learn(features, targets, None, groups)
            elif self.validate:
                self._late_errors.warn_of_empty()
        else:
            labels = targets.clamp(0, self.num_classes - 1) if groups is None else groups.labels
            if self.validate:
                below = checks.largest_feature(self.dtype)
                mask = self._valid_rows(peaks(features), targets, labels, mask, below)
            self._learn(features, labels, mask, groups)

    @property
    def takes_patches(self) -> bool:
        """Whether ``update`` takes Patches as they are; an update defined elsewhere gets a tensor."""
        return type(self).update is OnlineCovariance.update

    def _first_error(self, features: Tensor | Patches, targets: Tensor | None) -> ValueError | None:
        if not self.validate:
            return None
        message = None if targets is None else checks.label_error(targets, self.num_classes)
        if message is not None:
            return ValueError(message)
        return checks.finite_error(peaks(features), checks.largest_feature(self.dtype))

    def _update_together(self, features: Tensor | Patches, targets: Tensor) -> None:
        """Exchange features or statistics, whichever is smaller, and learn from those of every process."""
        with self.reporting_failure():
            error = self._first_error(features, targets)
        sizes = self._exchange_errors(len(features), error)
        if max(sizes) == 0:
            return
        if max(sizes) * self.feature_dim <= self._exchange_size():
            everything = distributed.gather_rows(dense(features), sizes, self.process_group)
            labels = distributed.gather_rows(targets, sizes, self.process_group)
            self._learn(everything, labels, None)
        else:
            self._learn_from_statistics(features, targets)

    def _learn_from_statistics(self, features: Tensor | Patches, targets: Tensor) -> None:
        local, theirs = self._like(), self._like()
        if len(features):
            local._learn(features, targets, None)
        if self.decay is not None:
            seen = local.weight_of(torch.arange(self.num_means, device=self.offset.device))
            dist.all_reduce(seen, group=self.process_group)
            self._forget(seen > 0)
        for rank in range(self._world_size()):
            for name, buffer in theirs.named_buffers():
                buffer.copy_(local.get_buffer(name))
                distributed.broadcast_from(buffer, rank, self.process_group)
            self.merge(theirs)

    def _like(self) -> OnlineCovariance:
        """An empty model of the same shape and settings for one batch of one process."""
        twin = copy.deepcopy(self)
        twin.reset()
        return twin

    def _learn(
        self, features: Tensor | Patches, targets: Tensor, mask: Tensor | None, groups: Groups | None = None
    ) -> None:
        if self.decay is not None:
            index = self._mean_index(targets)
            here = torch.ones_like(index, dtype=self.dtype) if mask is None else mask.to(self.dtype)
            present = torch.zeros(self.num_means, dtype=self.dtype, device=features.device)
            self._forget(present.index_add_(0, index, here) > 0)
        # Splitting changes nothing in the result and bounds the temporaries of a batch of pixels.
        row_bytes = 4 * self.feature_dim * features.element_size()
        if features.shape[0] <= rows_per_chunk(row_bytes):
            self._learn_rows(dense(features), targets, mask, groups)
            return
        for part in chunks(len(features), row_bytes):
            self._learn_rows(dense(features[part]), targets[part], None if mask is None else mask[part])

    def _learn_without_waiting(self, features: Tensor, targets: Tensor, mask: Tensor | None, groups: Groups) -> None:
        absorbed = absorb_means_on_device(
            features,
            groups.labels,
            mask,
            self._seen(),
            self.origin,
            self.offset,
            all_seen=self._all_seen and not in_graph(),
        )
        self.absorb(absorbed.rows, groups)
        if self.num_means == self.num_classes:
            self.count += absorbed.new
        else:
            self.count.index_add_(0, targets, torch.ones_like(targets) if mask is None else mask.to(torch.int64))
        if self.effective is not None:
            self.effective += absorbed.new
        if in_graph():
            self._recorded = True
            return
        if self.num_means == self.num_matrices:
            self._known_scale.write(self.count, absorbed.share)
        self._updates += 1
        if self._updates % READ_EVERY == 1 and not self._all_seen:
            self._all_seen = bool((self._seen() > 0).all())

    def _learn_rows(self, features: Tensor, targets: Tensor, mask: Tensor | None, groups: Groups | None = None) -> None:
        """Absorb rows; ``mask`` is for devices that cannot leave rows out without waiting."""
        if groups is None or self.num_means != self.num_classes:
            groups = group_rows(self._mean_index(targets), self.num_means)
        if not on_host(features):
            self._learn_without_waiting(features, targets, mask, groups)
            return
        new = torch.from_numpy(np.asarray(groups.sizes))
        old = self.weight_of(groups.classes)
        self.absorb(absorb_means(features, groups, old, new, self.origin, self.offset), groups)
        if self.num_means == self.num_classes:
            self.count.index_add_(0, groups.classes, new)
        else:
            self.count.index_add_(0, targets, torch.ones_like(targets))
        if self.effective is not None:
            self.effective.index_add_(0, groups.classes, new.to(self.dtype))

    def _seen(self) -> Tensor:
        """(num_means,) effective number of features behind every mean."""
        if self.effective is not None:
            return self.effective
        return self.count if self.num_means == self.num_classes else self.count.sum(0, keepdim=True)

    def _seen_by_matrix(self) -> Tensor:
        """(G,) effective number of features behind every matrix."""
        seen = self._seen()
        return seen if self.num_means == self.num_matrices else seen.sum(0, keepdim=True)

    def _mean_index(self, classes: Tensor) -> Tensor:
        """Which mean each class uses."""
        return classes if self.num_means == self.num_classes else torch.zeros_like(classes)

    def _forget(self, present: Tensor) -> None:
        if self.decay is None or self.effective is None:
            return
        factors = torch.ones_like(self.effective).masked_fill_(present, self.decay)
        self.effective *= factors
        self._scale(factors)

    @without_autocast
    @torch.no_grad()
    def merge(self, other: CovarianceModel) -> None:
        """Absorb everything that ``other``, a model of the same kind and shape, has seen."""
        self._check_same_kind(other)
        other = cast(OnlineCovariance, other)
        everything = torch.arange(self.num_means, device=self.offset.device)
        old, new = self.weight_of(everything).to(self.dtype), other.weight_of(everything).to(self.dtype)
        share = (new / (old + new).clamp_min(torch.finfo(self.dtype).tiny)).unsqueeze(1)
        distance = (other.origin.to(self.dtype) - self.origin) + (other.offset.to(self.dtype) - self.offset)
        between = distance * (old.unsqueeze(1) * share).sqrt()
        self._merge_scatter(other, between)
        first = (old == 0).unsqueeze(1)
        self.offset.copy_(torch.where(first, other.offset, self.offset + distance * share))
        self.origin.copy_(torch.where(first, other.origin, self.origin))
        self.count += other.count
        if self.effective is not None:
            self.effective += new

    def _check_same_kind(self, other: CovarianceModel) -> None:
        super()._check_same_kind(other)
        decay = cast(OnlineCovariance, other).decay
        if self.decay is None and decay is not None:
            raise ValueError(f"other must have decay=None to be merged into counts that never decay, got {decay}")

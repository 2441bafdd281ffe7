"""Base class of the covariance models: margin variances, samples, checks and synchronised updates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isda._utils import checks, distributed
from isda._utils.devices import in_graph, on_host, outside_autocast
from isda.functional.grouping import Groups, UnchangedBuffers, chunks, group_rows
from isda.functional.patches import Patches
from isda.functional.quadratic import ProjectedWeights
from isda.functional.sampling import symmetric_root

_Method = TypeVar("_Method", bound=Callable[..., Any])

_BAD_INPUT, _NOT_FINITE, _OTHER_ERROR = 1, 2, 3
"""Codes that processes which share an update send each other when there is none."""


def without_autocast(method: _Method) -> _Method:
    """Run a method of a covariance model outside autocast, so that its products stay in the dtype of the statistics."""

    @functools.wraps(method)
    def wrapped(self: CovarianceModel, *args: Any, **settings: Any) -> Any:
        with outside_autocast(self.count.device):
            return method(self, *args, **settings)

    return cast(_Method, wrapped)


class CovarianceModel(nn.Module):
    """Class-conditional covariances Sigma_c of features with A dimensions, for C classes.

    A model defines Sigma_c by one map, ``product``: rows v to Sigma v. Everything else follows from it through a
    bounded workspace; the models of isda override what they can do faster. Models that learn from features derive from
    OnlineCovariance. examples/covariance_model.py is one in full.
    """

    count: Tensor
    """(C,) number of features seen per class, int64."""
    row_counts: Tensor
    """(3,) rows of recorded graphs: all, with a valid label, and valid altogether; since they were last looked at."""
    _recorded = False
    """Whether graphs change the statistics: a replay of a CUDA graph leaves no trace in Python."""
    sync: bool = True
    """Whether updates are shared between the processes of torch.distributed when it is running."""
    process_group: dist.ProcessGroup | None = None
    """The processes that share them; None for all."""
    not_negative: tuple[str, ...] = ("count",)
    """Entries of the state that are never below 0."""

    def __init__(self, num_classes: int, feature_dim: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        base = CovarianceModel
        if type(self).product is base.product and type(self).transform is base.transform:
            raise TypeError(
                f"{type(self).__name__} must define product(vectors, matrices), the map of rows v to Sigma v"
            )
        self.num_classes = checks.check_integer("num_classes", num_classes, 1)
        self.feature_dim = checks.check_integer("feature_dim", feature_dim, 1)
        self.validate = True
        self._late_errors = checks.DeferredErrors()
        self.register_buffer("count", torch.zeros(self.num_classes, dtype=torch.int64, device=device))
        counts = torch.zeros(3, dtype=torch.int64, device=device)
        self.register_buffer("row_counts", counts, persistent=False)

    # -- what a model defines ----------------------------------------------------------------------------------------

    def product(self, vectors: Tensor, matrices: Tensor) -> Tensor:
        """(N, A) rows Sigma_k v_i for the rows v_i of ``vectors`` (N, A) and k = matrices[i]."""
        return self.transform(group_rows(matrices, self.num_matrices))(vectors)

    def update(
        self, features: Tensor | Patches, targets: Tensor, *, mask: Tensor | None = None, groups: Groups | None = None
    ) -> None:
        """Absorb features (N, A) of the classes ``targets`` (N,); rows where ``mask`` is False are left out.

        Here they are only counted: for models whose covariance does not come from the features.
        """
        self._count_rows(features, targets, mask)

    @property
    def takes_patches(self) -> bool:
        """Whether ``update`` takes Patches as they are; an update defined elsewhere gets a tensor."""
        return type(self).update is CovarianceModel.update

    uses_logits: bool = False
    """Whether a criterion calls ``observe`` after each update."""

    def observe(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> None:
        """Learn from the logits (N, C) of the samples of an update; here nothing."""

    def merge(self, other: CovarianceModel) -> None:
        """Absorb everything that ``other`` has seen; here the counts."""
        self._check_same_kind(other)
        self.count += other.count

    def reset(self) -> None:
        """Forget everything; here the counts."""
        self.count.zero_()

    def classes_below(self, samples: int) -> int:
        """How many classes have a covariance of their own from fewer features than this; reads the counts."""
        return 0

    def penalty(self) -> Tensor | None:
        """A term that the criterion adds to its loss in training, or None."""
        return None

    # -- what follows from the product -------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the statistics, float32 or better."""
        tensors = (*self.parameters(), *self.buffers())
        return next((t.dtype for t in tensors if t.is_floating_point()), statistics_dtype(None))

    @property
    def mean(self) -> Tensor:
        """(C, A) mean feature per class; zeros where none is kept."""
        return torch.zeros((), dtype=self.dtype, device=self.count.device).expand(self.num_classes, self.feature_dim)

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``; zero for a class not seen yet."""
        return self._dense(self.matrix_index(torch.tensor([index], device=self.count.device)))[0]

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j; ``matrices`` (K,) are matrix indices."""
        return self._by_matrix(lambda part: (self._products(weight, matrices[part]) * weight).sum(-1), weight, matrices)

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table (w_j - w_p)' Sigma_k (w_j - w_p) for the pivot classes p(k)."""

        def table(part: slice) -> Tensor:
            difference = weight - weight.index_select(0, pivots[part]).unsqueeze(1)
            return (self._products(difference, matrices[part]) * difference).sum(-1).clamp_min(0)

        return self._by_matrix(table, weight, matrices)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        return self._by_matrix(lambda part: self._products(weight, matrices[part]) @ weight.t(), weight, matrices)

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v_i to Sigma_{g(i)} v_i, where ``groups`` are groups of matrix indices."""
        return lambda rows: self.product(rows, groups.labels)

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws from the normal distribution N(0, Sigma_{targets}), through symmetric roots."""
        shape = (len(targets), n, self.feature_dim)
        noise = torch.randn(shape, generator=generator, dtype=self.dtype, device=targets.device)
        matrices, slot = torch.unique(self.matrix_index(targets), return_inverse=True)
        draws = torch.zeros_like(noise)
        for index in range(len(matrices)):
            (rows,) = (slot == index).nonzero(as_tuple=True)
            root = symmetric_root(self._dense(matrices[index : index + 1])[0])
            draws = draws.index_copy(0, rows, noise.index_select(0, rows) @ root)
        return draws

    def _products(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, A) products Sigma_k v_j of rows (C, A), or (K, C, A), with every matrix."""
        rows = rows.expand(len(matrices), *rows.shape[-2:])
        index = matrices.unsqueeze(1).expand(rows.shape[:2])
        return self.product(rows.flatten(0, 1), index.flatten()).view(rows.shape)

    def _dense(self, matrices: Tensor) -> Tensor:
        """(K, A, A) the matrices themselves."""
        return self._products(torch.eye(self.feature_dim, dtype=self.dtype, device=matrices.device), matrices)

    def _by_matrix(self, table: Callable[[slice], Tensor], weight: Tensor, matrices: Tensor) -> Tensor:
        """Tables of all matrices, a few at a time; where there are many they are made again in the backward pass."""
        parts = list(chunks(len(matrices), 4 * weight.numel() * weight.element_size()))
        if len(parts) <= 1:
            return table(slice(None))
        unchanged = UnchangedBuffers(*self.buffers())

        def again(part: slice) -> Tensor:
            unchanged.check()
            return table(part)

        return torch.cat([checkpoint(again, part, use_reentrant=False, preserve_rng_state=False) for part in parts])

    # -- shared by all -----------------------------------------------------------------------------------------------

    @property
    def num_matrices(self) -> int:
        """How many distinct covariance matrices there are."""
        return self.num_classes

    def matrix_index(self, classes: Tensor) -> Tensor:
        """Which matrix each class uses."""
        return classes if self.num_matrices == self.num_classes else torch.zeros_like(classes)

    def row_margins(self, weight: Tensor, groups: Groups) -> Tensor:
        """(N, C) margin variances R[y_i, :] of the rows of a batch, which are grouped by class."""
        table = self.margins(weight, self.matrix_index(groups.classes), groups.classes)
        return table if groups.one_slot_per_row else table.index_select(0, groups.slot)

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """Whether C x C tables per matrix are cheaper than products per row for bounds that differ by row."""
        return matrices * self.num_classes <= 4 * rows

    def projected(self, weight: Tensor, matrices: Tensor) -> ProjectedWeights | None:
        """W Sigma_k of the matrices (K,), where the variances need it and it fits the workspace; here None."""
        return None

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v, each with the matrix k of ``matrices`` (n,)."""
        groups = group_rows(matrices.repeat_interleave(rows.shape[1]), self.num_matrices)
        return self.transform(groups)(rows.flatten(0, 1)).view_as(rows)

    def as_statistics(self, tensor: Tensor) -> Tensor:
        """The tensor in the dtype of the statistics, which is never below float32."""
        dtype = self.dtype
        return tensor if tensor.dtype == dtype else tensor.to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CovarianceModel:
        """Move or convert the module, but let ``.half()`` and ``.bfloat16()`` leave the statistics in their dtype."""

        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            lost = moved.is_floating_point() and moved.dtype.itemsize < torch.float32.itemsize
            return tensor.to(moved.device) if lost else moved

        super()._apply(keep_precision, recurse)
        return self

    @without_autocast
    def margin_variance(self, weight: Tensor, classes: Tensor | Sequence[int]) -> Tensor:
        """R[k, j] = (w_j - w_y)' Sigma_y (w_j - w_y) for y = classes[k]: the variance of the margin z_j - z_y.

        Differentiable in ``weight``; R[k, y] is exactly 0 and nothing is negative.

        Args:
            weight: (C, A) classifier weights.
            classes: (K,) class indices.

        Returns:
            (K, C).
        """
        self.check_weight(weight)
        classes = self._class_indices(classes, "classes", weight.device)
        return self.margins(self.as_statistics(weight), self.matrix_index(classes), classes)

    @without_autocast
    def sample(
        self,
        targets: Tensor | Sequence[int],
        n: int = 1,
        *,
        features: Tensor | None = None,
        strength: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw n semantic directions per target, or augmented features when ``features`` are given.

        Directions follow N(0, strength * Sigma_y), also when Sigma_y is rank deficient; augmented features are
        a_i + direction, eq. (4) of the paper. Gradients reach the parameters of a learned covariance.

        Args:
            targets: (N,) class indices.
            n: number of draws per target.
            features: (N, A) features to augment.
            strength: lambda.
            generator: source of randomness.

        Returns:
            (N, n, A).
        """
        targets = self._class_indices(targets, "targets", self.count.device)
        checks.check_integer("n", n, 1)
        checks.check_strength("strength", strength)
        if features is not None:
            checks.check_rows(features, targets, self.feature_dim)
        draws = self.directions(targets, n, generator) * math.sqrt(strength)
        return draws if features is None else self.as_statistics(features).unsqueeze(1) + draws

    def check_weight(self, weight: Tensor) -> None:
        """Raise ValueError unless ``weight`` is (C, A)."""
        checks.check_shape("weight", weight, (self.num_classes, self.feature_dim))

    def _class_indices(self, classes: Tensor | Sequence[int], name: str, device: torch.device) -> Tensor:
        """Class indices as an int64 tensor; their range is checked where that makes no device wait."""
        indices = torch.as_tensor(classes, device=device)
        checks.check_labels_dtype(indices, name)
        if indices.ndim != 1:
            raise ValueError(f"{name} must have one dimension, got shape {checks.shape_of(indices)}")
        message = checks.label_error(indices, self.num_classes, name=name) if on_host(device) else None
        if message is not None:
            raise ValueError(message)
        return indices.long()

    def groups(self, classes: Tensor) -> Groups:
        """Rows grouped by the matrix that their class uses."""
        return group_rows(self.matrix_index(classes), self.num_matrices)

    @torch.no_grad()
    def _count_rows(self, features: Tensor | Patches, targets: Tensor, mask: Tensor | None) -> None:
        """All that an update does in models whose covariance does not come from the features."""
        error: ValueError | None = None
        with self.reporting_failure():
            self._check_rows(features, targets, mask)
            targets = targets.long()
            if self.validate and on_host(targets):
                rows, labels = (features, targets) if mask is None else (features[mask], targets[mask])
                message = checks.label_error(labels, self.num_classes)
                error = checks.finite_error(peaks(rows)) if message is None else ValueError(message)
            labels = targets.clamp(0, self.num_classes - 1)
            if self.validate and not on_host(targets):
                mask = self._valid_rows(peaks(features), targets, labels, mask)
            kept = labels == targets if mask is None else mask & (labels == targets)
            seen = torch.zeros_like(self.count).index_add_(0, labels, kept.to(torch.int64))
        self._exchange_errors(len(features), error)
        if self._world_size() > 1:
            dist.all_reduce(seen, group=self.process_group)
        self.count.add_(seen)
        if self.validate and mask is not None and on_host(mask) and not bool(mask.any()):
            self._late_errors.warn_of_empty()

    def _valid_rows(
        self, features: Tensor, targets: Tensor, labels: Tensor, mask: Tensor | None, below: float = math.inf
    ) -> Tensor:
        """(N,) the rows that may enter the statistics; the others are counted, and reported later."""
        if not in_graph():
            return self._late_errors.valid_rows(features, targets, labels, mask, below)
        self._recorded = True
        valid, counts = checks.count_valid_rows(features, targets, labels, mask, below)
        self.row_counts.add_(counts)
        return valid

    def _report_bad_rows(self) -> None:
        """Raise for bad rows that were counted; reads the device."""
        self._late_errors.raise_if_any()
        if self._recorded and bool(self.row_counts.any()):
            self._late_errors.add(self.row_counts.clone())
            self.row_counts.zero_()
            self._late_errors.raise_if_any()

    def train(self, mode: bool = True) -> CovarianceModel:
        """Change the mode; leaving training is a moment to report bad rows that a device has counted."""
        if not mode:
            self._report_bad_rows()
        return super().train(mode)

    def _save_to_state_dict(self, *args: Any, **settings: Any) -> None:
        self._report_bad_rows()
        super()._save_to_state_dict(*args, **settings)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        checks.check_state(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise ValueError for a state with NaN, infinite or negative statistics, before any of it is loaded."""
        for name in (*self._parameters, *self._buffers):
            checks.check_entry(prefix + name, state.get(prefix + name), 0 if name in self.not_negative else -math.inf)

    # -- many processes ----------------------------------------------------------------------------------------------

    def _world_size(self) -> int:
        return distributed.world_size(self.process_group) if self.sync else 1

    def _exchange_errors(self, rows: int, error: ValueError | None) -> list[int]:
        """How many rows every process brings to an update; raises on all of them if one has an error."""
        header = [[rows, 0 if error is None else _kind_of(error)]]
        if self._world_size() > 1:
            header = distributed.exchange_counts(header[0], self.count.device, self.process_group)
        if error is not None:
            raise error
        for rank, (_, bad) in enumerate(header):
            if bad == _OTHER_ERROR:
                raise RuntimeError(f"process {rank} raised an error before the update; statistics were not changed")
            if bad:
                raised = checks.NonFiniteFeatures if bad == _NOT_FINITE else ValueError
                raise raised(f"bad input on process {rank}; statistics were not changed")
        return [size for size, _ in header]

    def refuse_join(self) -> None:
        """Raise where updates are shared: a process that has run out of batches would leave the others waiting."""
        if self._world_size() > 1:
            raise ValueError(
                "statistics that are shared between processes need as many batches on each of them, so they cannot be "
                "used inside join() of DistributedDataParallel; use drop_last or a DistributedSampler, or sync=False"
            )

    def report_failure(self, error: Exception | None = None) -> None:
        """Tell the processes that are about to share an update that this one has none: they raise too.

        Args:
            error: why; bad input by default.
        """
        if self._world_size() > 1:
            kind = _BAD_INPUT if error is None else _kind_of(error)
            distributed.exchange_counts([0, kind], self.count.device, self.process_group)

    def reporting_failure(self, active: bool = True) -> AbstractContextManager[None]:
        """``report_failure`` if the block, which comes before a shared update, raises an error and it is ``active``."""
        return _FailureReport(self, active)

    def _check_rows(self, features: Tensor | Patches, targets: Tensor, mask: Tensor | None) -> None:
        checks.check_rows(cast(Tensor, features), targets, self.feature_dim)  # Patches have all that it reads
        checks.check_mask(mask, len(features))
        if len(features) == 0:
            raise ValueError("features must hold at least one row, got an empty batch")

    def _check_same_kind(self, other: CovarianceModel) -> None:
        mine = (type(self).__name__, self.num_classes, self.feature_dim)
        theirs: Any = type(other).__name__
        if isinstance(other, CovarianceModel):
            theirs = (theirs, other.num_classes, other.feature_dim)
        if mine != theirs or not isinstance(other, type(self)):
            raise ValueError(f"other must be a {mine[0]} of {mine[1]} classes x {mine[2]} features, got {theirs}")

    def extra_repr(self) -> str:
        """Show the sizes in repr()."""
        return f"num_classes={self.num_classes}, feature_dim={self.feature_dim}"


class _FailureReport(AbstractContextManager[None]):
    """A class, not a generator: it is entered several times in every training step."""

    def __init__(self, model: CovarianceModel, active: bool) -> None:
        self._model, self._active = model, active

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._active and isinstance(error, Exception):
            self._model.report_failure(error)


def dense(rows: Tensor | Patches) -> Tensor:
    """Rows (N, A) as a tensor."""
    return rows.dense() if isinstance(rows, Patches) else rows


def peaks(rows: Tensor | Patches) -> Tensor:
    """What tells whether rows are finite: the largest magnitudes (N, 1) of patches, or the rows themselves."""
    return rows.peaks() if isinstance(rows, Patches) else rows


def _kind_of(error: Exception) -> int:
    """The code of an error that is sent to other processes."""
    if isinstance(error, checks.NonFiniteFeatures):
        return _NOT_FINITE
    return _BAD_INPUT if isinstance(error, ValueError) else _OTHER_ERROR


def statistics_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype to keep statistics in: the given one, but at least float32."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)

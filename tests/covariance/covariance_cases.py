"""Streams of features, models that have seen them, and what their covariances ought to be."""

from __future__ import annotations

import torch

from isda import covariance
from isda.covariance import CovarianceModel
from oracles import batch_covariance, shared_covariance, shrunk_covariance, within_covariance

ALL = tuple(covariance.MODELS)
ONLINE = ("full", "diagonal", "low_rank", "shared", "within", "shrunk")
EXACT = ("full", "diagonal", "shared", "within", "shrunk")
C, A = 4, 5


def stream(n: int = 40, *, seed: int = 0, mean: float = 0.0, dtype: torch.dtype = torch.float64):
    """Features (n, A) of std about 1 with correlations, and labels; the last class never occurs."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(A, A, generator=generator, dtype=torch.float64) / A**0.5
    features = torch.randn(n, A, generator=generator, dtype=torch.float64) @ mixing + mean
    return features.to(dtype), torch.randint(C - 1, (n,), generator=generator)


def make(name: str, dtype: torch.dtype = torch.float64, **settings) -> CovarianceModel:
    """An empty model; low_rank with a sketch that has to shrink, learned with a random factor of rank 2."""
    if name == "low_rank":
        settings.setdefault("rank", 2)
    if name == "learned":
        settings.setdefault("rank", 2)
    model = covariance.create(name, C, A, dtype=dtype, **settings)
    if name == "learned":
        with torch.no_grad():
            model.factor.copy_(torch.randn(model.factor.shape, dtype=torch.float64))
    return model


def fed(name: str, dtype: torch.dtype = torch.float64, n: int = 40, **settings) -> CovarianceModel:
    """A model that has seen ``stream(n)`` in batches of ten."""
    model = make(name, dtype, **settings)
    features, targets = stream(n, dtype=dtype)
    for part in torch.arange(n).split(10):
        model.update(features[part], targets[part])
    return model


def matrices(model: CovarianceModel) -> torch.Tensor:
    """(C, A, A) all covariances in float64."""
    return torch.stack([model.covariance(c) for c in range(C)]).double()


def expected_matrices(name: str, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(C, A, A) covariances (correction 0) that a model of this name should have after this stream."""
    if name == "shared":
        return shared_covariance(features, targets, C)
    if name == "within":
        return within_covariance(features, targets, C)
    full = batch_covariance(features, targets, C)
    if name == "shrunk":
        return shrunk_covariance(full, torch.bincount(targets, minlength=C).tolist())
    return torch.diag_embed(full.diagonal(dim1=1, dim2=2)) if name == "diagonal" else full


def assert_matrices_close(model: CovarianceModel, expected: torch.Tensor, tolerance: float) -> None:
    """Every covariance within ``tolerance`` of the expected one, relative to its largest entry."""
    actual = matrices(model)
    error = (actual - expected).abs().flatten(1).amax(1)
    size = expected.abs().flatten(1).amax(1)
    assert (error <= tolerance * size + 1e-300).all(), f"relative errors {(error / size).tolist()}"


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the state_dict."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_state(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    """The state_dict equals the snapshot bit for bit."""
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert tensor.dtype == before[name].dtype, name
        assert torch.equal(tensor, before[name]), name

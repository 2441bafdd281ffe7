"""Save and load a fitted ISDAClassifier as a safetensors file: arrays as tensors, everything else as JSON metadata.

Unlike a pickle, the file runs no code when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from isda._utils.files import atomic_write, check_regular_file
from isda.estimator.data import Scaler
from isda.estimator.stochastic import make_network

if TYPE_CHECKING:
    from isda.estimator.classifier import ISDAClassifier

FILE_FORMAT = "isda.ISDAClassifier/1"


def save_classifier(model: ISDAClassifier, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a fitted classifier, and further metadata."""
    arrays = {"centre": model.scaler_.centre, "spread": model.scaler_.spread}
    if hasattr(model, "coef_"):
        arrays |= {"coef": model.coef_, "intercept": model.intercept_}
    else:
        arrays |= {f"network.{name}": tensor.numpy() for name, tensor in model.network_.state_dict().items()}
    description = {
        "settings": model.get_params(),
        "classes": model.classes_.tolist(),
        "dtype_of_classes": model.classes_.dtype.str,
        "lambda_0": model.lambda_0_,
        "C": model.C_,
        "scale": model.scale_,
        "standardize": model.standardize_,
        "n_iter": int(model.n_iter_[0]),
        "gradient_norm": model.gradient_norm_,
        "feature_names": None if not hasattr(model, "feature_names_in_") else list(model.feature_names_in_),
    }
    try:
        text = json.dumps(description)
    except TypeError as error:
        raise ValueError(f"the settings of a classifier must be plain values to be saved: {error}") from error
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with atomic_write(path) as unfinished:
        save_file(contiguous, str(unfinished), {**(metadata or {}), "format": FILE_FORMAT, "classifier": text})


def load_classifier_file(kind: type[ISDAClassifier], path: Path) -> tuple[ISDAClassifier, dict[str, str]]:
    """Read a file of ``save_classifier``, and its metadata; ValueError for any other file."""
    check_regular_file(path)
    expected = f"{path} must be a classifier saved by ISDAClassifier.save"
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FILE_FORMAT:
                raise ValueError(f"{expected}, got another safetensors file")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{expected}, got: {error}") from error
    described: dict[str, Any] = json.loads(metadata["classifier"])
    settings = described["settings"]
    model = kind(**settings | {"hidden": tuple(settings["hidden"])})
    model.classes_ = np.array(described["classes"], dtype=np.dtype(described["dtype_of_classes"]))
    model.scaler_ = Scaler(arrays["centre"], arrays["spread"])
    model.n_features_in_ = len(model.scaler_.centre)
    if described["feature_names"] is not None:
        model.feature_names_in_ = np.array(described["feature_names"], dtype=object)
    model.lambda_0_, model.C_, model.cv_results_ = described["lambda_0"], described["C"], None
    model.scale_, model.standardize_ = described["scale"], described["standardize"]
    model.n_iter_, model.gradient_norm_ = np.array([described["n_iter"]]), described["gradient_norm"]
    if "coef" in arrays:
        model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    else:
        network = make_network(model.n_features_in_, model.hidden, len(model.classes_))
        state = {name: torch.from_numpy(arrays[f"network.{name}"]) for name in network.state_dict()}
        network.load_state_dict(state)
        model.network_ = network.eval()
    return model, metadata

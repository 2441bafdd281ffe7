"""JSON files with a SHA-256 digest of their content, and digests of files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isda._utils.files import check_regular_file

_DIGEST_KEY = "sha256"


def with_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a digest of its content.

    Example:
        >>> verified(with_digest({"error": 3.5}), "result.json")
        {'error': 3.5}
    """
    content = {key: _finite(value) for key, value in record.items()}
    return {**content, _DIGEST_KEY: content_digest(content)}


def json_text(value: Any, indent: int | None = None) -> str:
    """Plain values as JSON; NaN and infinity become null.

    Example:
        >>> json_text({"error": 3.5, "miou": float("nan")})
        '{"error": 3.5, "miou": null}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"numbers must be finite, got {name}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def verified(record: Mapping[str, Any], path: Path | str) -> dict[str, Any]:
    """The record without its digest; a record without one is returned as it is.

    Raises:
        ValueError: ``path``, the file of the record, was changed after it was written.
    """
    content = {key: value for key, value in record.items() if key != _DIGEST_KEY}
    if _DIGEST_KEY in record and record[_DIGEST_KEY] != content_digest(content):
        raise ValueError(f"{path} was changed after it was written")
    return content


def read_verified(path: Path) -> dict[str, Any]:
    """The JSON object in a file with a digest; raises a ValueError if it is damaged."""
    return verified(read_json_object(path), path)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises a ValueError if it is damaged."""
    check_regular_file(path)
    try:
        value = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def file_digest(path: Path) -> dict[str, int | str]:
    """Size and SHA-256 of a file."""
    check_regular_file(path)
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return {"bytes": path.stat().st_size, "sha256": sha256.hexdigest()}


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, independent of their order; without ``seconds``, in which equal runs may differ.

    Example:
        >>> content_digest({"error": 3.5, "seconds": 7.0}) == content_digest({"error": 3.5})
        True
    """
    content = {key: value for key, value in content.items() if key != "seconds"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

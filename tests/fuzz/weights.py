"""Random files of weights: tensors that do not fit, files that are damaged or of another format, and hostile pickles.

A command must refuse them before anything is made, run nothing that is in them, and succeed only with weights that fit.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save, save_file
from subjects import SCENES, SHAPES, command_words, reseal, words_of
from torch import Tensor, nn

from commands import Case, common_problem, run, strict_json
from isda.lab import networks
from isda.lab.engine.digests import file_digest
from isda.lab.networks import segmentation

MARK = "executed"
"""The file that code in a file of weights would leave."""
TIMM_NETWORK = "timm:test_resnet"
FEW = ("--image-size", "16", "--train", "4", "--test", "4", "--out", "new.npz", "--json", "-")
STARTING: dict[str, list[str]] = {
    "embed": ["embed", "--data", "two-classes", "--network", TIMM_NETWORK, *FEW, "--pretrained"],
    "train": [
        *("train", "--data", "two-classes", "--network", TIMM_NETWORK, "--input-size", "16", "--labels", "4"),
        *("--batch-size", "2", "--epochs", "1", "--out", "new", "--pretrained"),
    ],
    "segment train": ["segment", "train", *words_of(SCENES), "--out", "new", "--pretrained"],
    "detect train": ["detect", "train", *words_of(SHAPES), "--out", "new", "--backbone-weights"],
}
"""Commands that begin with the weights of a file, which is their last word."""
FINISHED = {
    "evaluate": "timm",
    "predict": "timm",
    "export": "timm",
    "explore": "supervised",
    "directions": "supervised",
    "segment predict": "segmentation",
    "segment evaluate": "segmentation",
    "detect evaluate": "detection",
    "detect predict": "detection",
    "generate sample": "generation",
    "generate evaluate": "generation",
}
"""Commands that use the weights of a finished run, by the subject."""
COMMANDS = (*STARTING, *FINISHED, "embed", "train")


def make_weights(top: Path) -> None:
    """The weights that fit each command, and what ``isda embed`` makes with them."""
    torch.manual_seed(0)
    folder = top / "weights"
    folder.mkdir()
    network = networks.create(TIMM_NETWORK, num_classes=2, in_channels=3)
    detector = networks.create("fast-cnn", num_classes=10, width=0.1, in_channels=3)
    pixels: Any = segmentation.create(
        SCENES["network"], 3, width=float(SCENES["width"]), output_stride=32, stem="torchvision"
    )
    for name, module in (
        ("embed", network),
        ("train", network),
        ("segment train", pixels.backbone),
        ("detect train", detector),
    ):
        save_file(
            {key: value.contiguous().clone() for key, value in module.state_dict().items()},
            folder / f"{name}.safetensors",
        )
    os.chdir(folder)
    ended = run([*STARTING["embed"], "embed.safetensors"])
    assert ended.status == 0, ended.err
    os.chdir(top)


class Weights(NamedTuple):
    """What a file of weights is, and what a command may do with it."""

    what: str
    content: bytes | None
    """None for no ordinary file."""
    must: str
    """"succeed", "be refused", or "be right", which is one or the other."""
    same: bool = False
    """Whether its tensors are those that fit, up to rounding."""


# -- tensors -----------------------------------------------------------------------------------------------------------


def _one(tensors: dict[str, Tensor], chance: random.Random) -> str:
    """The name of a floating tensor with at least two entries."""
    return chance.choice(
        [name for name, value in sorted(tensors.items()) if value.is_floating_point() and value.numel() > 1]
    )


def _other_shape(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    name = _one(tensors, chance)
    value = tensors[name]
    ways = [value[:-1], value.unsqueeze(0), value.flatten()[0], torch.cat([value, value]), value[:0]]
    ways += [value.flatten()] if value.dim() > 1 else []
    tensors[name] = chance.choice(ways)
    return f"{name} of shape {tuple(tensors[name].shape)}", "be refused", False


def _other_type(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    dtype = chance.choice(
        [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64]
    )
    chosen = (
        [_one(tensors, chance)] if chance.random() < 0.5 else [k for k, v in tensors.items() if v.is_floating_point()]
    )
    for name in chosen:
        tensors[name] = tensors[name].to(dtype)
    return (
        f"{chosen[0] if len(chosen) == 1 else len(chosen)} of type {dtype}",
        "be right" if dtype.is_floating_point else "be refused",
        dtype.is_floating_point,
    )


def _not_finite(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    name, value = _one(tensors, chance), chance.choice([float("nan"), float("inf"), -float("inf")])
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[chance.randrange(tensors[name].numel())] = value
    return f"{value} in {name}", "be refused", False


def _huge(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    name = _one(tensors, chance)
    tensors[name] = torch.full_like(tensors[name], chance.choice([1e38, -1e38, 1e-40]))
    return f"{name} filled with {tensors[name].flatten()[0]:g}", "be right", False


def _missing(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    name = _one(
        {key: value for key, value in tensors.items() if key.startswith(("body.", "stages.", "layer"))} or tensors,
        chance,
    )
    del tensors[name]
    return f"without {name}", "be refused", False


def _foreign(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    name = chance.choice(["foreign.weight", "", "\x1b[31mred", "x" * 3000, "body.foreign.weight", "é🙂"])
    tensors[name] = torch.zeros(3)
    return f"with {name[:20]!r}", "be right", True


def _prefix(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    prefix = chance.choice(["module.", "model.", "backbone.", "x.", "body.body."])
    for name in list(tensors):
        tensors[prefix + name] = tensors.pop(name)
    return f"names after {prefix}", "be right", True


def _empty(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    tensors.clear()
    return "no tensors", "be refused", False


def _as_it_is(tensors: dict[str, Tensor], chance: random.Random) -> tuple[str, str, bool]:
    return "as it should be", "succeed", True


CHANGES: tuple[Callable[[dict[str, Tensor], random.Random], tuple[str, str, bool]], ...] = (
    *(_other_shape, _other_type, _not_finite, _huge, _missing, _foreign, _prefix, _empty, _as_it_is),
)


# -- files -------------------------------------------------------------------------------------------------------------


class Payload:
    """Unpickled carelessly, it runs code; here it leaves a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What a pickle of it calls."""
        return (open, (MARK, "w"))


def random_weights(good: dict[str, Tensor], suffix: str, chance: random.Random, number: int) -> Weights:
    """Changed tensors in a file of a format, or a file that is damaged or of another one, in turn."""
    if number % 2:
        what, must, same = CHANGES[number // 2 % len(CHANGES)](good, chance)
        content = save(good) if suffix == ".safetensors" else _saved(good)
        if what.startswith("as it") and suffix != ".safetensors" and chance.random() < 0.5:
            key = chance.choice(["state_dict", "model"])
            return Weights(f"under {key}", _saved({key: good, "epoch": 3}), "be right", True)
        return Weights(what, content, must, same)
    ways = (_truncated, _flipped, _header, _pickled, _another_format, _no_file)
    return ways[number // 2 % len(ways)](good, suffix, chance)


def _saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def _written(good: dict[str, Tensor], suffix: str) -> bytes:
    return save(good) if suffix == ".safetensors" else _saved(good)


def _truncated(good: dict[str, Tensor], suffix: str, chance: random.Random) -> Weights:
    content = _written(good, suffix)
    length = chance.choice([0, 1, 7, 8, 9, chance.randrange(len(content)), len(content) - 1])
    return Weights(f"truncated to {length} bytes", content[:length], "be refused")


def _flipped(good: dict[str, Tensor], suffix: str, chance: random.Random) -> Weights:
    content = bytearray(_written(good, suffix))
    end = chance.choice([16, 1000, len(content)])
    places = [chance.randrange(min(end, len(content))) for _ in range(chance.choice([1, 5, 20]))]
    for place in places:
        content[place] ^= 1 << chance.randrange(8)
    return Weights(f"bits flipped at {places}", bytes(content), "be right")


def _header(good: dict[str, Tensor], suffix: str, chance: random.Random) -> Weights:
    """A header of safetensors that lies."""
    content = save(good)
    length = struct.unpack("<Q", content[:8])[0]
    if chance.random() < 0.4:
        claimed = chance.choice([2**64 - 1, 2**63, 2**40, len(content), length + 1, length - 1, 0])
        return Weights(f"a header of {claimed} bytes", struct.pack("<Q", claimed) + content[8:], "be refused")
    header = json.loads(content[8 : 8 + length])
    name = chance.choice(sorted(key for key in header if key != "__metadata__"))
    entry = header[name]
    begin, end = entry["data_offsets"]
    wrong: dict[str, Any] = {
        "data_offsets": chance.choice(
            [[begin, end + 2**40], [-1, end], [end, begin], [begin], "text", [begin + 4, end + 4]]
        ),
        "dtype": chance.choice(["F99", "", 7, None]),
        "shape": chance.choice([[-1], [2**62, 2**62], "text", [10**9], None]),
    }
    key = chance.choice(sorted(wrong))
    entry[key] = wrong[key]
    if entry["shape"] == [-1] or key != "shape" or entry["shape"]:
        text = json.dumps(header).encode()
        return Weights(
            f"{key} {wrong[key]!r} of {name}", struct.pack("<Q", len(text)) + text + content[8 + length :], "be refused"
        )
    return Weights("a header that is no JSON", content[:8] + b"x" * length + content[8 + length :], "be refused")


def _pickled(good: dict[str, Tensor], suffix: str, chance: random.Random) -> Weights:
    """Objects that are no tensors, some of which would run code."""
    contents: dict[str, bytes] = {
        "a pickle that runs code": pickle.dumps(Payload()),
        "a pickle that runs code among tensors": _saved({**good, "x": Payload()}),
        "an old pickle that runs code": _saved({**good, "x": Payload()}, _use_new_zipfile_serialization=False),
        "a whole module": _saved(nn.Linear(2, 2)),
        "a list": _saved(list(good.values())),
        "a tensor": _saved(next(iter(good.values()))),
        "numbers": _saved(dict.fromkeys(good, 1.0)),
        "arrays": pickle.dumps({name: value.numpy() for name, value in good.items()}),
        "names that are numbers": _saved(dict(enumerate(good.values()))),
        "a deep pickle": b"(" * 100_000 + b".",
        "a sparse tensor": _saved({name: value.to_sparse() for name, value in good.items() if value.dim()}),
        "a quantised tensor": _saved(
            {k: torch.quantize_per_tensor(v.float(), 0.1, 0, torch.qint8) for k, v in good.items()}
        ),
    }
    what = chance.choice(sorted(contents))
    return Weights(what, contents[what], "be refused")


def _another_format(good: dict[str, Tensor], suffix: str, chance: random.Random) -> Weights:
    archive = io.BytesIO()
    np.savez(archive, **{name: value.numpy() for name, value in good.items()})
    contents = {
        "a table": b"a,b,label\n1,2,x\n3,4,y\n",
        "a numpy archive": archive.getvalue(),
        "an empty zip archive": b"PK\x05\x06" + bytes(18),
        "text": b"these are no weights\n" * 100,
        "zeros": bytes(4096),
        "JSON": b'{"a": [1, 2]}',
        "the other format": _saved(good) if suffix == ".safetensors" else save(good),
        "an image": b"\x89PNG\r\n\x1a\n" + bytes(100),
    }
    what = chance.choice(sorted(contents))
    return Weights(what, contents[what], "be right" if what == "the other format" else "be refused", same=True)


def _no_file(good: dict[str, Tensor], suffix: str, chance: random.Random) -> Weights:
    return Weights(chance.choice(["a folder", "a pipe", "a link to itself", "nothing"]), None, "be refused")


def _put(weights: Weights, path: Path) -> None:
    path.unlink(missing_ok=True)
    if weights.content is not None:
        path.write_bytes(weights.content)
    elif weights.what == "a folder":
        path.mkdir()
    elif weights.what == "a pipe":
        os.mkfifo(path)
    elif weights.what == "a link to itself":
        path.symlink_to(path.name)


# -- cases -------------------------------------------------------------------------------------------------------------


def weights_case(top: Path, number: int, chance: random.Random, expected: dict[str, Any]) -> Case:
    """One case in the current folder: a command that begins with a file, or one that uses a finished run."""
    command = COMMANDS[number % len(COMMANDS)]
    turn = number // len(COMMANDS) + number % len(COMMANDS)
    suffix = (
        ".safetensors"
        if command in FINISHED
        else chance.choice([".safetensors", ".pt", ".pth", ".npz", ".csv", ".bin"])
    )
    if command in FINISHED:
        shutil.copytree(top / FINISHED[command], "run")
        shutil.copyfile(top / "data" / "image.png", "image.png")
        path, words = Path("run") / "model.safetensors", command_words(command, "run")
    else:
        path = Path(f"weights{suffix}")
        words = [*STARTING[command], path.name]
    good = load_file(path if command in FINISHED else top / "weights" / f"{command}.safetensors")
    weights = random_weights(dict(good), suffix, chance, turn)
    if command not in FINISHED and "classifier." in weights.what:
        weights = weights._replace(must="be right")  # who begins with a backbone does not read its classifier
    _put(weights, path)
    if command in FINISHED and path.is_file():
        _seal_anew(Path("run"))
    told = f"{command} with {path}: {weights.what}"
    ended = run(words)
    problem = "code in the file was run" if Path(MARK).exists() else common_problem(words, ended)
    if problem is None and ended.status == 0:
        problem = "accepted" if weights.must == "be refused" else _spoilt(command, weights, ended.out, top)
    elif problem is None and weights.must == "succeed":
        problem = "refused"
    elif problem is None and (Path("new") / "config.json").exists() and "step" not in ended.err:
        problem = "failed after the folder was made"
    return Case(command, told, ended.status, None if problem is None else ended.shown(problem))


def _seal_anew(folder: Path) -> None:
    """Let a run say that the weights beside it are its own."""
    file = folder / "result.json"
    record = json.loads(file.read_text())
    record["weights_sha256"] = file_digest(folder / "model.safetensors")["sha256"]
    file.write_text(json.dumps(reseal(record)))


def _spoilt(command: str, weights: Weights, out: str, top: Path) -> str | None:
    """Whether a command that succeeded has made something else of weights that fit, or numbers that are not finite."""
    if command != "embed":
        return None
    strict_json(out)
    with np.load("new.npz") as made, np.load(top / "weights" / "new.npz") as whole:
        if not np.isfinite(made["x_train"]).all():
            return "features are not finite"
        # Half precision rounds weights to 2^-8 of their size.
        if weights.same and not np.allclose(made["x_train"], whole["x_train"], rtol=0.1, atol=0.1):
            return "other features than with the whole file"
    return None

"""Random option sets of every command: values that are valid, on the border, and absurd.

A command must give a sentence, or do what its words ask for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subjects import IMAGES, REPRODUCED, SCENES, SHAPES, TINY

from commands import HELP, NAMES, ODD_PATHS, Case, common_problem, not_finite, run
from commands import PATHS as SERVED

NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "0.5",
    "-0.5",
    "1e-9",
    "1e9",
    "1e309",
    "nan",
    "inf",
    "-inf",
    "2147483648",
    "99999999999999999999",
)
WORDS = ("", "text", "None", "true", "é", "\x1b[31mred", "a b", "a/b", "..", "--", "-", "=", ":", "x" * 3000, "🙂")
# Nothing outside the folder of the case, which a mistake of ours could harm.
PATHS = ("", ".", "..", "nowhere/at/all", "image.png", "run", "a\tb", "x" * 300)
METHODS = (
    *("isda", "cross-entropy", "isda-tilted", "isad", "isda:", "isda:lambda_0", "isda:lambda_0=", "isda:=1", ":", "."),
    *("isda:lambda_0=nan", "isda:lambda_0=-1", "isda:lambda_0=0", "isda:lambda_0=1e30", "isda:lambda_0=1,lambda_0=2"),
    *("isda:covariance=diagonal", "isda:covariance=low_rank,rank=4", "isda:covariance=low_rank,rank=0"),
    *("isda:covariance=shared", "isda:covariance=learned", "isda:covariance=identity", "isda:covariance=nothing"),
    *("isda:rank=1000000000", "isda:decay=0.9", "isda:decay=2", "isda:decay=nan", "isda-tilted:tilt_steps=0"),
    *("focal:gamma=2", "lq:q=2", "large-margin:margin=1000000000", "center+isda:weight=nan", "distribution-net"),
    *("isda-tilted:tilt_steps=3", "isda:label_smoothing=1.5", "isda:label_smoothing=0.1", "isda:schedule=constant"),
    *("cross-entropy:lambda_0=1", "nowhere.Method", "os.path.join", "json:JSONDecoder", "isda.lab.engine.Method"),
    *(
        "supervised",
        "pi-model",
        "vat+isda",
        "mean-teacher",
        "fixmatch+isda:threshold=2",
        "temporal-ensembling:eta_2=-1",
    ),
    *("vat:epsilon=nan", "mean-teacher:teacher_decay=1", "mean-teacher+isda:eta_1=inf", "supervised+isda:bound=tilted"),
)
DATA = (
    *("digits", "cifar10", "cifar100", "imagenet", "dgits", "nowhere.npz", "folder:nowhere", "folder:", "image.png"),
    *("wild", "strings", "one-class", "escapes", "from-one", "floats", "four-channels", "two-images", "\x1b[31mred"),
    *("cut", "empty", "photos", ""),
)
NETWORKS = (
    *(
        "fast-cnn",
        "resnet-8",
        "cnn-13",
        "timm:test_resnet",
        "densenet-bc-100-12",
        "timm:",
        "timm:nothing",
        "resnet",
        "",
    ),
    *("wide-resnet-16-8", "shake-shake-26-2x32d"),
)
AUGMENT = (
    "none",
    "crop",
    "crop-flip",
    "translate",
    "translate-flip",
    "cutout",
    "randaugment",
    "autoaugment",
    "imagenet",
    "resized-crop",
)
SCENE_DATA = (
    *("scenes", "scenes-ignored-validation", "scenes-ignored-training", "scenes-other-size", "scenes-no-labels"),
    *("scenes-out-of-range", "scenes-no-classes", "shapes", "cityscapes", "camvid", "digits", "empty", "nowhere", ""),
)
SHAPE_DATA = (
    *("shapes", "shapes-outside", "shapes-negative", "shapes-not-finite", "shapes-unknown-category", "shapes-twice"),
    *("shapes-unknown-image", "shapes-elsewhere", "shapes-no-file", "shapes-other-size", "shapes-no-objects"),
    *("shapes-crowds", "shapes-odd-mask", "shapes-list", "scenes", "coco", "digits", "empty", "nowhere", ""),
)
SPOILT = (
    *("scenes-ignored-validation", "scenes-other-size", "scenes-no-labels", "scenes-out-of-range"),
    *("shapes-negative", "shapes-not-finite", "shapes-unknown-category", "shapes-unknown-image", "shapes-elsewhere"),
    *("shapes-no-file", "shapes-list", "wild", "strings", "cut", "empty", "nowhere"),
)
"""Data that no run may be made of, nor judged by."""
GENERAL: dict[str, Sequence[str]] = {
    "--seed": NUMBERS,
    "--scale": ("paper", "small", "smoke", "huge", ""),
    "--epochs": ("0", "1", "2", "-1", "nan", "1.5", "99999999999999999999"),
    "--evaluate-every": NUMBERS,
    "--batch-size": ("1", "2", "7", "20", "21", "1000000", *NUMBERS),
    "--lr": NUMBERS,
    "--weight-decay": NUMBERS,
    "--precision": ("float32", "float64", "bfloat16", "float16", "int8", "bf16", "fp64", "fp8"),
    "--learning-rate": NUMBERS,
    "--ema": ("0.9", "1", "0", "nan"),
}
SETTINGS: dict[str, Sequence[str]] = {
    "--data": DATA,
    "--network": NETWORKS,
    **GENERAL,
    "--labels": ("10", "20", "21", "1297", "1298", *NUMBERS),
    "--held-out": ("0", "10", "100", "1296", "1297", *NUMBERS),
    "--lambda-0": NUMBERS,
    "--augment": (*AUGMENT, "nothing", ""),
    "--width": ("0.05", "0.1", *NUMBERS),
    "--dropout": ("0.1", "1", *NUMBERS),
    "--pretrained": ("", "nowhere", "image.png", "run", "hub", "a b", "x" * 300),
    "--freeze": ("", "yes"),
    "--input-size": ("32", *NUMBERS),
    "--optimiser": ("sgd", "adamw", "adam"),
    "--optimizer": ("sgd", "adamw", "adam"),
    "--image-size": ("32", *NUMBERS),
    "--val-size": ("10", "1297", *NUMBERS),
    "--warmup-epochs": ("1", "0.5", "3steps", *NUMBERS),
    "--warm-up": ("1", "0.5", "3steps", "steps", "1e3", "", *NUMBERS),
    "--layer-decay": ("0.5", "1", *NUMBERS),
    "--nesterov": ("True", "False", "maybe"),
    "--network-options": ("width 0.1", "num_classes 5", "depth", "in_channels 3", "a b", "width", "x [1e999]"),
    "--generated": ("run", "nowhere", "image.png", ""),
    "--generated-share": ("0.1667", *NUMBERS),
    "--unlabelled": ("20", "40", "1277", *NUMBERS),
    "--labelled-per-batch": ("2", "6", "published", *NUMBERS),
    "--held-out-labels": ("0.25", "0.5", *NUMBERS),
    "--channels-last": ("", "yes"),
    "--no-compile": ("",),
}
MACHINE: dict[str, Sequence[str]] = {
    "--data-root": PATHS,
    "--device": ("cpu", "auto", "cuda:99", "tpu", "meta", "cpu:7", ""),
    "--workers": ("1", "2", *NUMBERS),
    "--threads": ("1", "0", "-1", "nan"),
    "--checkpoint-minutes": NUMBERS,
    "--checkpoint-steps": NUMBERS,
    "--keep": NUMBERS,
    "--task": ("classification", "semi-supervised", "nothing", "os:path", "isda.lab.engine:Job", ":", ""),
}
SPREAD: dict[str, Sequence[str]] = {
    "--on": ("local", "ray", "slurm", "rya", "ray:", "ray:nowhere", "slurm:here", ":", ""),
    "--jobs": NUMBERS,
    "--processes-per-run": NUMBERS,
    "--cpus-per-run": NUMBERS,
    "--gpus-per-run": NUMBERS,
    "--sbatch": ("partition=gpu", "--partition", "a b", "", "=", "x\n#SBATCH"),
}
SIZES = ("17", "17x25", "1", "0", "-1", "x", "17x", "99999x99999", "nan", "1.5", "")
SEGMENTATION: dict[str, Sequence[str]] = {
    "--data": SCENE_DATA,
    "--network": ("pspnet-resnet-18", "deeplab-v3-resnet-18", "pspnet-resnet-19", "resnet-18", ""),
    **GENERAL,
    "--lambda-0": NUMBERS,
    "--evaluate-on": ("validation", "test", "train", ""),
    "--multi-scale": ("", "yes"),
    "--window": SIZES,
    "--crop": SIZES,
    "--image-size": SIZES,
    "--smallest-scale": NUMBERS,
    "--largest-scale": NUMBERS,
    "--no-mirror": ("",),
    "--width": ("0.05", *NUMBERS),
    "--output-stride": ("8", "16", "32", *NUMBERS),
    "--stem": ("deep", "torchvision", "nothing"),
    "--pretrained": ("run/model.safetensors", "table.csv", "nowhere", "run", ""),
    "--dropout": NUMBERS,
    "--auxiliary-weight": NUMBERS,
    "--freeze-batch-norm": ("",),
    "--sync-batch-norm": ("",),
    "--nesterov": ("True", "maybe"),
    "--warm-up": ("0.5", "3steps", "steps", *NUMBERS),
}
DETECTION: dict[str, Sequence[str]] = {
    "--data": SHAPE_DATA,
    "--network": ("faster-rcnn", "mask-rcnn", "cascade-rcnn", "cascade-mask-rcnn", "rcnn", ""),
    **GENERAL,
    "--method": ("multi-task", "multi-task:backbone=run", "multi-task:backbone=", "isda", "multi-task:x=1"),
    "--backbone": ("fast-cnn", "resnet-8", "run", "interrupted", "nowhere", "image.png", "timm:nothing", ""),
    "--backbone-weights": ("run/model.safetensors", "table.csv", "nowhere", "run", ""),
    "--backbone-options": ("width 0.1", "width", "width nan", "depth 3", "a b", "width 1e9"),
    "--batch-norm": ("frozen", "trained", "nothing"),
    "--frozen-stages": NUMBERS,
    "--min-size": ("32", "64", *NUMBERS),
    "--image-size": ("32", "64", *NUMBERS),
    "--max-size": ("32", "31", "64", *NUMBERS),
    "--fpn-channels": ("4", *NUMBERS),
    "--head-dim": ("4", *NUMBERS),
    "--anchor-scale": NUMBERS,
    "--proposals": ("5", *NUMBERS),
    "--box-samples": ("4", *NUMBERS),
    "--warm-up": ("0.5", "3steps", "steps", *NUMBERS),
}
GENERATION: dict[str, Sequence[str]] = {
    "--data": DATA,
    "--network": ("dcgan", "dcgan-per-class", "resnet-8", ""),
    **GENERAL,
    "--method": ("wgan", "wgan:penalty=10", "wgan:penalty=nan", "cgan", "acgan", "infogan", "gan", "wgan:clip=-1"),
    "--labels": ("10", "20", "21", "1298", *NUMBERS),
    "--held-out": ("0", "10", "100", "1297", *NUMBERS),
    "--width": ("0.05", *NUMBERS),
    "--noise": ("4", *NUMBERS),
    "--judge": ("run", "generator", "interrupted", "nowhere", "image.png", ""),
}
SEGMENTED = {"--scales": ("1", "0.5", "1000", *NUMBERS), "--flip": ("", "yes"), "--window": SIZES}
JUDGED: dict[str, Sequence[str]] = {
    "--data-root": PATHS,
    "--device": MACHINE["--device"],
    "--json": ("-", "table.json", *PATHS),
}
FEW_SEEDS = ("1", "2", "0", "-1", "nan", "2147483648")
OPTIONS: dict[str, dict[str, Sequence[str]]] = {
    "segment train": {**SEGMENTATION, **MACHINE, "--method": METHODS},
    "segment compare": {**SEGMENTATION, **MACHINE, **SPREAD, "--seeds": FEW_SEEDS},
    "segment tune": {**SEGMENTATION, **MACHINE, **SPREAD, "--trials": NUMBERS, "--widen": NUMBERS},
    "segment evaluate": {
        **SEGMENTED,
        **JUDGED,
        "--data": SCENE_DATA,
        "--part": ("train", "validation", "test", "nothing"),
    },
    "segment predict": {**SEGMENTED, "--device": MACHINE["--device"], "--json": ("-", *PATHS), "--out": PATHS},
    "detect train": {**DETECTION, **MACHINE},
    "detect compare": {**DETECTION, **MACHINE, **SPREAD, "--seeds": FEW_SEEDS},
    "detect evaluate": {**JUDGED, "--data": SHAPE_DATA},
    "detect predict": {"--score": NUMBERS, "--device": MACHINE["--device"], "--json": ("-", *PATHS), "--out": PATHS},
    "generate train": {**GENERATION, **MACHINE},
    "generate evaluate": {**JUDGED, "--judge": GENERATION["--judge"], "--seed": NUMBERS},
    "generate sample": {
        "--columns": NUMBERS,
        "--seed": NUMBERS,
        "--per-class": NUMBERS,
        "--npz": ("new.npz", *PATHS),
        "--out": ("sheet.png", *PATHS),
        "--device": MACHINE["--device"],
    },
    "study": {**SETTINGS, **MACHINE, **SPREAD, "--values": NUMBERS, "--seeds": FEW_SEEDS, "--json": ("-", *PATHS)},
    "reproduce": {
        **MACHINE,
        **SPREAD,
        "--scale": ("smoke", "huge", ""),
        "--only": ("CIFAR-10", "nothing", "CIFAR-10,nothing", *WORDS),
        "--seeds": FEW_SEEDS,
        "--precision": ("float32", "int8"),  # others take a while
        "--labelled-per-batch": ("2", "published", *NUMBERS),
        "--gpu-tflops": NUMBERS,
        "--gpu-bandwidth": NUMBERS,
        "--biggan": ("torch.nn.Linear", "nowhere.Class:file", *WORDS),
        "--html": ("page.html", *PATHS),
        "--json": ("-", *PATHS),
    },
    "explore": {
        "--directions": NUMBERS,
        "--images": NUMBERS,
        "--most": ("10", "20", *NUMBERS),
        "--generator": ("generator", "run", "nowhere", "image.png", ""),
        "--host": ("127.0.0.1", "localhost", "0.0.0.0", "::1", "256.1.1.1", "1.2.3.4", "é", "a b", ""),
        "--port": ("0", "-1", "65536", "nan", "99999999999999999999"),
        "--data-root": PATHS,
        "--device": MACHINE["--device"],
    },
    "export": {"--for": ("torchvision", "timm", "mmdetection", "nothing", "")},
    "train": {
        **SETTINGS,
        **MACHINE,
        "--method": METHODS,
        "--hook": ("nowhere:Hook", "isda.lab.engine:Hook", "os:path", "x"),
    },
    "compare": {
        **SETTINGS,
        **MACHINE,
        "--method": METHODS,
        "--seeds": ("0", "-1", "nan"),
        "--plan": ("0", "-1", "nan", "1e309"),
        **SPREAD,
    },
    "tune": {
        **SETTINGS,
        **MACHINE,
        "--method": METHODS,
        "--search": (
            "lambda_0=0.1,1",
            "lambda_0=1..2",
            "lr=0.1,nan",
            "=",
            "lambda_0=",
            "nothing=1",
            "isda:lambda_0=-1",
        ),
        "--sampler": ("grid", "tpe", "random", "nothing"),
        "--trials": NUMBERS,
        "--widen": NUMBERS,
        "--choose-seeds": NUMBERS,
        "--by": ("error", "nll", "nothing", ""),
        "--seeds": ("0", "-1", "nan"),
        **SPREAD,
    },
    "report": {
        "--out": ("page.html", *PATHS),
        "--title": WORDS,
        "--across": ("",),
        "--plan": NUMBERS,
        "--accuracy": ("",),
        "--json": ("-", "table.json", *PATHS),
    },
    "evaluate": {"--data": DATA, "--data-root": PATHS, "--device": MACHINE["--device"], "--json": ("-", *PATHS)},
    "visualize": {
        "--generator": ("run", "nowhere", "image.png", "torch.nn.Linear", "torch.nn.Identity:run", ""),
        "--truncation": NUMBERS,
        "--images": NUMBERS,
        "--augmented": NUMBERS,
        "--classes": ("0", "ten", ""),
        "--strength": NUMBERS,
        "--iterations": NUMBERS,
        "--pixel-weight": NUMBERS,
        "--tolerance": NUMBERS,
        "--seed": NUMBERS,
        "--out": ("seen", *PATHS),
        "--data-root": PATHS,
        "--device": MACHINE["--device"],
        "--json": ("-", *PATHS),
    },
    "transfer": {
        **{
            name: SETTINGS[name] for name in ("--labels", "--held-out", "--epochs", "--lr", "--batch-size", "--augment")
        },
        "--how": ("probe", "fine-tune", "nothing", ""),
        **SPREAD,
        **MACHINE,
    },
    "directions": {
        "--classes": ("0", "9", "cat", "", "é"),
        "--directions": NUMBERS,
        "--images": NUMBERS,
        "--judge": ("run", "interrupted", "nowhere", "image.png", ""),
        "--most": ("10", "20", *NUMBERS),
        "--out": ("page.html", *PATHS),
        "--data-root": PATHS,
        "--device": MACHINE["--device"],
        "--json": ("-", *PATHS),
    },
    "predict": {"--top": NUMBERS, "--json": ("-", *PATHS)},
    "tightness": {
        "--strengths": NUMBERS,
        "--lambda-0": NUMBERS,
        "--images": ("2", "-1", "0", "nan", "20"),
        "--draws": ("4", "7", "0", "-2"),
        "--json": ("-", *PATHS),
    },
    "map": {
        "--by": ("tsne", "nothing"),
        "--images": ("40", "3", "0", "-1", "nan"),
        "--perplexity": ("5", "0", "-1", "nan", "1e9"),
        "--neighbours": ("1", "0", "100000"),
        "--json": ("-", *PATHS),
    },
    "run": {"--own": ("nowhere:Task", "os.path", "x", ""), "--problem": ("-", *PATHS)},
    "embed": {
        "--data": DATA,
        "--network": (*NETWORKS, "run", "interrupted", "."),
        "--pretrained": ("timm", "run/model.safetensors", "run/config.json", *PATHS),
        "--image-size": ("8", "16", *NUMBERS),
        "--mean": NUMBERS,
        "--std": NUMBERS,
        "--train": ("10", *NUMBERS),
        "--test": ("10", *NUMBERS),
        "--batch-size": NUMBERS,
        "--data-root": PATHS,
        "--device": MACHINE["--device"],
        "--out": ("new.npz", "run", "nowhere/new.npz", "a\tb.npz", ""),
        "--json": ("-", *PATHS),
    },
    "classify": {
        "--test": ("table.csv", *PATHS),
        "--split": NUMBERS,
        "--label": ("b", *WORDS),
        "--ignore": ("a", *WORDS),
        "--lambda-0": ("auto", *NUMBERS),
        "--C": ("auto", *NUMBERS),
        "--covariance": ("within", "shrunk", "full", "diagonal", "nothing", ""),
        "--bound": ("jensen", "tilted", "nothing"),
        "--offset": ("logit-adjustment", "ldam", "nothing", ""),
        "--seed": NUMBERS,
        "--predictions": ("answers.csv", *PATHS),
        "--id": ("a", *WORDS),
        "--save": ("saved.safetensors", *PATHS),
        "--model": ("table.csv", *PATHS),
        "--json": ("-", *PATHS),
    },
    "networks": {
        "--only": ("resnet-8", "nothing", ""),
        "--paper": ("", "yes"),
        "--steps": NUMBERS,
        "--batch-size": NUMBERS,
        "--json": ("-", *PATHS),
    },
    "methods": {"--json": ("-", "table.json", *PATHS)},
    "data": {"--data-root": PATHS, "--show": ("sheet.png", "sheet.nothing", *PATHS), "--json": ("-", *PATHS)},
    "completion": {},
}
SMALL: dict[str, dict[str, str]] = {
    **dict.fromkeys(("train", "compare", "tune", "study"), TINY),
    **dict.fromkeys(("segment train", "segment compare", "segment tune"), SCENES),
    **dict.fromkeys(("detect train", "detect compare"), SHAPES),
    "generate train": {**IMAGES, "judge": "run"},
    "embed": {"data": "digits", "network": "fast-cnn", "train": "10", "test": "10", "out": "new.npz"},
    "visualize": {"generator": "generator", "iterations": "2", "images": "2", "augmented": "1"},
    "directions": {"most": "20"},
    "explore": {"most": "20"},
    "map": {"images": "40", "perplexity": "5"},
    "tightness": {"images": "10", "draws": "4"},
    "networks": {"only": "resnet-8"},
    "classify": {"lambda-0": "0.5", "C": "1"},
    "generate sample": {"columns": "2", "per-class": "2"},
}
"""What keeps a command short, where nothing else is said."""
RUNS = {"segment": "segmented", "detect": "detected", "generate": "generator"}
"""The run folders of groups; those of the others are called run."""
RUN_FIRST = ("evaluate", "predict", "report", "transfer", "directions", "tightness", "map", "visualize", "explore")
"""Commands whose first word is the folder of a run."""
OFTEN = {"train": 6, "evaluate": 2, "data": 2, "segment train": 3, "detect train": 3, "generate train": 3, "study": 2}
"""How often a command is tried, where not once, in each turn of all commands."""
TURN = [name for name in NAMES for _ in range(OFTEN.get(name, 1))]
INFINITE = ("--checkpoint-minutes", "--title", "--only", "--label", "--ignore", "--id")
"""Options that may be infinite, or are texts."""


def random_words(command: str, chance: random.Random) -> list[str]:
    """A command with options; its folders are "run", which holds a run, and "new", which is not there yet."""
    known = OPTIONS.get(command, {})
    count = min(len(known), chance.choice([0, 1, 1, 1, 2, 2, 3, 5]))
    given = {name: chance.choice(known[name]) for name in chance.sample(sorted(known), count)}
    words = [*command.split(), *_positional(command, chance)]
    many = command.split()[-1] in ("compare", "tune", "study") or command in ("reproduce", "transfer")
    if many and given.get("--on") in ("ray", "slurm"):
        given["--on"] = "rya"  # both need a cluster, or start one
    if command == "transfer":
        words += ["--data", *chance.choices(DATA, k=chance.choice([0, 1, 2])), "nothing", "--out", "new"]
    if command.split()[-1] in ("compare", "tune"):
        # Mostly with a method that is not there: it checks all it can, and trains nothing.
        methods = ["multi-task"] if command == "detect compare" else METHODS
        one = [] if command != "tune" and chance.random() < 0.2 else ["nothing"]
        words += ["--methods", *(chance.choices(methods, k=chance.choice([0, 1, 2]) if one else 1)), *one]
        given.setdefault("--seeds", "1") if command.split()[-1] == "compare" else None
    if command == "study":
        words += ["--methods", chance.choice(["isda"] * 4 + list(METHODS)), *chance.choice([[], [], ["isda"]])]
        given = {"--values": "0.5", "--seeds": "1"} | given
    given = {f"--{name}": value for name, value in SMALL.get(command, {}).items()} | given
    if command.split()[-1] in ("train", "compare", "tune", "study"):
        there = RUNS.get(words[0], "run")
        words += ["--out", chance.choice(["new"] * 8 + [there, "image.png"])]
        words += ["--resume"] if words[-1] == there or (command.endswith("train") and chance.random() < 0.2) else []
    pairs = ("--network-options", "--backbone-options")
    for name, value in given.items():
        words += [name, *(value.split(" ") if name in pairs else [value] if value or count > 2 else [])]
    words += ["--no-open"] if command == "explore" else []
    if chance.random() < 0.1:
        words.insert(chance.randrange(1, len(words) + 1), chance.choice([*WORDS, "--nothing", *sorted(HELP)]))
    return words


def _positional(command: str, chance: random.Random) -> list[str]:
    group, _, inner = command.partition(" ")
    if command in RUN_FIRST or inner in ("evaluate", "predict", "sample"):
        run = chance.choice([RUNS.get(group, "run")] * 6 + ["interrupted", "nowhere", "image.png", ".", "", "run"])
        images = chance.choice([["image.png"], ["image.png", "nowhere.png"], [], ["run"], ["table.csv"], ["wide.png"]])
        return [run, *(images if command.endswith("predict") else [])]
    if command == "export":
        return [chance.choice(["exported"] * 4 + ["run", "nowhere", "image.png", ""]), "--out", "new.pth"]
    if command == "study":
        return [chance.choice(["sensitivity"] * 4 + ["explicit", "nothing", ""])]
    if command == "reproduce":
        # What is there already, and what is refused: anything else takes a while.
        return chance.choice([[*REPRODUCED, "--out", "made"], ["nothing"], ["table-9"], [], ["table-2", "figure-99"]])
    if command == "data":
        return chance.choice([[], [chance.choice(DATA)], [chance.choice(DATA)]])
    if command == "methods":
        return chance.choice([[], [chance.choice(METHODS)]])
    if command == "classify":
        return [chance.choice(["table.csv"] * 6 + ["run/metrics.jsonl", "image.png", "nowhere.npz", "run", "."])]
    if command == "run":
        plan = chance.choice(["run/config.json", "run/result.json", "run", "image.png", "nowhere", ""])
        return [plan, chance.choice(NUMBERS)]
    if command == "completion":
        return [chance.choice(["bash", "zsh", "fish", ""])]
    return []


# -- cases -------------------------------------------------------------------------------------------------------------

FOLDERS = {
    "run": "supervised",
    "interrupted": "supervised-interrupted",
    "segmented": "segmentation",
    "detected": "detection",
    "generator": "generation",
    "exported": "timm",
    "made": "reproduction",
}
"""Those of a case, by the subjects that they are copies of."""


def options_case(top: Path, number: int, chance: random.Random, expected: dict[str, Any]) -> Case:
    """One case in the current folder; as many in a row as TURN is long have every command."""
    command = TURN[number % len(TURN)]
    words = random_words(command, chance)
    for name, subject in FOLDERS.items():
        if name in ("run", "interrupted") or name in words:
            shutil.copytree(top / subject, name)
    for name in ("image.png", "wide.png"):
        shutil.copyfile(top / "data" / name, name)
    Path("table.csv").write_text(
        "a,b,label\n" + "".join(f"{n % 3},{n % 5},{'xy'[n % 2]}\n" for n in range(12)) + "1,2,\n"
    )
    ended = run(words, chance.sample([*SERVED, *ODD_PATHS], 3))
    problem = common_problem(words, ended)
    config = Path("new") / "config.json"
    asked = HELP.isdisjoint(words)
    if problem is None and ended.status == 0 and asked:
        problem = not_finite(words, INFINITE) or _spoilt(words)
    if problem is None and ended.status == 0 and config.exists():
        problem = _unlike(words, json.loads(config.read_text()))
    elif problem is None and ended.status != 0 and config.exists() and "step" not in ended.err:
        problem = "failed after the folder was made"
    return Case(command, str(words), ended.status, None if problem is None else ended.shown(problem))


def _spoilt(words: list[str]) -> str | None:
    """Whether something was made of data that nothing can be made of."""
    for option, name in itertools.pairwise(words):
        if option == "--data" and name in SPOILT:
            return f"{name} was accepted"
    return None


def _unlike(words: list[str], config: dict[str, Any]) -> str | None:
    """Whether a run was made with another number than the words say."""
    for option, text in itertools.pairwise(words):
        name = option.removeprefix("--").replace("-", "_")
        stored = config.get(name)
        if option.startswith("--") and isinstance(stored, int | float) and not isinstance(stored, bool):
            with contextlib.suppress(ValueError):
                if float(text) != float(stored):
                    return f"{option} {text} became {stored}"
    return None

"""Random option sets of every command: values that are valid, on the border, and absurd."""

from __future__ import annotations

import random
from collections.abc import Sequence

from isda.cli.main import COMMANDS

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
    "99999999999999999999",
)
WORDS = ("", "text", "None", "true", "é", "\x1b[31mred", "a b", "a/b", "..", "--", "-", "=", ":", "x" * 3000, "🙂")
# Nothing outside the folder of the case, which a mistake of ours could harm.
PATHS = ("", ".", "..", "nowhere/at/all", "image.png", "run", "a\x00b", "x" * 300)
METHODS = (
    *("isda", "cross-entropy", "isda-tilted", "isad", "isda:", "isda:lambda_0", "isda:lambda_0=", "isda:=1", ":", "."),
    *("isda:lambda_0=nan", "isda:lambda_0=-1", "isda:lambda_0=0", "isda:lambda_0=1e30", "isda:lambda_0=1,lambda_0=2"),
    *("isda:covariance=diagonal", "isda:covariance=low_rank,rank=4", "isda:covariance=low_rank,rank=0"),
    *("isda:covariance=shared", "isda:covariance=learned", "isda:covariance=identity", "isda:covariance=nothing"),
    *("isda:rank=1000000000", "isda:decay=0.9", "isda:decay=2", "isda:decay=nan", "isda-tilted:tilt_steps=0"),
    *("focal:gamma=2", "lq:q=2", "large-margin:margin=1000000000", "center+isda:weight=nan", "distribution-net"),
    *("isda-tilted:tilt_steps=3", "isda:label_smoothing=1.5", "isda:label_smoothing=0.1", "isda:schedule=constant"),
    *("cross-entropy:lambda_0=1", "nowhere.Method", "os.path.join", "json:JSONDecoder", "isda.engine.Method"),
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
    *("fast-cnn", "resnet-8", "cnn-13", "resnet-50", "densenet-bc-100-12", "timm:", "timm:nothing", "resnet", ""),
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
SETTINGS: dict[str, Sequence[str]] = {
    "--data": DATA,
    "--network": NETWORKS,
    "--seed": NUMBERS,
    "--scale": ("paper", "small", "smoke", "huge", ""),
    "--epochs": ("0", "1", "2", "-1", "nan", "1.5", "99999999999999999999"),
    "--evaluate-every": NUMBERS,
    "--batch-size": ("1", "2", "7", "20", "21", "1000000", *NUMBERS),
    "--lr": NUMBERS,
    "--weight-decay": NUMBERS,
    "--precision": ("float32", "float64", "bfloat16", "float16", "int8"),
    "--ema": ("0.9", "1", "0", "nan"),
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
    "--warm-up": ("1", "0.5", "3steps", "steps", "1e3", "", *NUMBERS),
    "--layer-decay": ("0.5", "1", *NUMBERS),
    "--network-options": ("width 0.1", "num_classes 5", "depth", "in_channels 3", "a b", "width", "x [1e999]"),
    "--generated": ("run", "nowhere", "image.png", ""),
    "--generated-share": ("0.1667", *NUMBERS),
    "--unlabelled": ("20", "40", "1277", *NUMBERS),
    "--labelled-per-batch": ("2", "6", *NUMBERS),
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
    "--task": ("classification", "semi-supervised", "nothing", "os:path", "isda.engine:Job", ":", ""),
}
SPREAD: dict[str, Sequence[str]] = {
    "--on": ("local", "ray", "slurm", "rya", "ray:", "ray:nowhere", "slurm:here", ":", ""),
    "--jobs": NUMBERS,
    "--processes-per-run": NUMBERS,
    "--cpus-per-run": NUMBERS,
    "--gpus-per-run": NUMBERS,
    "--sbatch": ("partition=gpu", "--partition", "a b", "", "=", "x\n#SBATCH"),
}
OPTIONS: dict[str, dict[str, Sequence[str]]] = {
    "train": {
        **SETTINGS,
        **MACHINE,
        "--method": METHODS,
        "--hook": ("nowhere:Hook", "isda.engine:Hook", "os:path", "x"),
    },
    "compare": {**SETTINGS, **MACHINE, "--method": METHODS, "--seeds": ("0", "-1", "nan"), **SPREAD},
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
    "report": {"--out": ("page.html", *PATHS), "--title": WORDS, "--json": ("-", "table.json", *PATHS)},
    "evaluate": {"--data": DATA, "--data-root": PATHS, "--device": MACHINE["--device"], "--json": ("-", *PATHS)},
    "visualize": {
        "--generator": ("run", "nowhere", "image.png", ""),
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
        "--out": ("new.npz", "run", "nowhere/new.npz", "a\x00b.npz", ""),
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
        "--json": ("-", *PATHS),
    },
    "networks": {},
    "data": {"--data-root": PATHS, "--show": ("sheet.png", "sheet.nothing", *PATHS), "--json": ("-", *PATHS)},
    "completion": {},
}
TINY = {"--network": "fast-cnn", "--width": "0.1", "--labels": "20", "--batch-size": "10", "--epochs": "1"}
RUN_FIRST = ("evaluate", "predict", "report", "transfer", "directions", "tightness", "map", "visualize")
"""Commands whose first word is the folder of a run."""
OFTEN = {"train": 12, "compare": 2, "tune": 2, "report": 2, "evaluate": 4, "predict": 2, "networks": 0.5, "data": 3}
"""How much more often a command is tried than others."""


def random_words(chance: random.Random) -> list[str]:
    """A command with options; its folders are "run", which holds a run, and "new", which is not there yet."""
    command = chance.choices(list(COMMANDS), [OFTEN.get(name, 1) for name in COMMANDS])[0]
    known = OPTIONS.get(command, {})
    count = min(len(known), chance.choice([0, 1, 1, 1, 2, 2, 3, 5]))
    given = {name: chance.choice(known[name]) for name in chance.sample(sorted(known), count)}
    words = _positional(command, chance)
    if command == "transfer":
        words += ["--data", *chance.choices(DATA, k=chance.choice([0, 1, 2])), "nothing", "--out", "new"]
    if command in ("compare", "tune"):
        # With a method that is not there: it checks all it can, and starts no processes.
        words += ["--methods", *chance.choices(METHODS, k=chance.choice([0, 1, 2])), "nothing"]
    if command == "embed":
        small = {"--data": "digits", "--network": "fast-cnn", "--train": "10", "--test": "10", "--out": "new.npz"}
        given = {**small, **given}
    if command in ("train", "compare", "tune"):
        given = {**TINY, **given}
        words += ["--out", chance.choice(["new"] * 8 + ["run", "image.png"])]
        words += ["--resume"] if command == "train" and chance.random() < 0.2 else []
    for name, value in given.items():
        words += [name, *(value.split(" ") if name == "--network-options" else [value] if value or count > 2 else [])]
    if chance.random() < 0.1:
        words.insert(chance.randrange(len(words) + 1), chance.choice([*WORDS, "--help", "--nothing", "-h"]))
    return [command, *words]


def _positional(command: str, chance: random.Random) -> list[str]:
    if command not in OPTIONS:
        return [chance.choice([*WORDS, "--help", "--nothing", "run"]), "--nothing"]
    if command in RUN_FIRST:
        run = chance.choice(["run"] * 6 + ["interrupted", "nowhere", "image.png", ".", ""])
        images = chance.choice([["image.png"], ["image.png", "nowhere.png"], [], ["run"], ["run/config.json"]])
        return [run, *(images if command == "predict" else [])]
    if command == "data":
        return chance.choice([[], [chance.choice(DATA)], [chance.choice(DATA)]])
    if command == "classify":
        return [chance.choice(["table.csv"] * 6 + ["run/metrics.jsonl", "image.png", "nowhere.npz", "run", "."])]
    if command == "networks":
        return [chance.choice([*WORDS[1:], "--json", "--help", "--nothing"])]  # the table itself takes a while
    if command == "run":
        plan = chance.choice(["run/config.json", "run/result.json", "run", "image.png", "nowhere", ""])
        return [plan, chance.choice(NUMBERS)]
    if command == "completion":
        return [chance.choice(["bash", "zsh", "fish", ""])]
    return []

"""The models that `benchmarks/attach.py` attaches to: how each is made, and a batch of two for it."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["CLASSES", "Sample", "catalogue"]

CLASSES = 7


class Sample(NamedTuple):
    """A model, the arguments of its forward pass, and labels."""

    model: nn.Module
    inputs: dict[str, Tensor] | tuple[Tensor, ...]
    targets: Tensor


Maker = Callable[[], Sample]


def catalogue() -> Iterator[tuple[str, str, Maker]]:
    """Family, name and maker of every model."""
    yield from _transformers()
    yield from _smp()
    yield from _torchvision()
    yield from _timm()


def _labels(*size: int) -> Tensor:
    return torch.arange(torch.Size(size).numel()).reshape(size) % CLASSES


# -- timm --------------------------------------------------------------------------------------------------------------


SMALLEST = Path(__file__).parent / "timm_smallest.csv"
_SMALL_IMAGE = 96
LARGEST = 3e8
"""Parameters; deepseek_vit, the only module without a smaller model, takes more than 19 GB in float64."""


def _timm() -> Iterator[tuple[str, str, Maker]]:
    with SMALLEST.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["parameters"]))
    for row in rows:  # the quickest first: a run may be stopped, and go on later
        if float(row["parameters"]) < LARGEST:
            yield "timm", row["model"], partial(_timm_sample, row["model"])


def write_smallest() -> None:
    """Find the smallest model of every module of timm that has a classifier, without memory: some minutes."""
    import timm

    with SMALLEST.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("module", "model", "parameters"))
        for module in timm.list_modules():
            sizes = {name: _timm_size(name) for name in timm.list_models(module=module)}
            smallest = min(sizes, key=lambda name: sizes[name], default=None)
            if smallest is not None and _has_classifier(smallest):
                writer.writerow((module, smallest, sizes[smallest]))


def _timm_size(name: str) -> float:
    """The number of parameters; a model that cannot be made without memory is taken for a large one."""
    import timm

    try:
        with torch.device("meta"):
            return sum(p.numel() for p in timm.create_model(name, pretrained=False).parameters())
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return float("inf")


def _has_classifier(name: str) -> bool:
    import timm

    return bool(timm.get_pretrained_cfg(name, allow_unregistered=True).to_dict().get("classifier"))


def _timm_sample(name: str) -> Sample:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=CLASSES)
    channels, *size = model.pretrained_cfg["input_size"]
    if not model.pretrained_cfg.get("fixed_input_size") and _takes(model, channels, _SMALL_IMAGE):
        size = [_SMALL_IMAGE, _SMALL_IMAGE]
    return Sample(model, (torch.randn(2, channels, *size),), _labels(2))


def _takes(model: nn.Module, channels: int, size: int) -> bool:
    """Whether a model takes small images, which are faster."""
    try:
        with torch.inference_mode():
            model.eval()(torch.randn(1, channels, size, size))
    except (RuntimeError, AssertionError, ValueError):
        return False
    return True


# -- torchvision -------------------------------------------------------------------------------------------------------

_CLASSIFICATION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 "
    "mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d wide_resnet50_2 "
    "shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_32"
)
_SEGMENTATION = (
    "deeplabv3_mobilenet_v3_large deeplabv3_resnet50 deeplabv3_resnet101 fcn_resnet50 fcn_resnet101 "
    "lraspp_mobilenet_v3_large"
)


def _torchvision() -> Iterator[tuple[str, str, Maker]]:
    for name in _CLASSIFICATION.split():
        yield "torchvision", name, partial(_torchvision_sample, name)
    for name in _SEGMENTATION.split():
        yield "torchvision segmentation", name, partial(_torchvision_pixels, name)


def _torchvision_sample(name: str) -> Sample:
    from torchvision import models

    settings: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    size = {"inception_v3": 299, "vit_b_32": 224, "maxvit_t": 224}.get(name, 64)
    model = models.get_model(name, weights=None, num_classes=CLASSES, **settings)
    return Sample(model, (torch.randn(2, 3, size, size),), _labels(2))


def _torchvision_pixels(name: str) -> Sample:
    from torchvision import models

    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    return Sample(model, (torch.randn(2, 3, 64, 64),), _labels(2, 64, 64))


# -- segmentation_models_pytorch ---------------------------------------------------------------------------------------

_DECODERS = "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet Segformer DPT"  # all twelve


def _smp() -> Iterator[tuple[str, str, Maker]]:
    for name in _DECODERS.split():
        yield "segmentation_models_pytorch", name, partial(_smp_sample, name)


def _smp_sample(name: str) -> Sample:
    import segmentation_models_pytorch as smp

    encoder, size = ("tu-vit_tiny_patch16_224", 224) if name == "DPT" else ("resnet18", 128)
    settings: dict[str, Any] = {"dynamic_img_size": True} if name == "DPT" else {}
    model = getattr(smp, name)(encoder, encoder_weights=None, classes=CLASSES, **settings)
    return Sample(model, (torch.randn(2, 3, size, size),), _labels(2, size, size))


# -- transformers ------------------------------------------------------------------------------------------------------

_TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "head_dim": 16}
_BART = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_UPER = {"hidden_size": 32, "pool_scales": [1, 2], "auxiliary_channels": 16, "auxiliary_in_channels": 32}
_BEIT = {
    **_VISION,
    "num_hidden_layers": 4,
    "out_indices": [1, 2, 3, 4],
    "auxiliary_channels": 16,
    "pool_scales": [1, 2],
}
_STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}

# What a class is for, its name without the task, and the settings that keep it small.
_CLASSES: dict[str, dict[str, dict[str, Any]]] = {
    "ImageClassification": {
        "ViT": _VISION,
        "DeiT": _VISION,
        "Beit": _VISION,
        "Dinov2": _VISION,
        "Data2VecVision": _VISION,
        "Swin": {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "window_size": 4,
        },
        "ConvNext": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        "ResNet": _STAGES,
        "RegNet": {**_STAGES, "groups_width": 8},
        "PoolFormer": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        "MobileNetV2": {"depth_multiplier": 0.25, "finegrained_output": False},
        "Segformer": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
        "Levit": {
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [1, 2, 3],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 4, 4, 2, 2]],
        },
    },
    "ImageClassificationWithTeacher": {
        "DeiT": _VISION,
        "Levit": {
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [1, 2, 3],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 4, 4, 2, 2]],
        },
    },
    "SequenceClassification": {
        "Bert": _TEXT,
        "Roberta": _TEXT,
        "Electra": {**_TEXT, "embedding_size": 16},
        "Albert": {**_TEXT, "embedding_size": 16},
        "DebertaV2": _TEXT,
        "ModernBert": {**_TEXT, "cls_token_id": 1, "sep_token_id": 2, "eos_token_id": 2, "bos_token_id": 1},
        "DistilBert": {
            "vocab_size": 50,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
        },
        "XLNet": {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
        "Funnel": {"vocab_size": 50, "block_sizes": [1, 1], "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 48},
        "Bart": _BART,
        "T5": {
            "vocab_size": 50,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 48,
            "num_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
        "GPT2": {
            "vocab_size": 50,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "Llama": _DECODER,
        "Qwen2": _DECODER,
        "Mistral": _DECODER,
        "GPTNeoX": _TEXT,
    },
    "TokenClassification": {
        "Bert": _TEXT,
        "Roberta": _TEXT,
        "Electra": {**_TEXT, "embedding_size": 16},
        "DistilBert": {
            "vocab_size": 50,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
        },
        "ModernBert": {**_TEXT, "cls_token_id": 1, "sep_token_id": 2, "eos_token_id": 2, "bos_token_id": 1},
        "GPT2": {
            "vocab_size": 50,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "Llama": _DECODER,
        "XLNet": {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
    },
    "SemanticSegmentation": {
        "Segformer": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
        "UperNet": _UPER,
        "Beit": _BEIT,
        "MobileNetV2": {"depth_multiplier": 0.25, "finegrained_output": False},
        "MobileViT": {
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 24, 32, 32, 32],
            "image_size": 64,
            "num_attention_heads": 2,
            "aspp_out_channels": 16,
        },
        "DPT": {
            **_VISION,
            "num_hidden_layers": 4,
            "image_size": 64,
            "is_hybrid": False,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
        },
    },
}


def _transformers() -> Iterator[tuple[str, str, Maker]]:
    for task, models in _CLASSES.items():
        for name, settings in models.items():
            yield "transformers", f"{name}For{task}", partial(_transformers_sample, name, task, settings)


def _transformers_sample(name: str, task: str, settings: dict[str, Any]) -> Sample:
    library = importlib.import_module("transformers")
    if name == "UperNet":
        backbone = library.ConvNextConfig(
            hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
        )
        settings = {**settings, "backbone_config": backbone, "auxiliary_in_channels": 24}
    config = getattr(library, f"{name}Config")(num_labels=CLASSES, **settings)
    model = getattr(library, f"{name}For{task}")(config)
    if task in ("SequenceClassification", "TokenClassification"):
        tokens = torch.randint(3, 50, (2, 9))
        tokens[:, -1] = 2
        mask = torch.ones_like(tokens)
        inputs = {"input_ids": tokens, "attention_mask": mask}
        return Sample(model, inputs, _labels(2) if task.startswith("Sequence") else _labels(2, 9))
    size = 64 if task == "SemanticSegmentation" else getattr(config, "image_size", None) or 64
    pixels = {"pixel_values": torch.randn(2, 3, size, size)}
    return Sample(model, pixels, _labels(2, size, size) if task == "SemanticSegmentation" else _labels(2))


if __name__ == "__main__":
    write_smallest()

"""Small generators with the interfaces of the two BigGANs: constructor, attributes, call and files of weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

CLASSES, NOISE, SIDE = 6, 5, 32


class _Images(nn.Module):
    """Inputs to images (N, 3, SIDE, SIDE) in [-1, 1]."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.start, self.colours = nn.Linear(inputs, 8 * 4 * 4), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.start(inputs).view(-1, 8, 4, 4)
        return torch.tanh(self.colours(nn.functional.interpolate(maps, (SIDE, SIDE), mode="bilinear")))


class TorchBigGAN(nn.Module):
    """As BigGAN-PyTorch: ``network(z, network.shared(class))``, with dim_z and n_classes."""

    def __init__(self) -> None:
        super().__init__()
        self.dim_z, self.n_classes = NOISE, CLASSES
        self.shared, self.images = nn.Embedding(CLASSES, 4), _Images(NOISE + 4)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.images(torch.cat([z, y], 1))


class HubBigGAN(nn.Module):
    """As pytorch-pretrained-biggan: ``network(z, one-hot class, truncation)``, config and from_pretrained(FOLDER)."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Linear(config.num_classes, config.z_dim, bias=False)
        self.generator = _Images(2 * config.z_dim)

    @classmethod
    def from_pretrained(cls, folder: str) -> HubBigGAN:
        network = cls(SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text())))
        network.load_state_dict(torch.load(Path(folder) / "pytorch_model.bin", weights_only=True))
        return network

    def forward(self, z: Tensor, class_label: Tensor, truncation: float) -> Tensor:
        assert 0 < truncation <= 1
        return truncation * self.generator(torch.cat([z, self.embeddings(class_label)], 1))


def write_weights(folder: Path) -> tuple[str, str]:
    """Weights of both, as their users have them; the words of ``--generator``."""
    torch.manual_seed(0)
    torch.save(TorchBigGAN().state_dict(), folder / "G_ema.pth")
    hub = folder / "biggan-small"
    hub.mkdir()
    settings = {"z_dim": NOISE, "num_classes": CLASSES}
    (hub / "config.json").write_text(json.dumps(settings))
    torch.save(HubBigGAN(SimpleNamespace(**settings)).state_dict(), hub / "pytorch_model.bin")
    return f"small_biggan.TorchBigGAN:{folder / 'G_ema.pth'}", f"small_biggan.HubBigGAN:{hub}"

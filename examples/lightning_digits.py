"""ISDA in Lightning: one callback. 200 labelled digits of scikit-learn, a small network, some seconds on a CPU."""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda.integrations.lightning import ISDACallback


class Digits(pl.LightningModule):
    """Nothing in it knows of isda."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, index):
        """The augmented loss while the callback is there, cross-entropy without it."""
        return self.criterion(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        """As ever."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


if __name__ == "__main__":
    pl.seed_everything(0, verbose=False)
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train = DataLoader(TensorDataset(images[:200], labels[:200]), batch_size=20, shuffle=True)
    module, isda = Digits(), ISDACallback(lambda_0=0.5)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(max_epochs=10, accelerator="cpu", callbacks=[isda], **quiet).fit(module, train)
    with torch.no_grad():
        right = module.eval().network(images[200:]).argmax(1) == labels[200:]
    print(f"strength {isda.criterion.strength:g} at the end, test accuracy {right.float().mean():.1%}")

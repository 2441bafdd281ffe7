"""ISDA in fastai: one callback. 200 labelled digits of scikit-learn, a small network, some seconds on a CPU."""

import torch
from fastai.callback.schedule import Learner
from fastai.data.core import DataLoaders
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda.integrations.fastai import ISDACallback

if __name__ == "__main__":
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train = DataLoader(TensorDataset(images[:200], labels[:200]), batch_size=20, shuffle=True)
    test = DataLoader(TensorDataset(images[200:], labels[200:]), batch_size=500)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    learn = Learner(
        DataLoaders(train, test, device="cpu"),
        network,
        loss_func=CrossEntropyLossFlat(),
        metrics=accuracy,
        cbs=ISDACallback(lambda_0=0.5),
    )
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(10, 0.01)
        loss, right = learn.validate()
    print(f"strength {learn.isda.criterion.strength:g} at the end, test accuracy {right:.1%}")

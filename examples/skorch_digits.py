"""ISDA in skorch: one class. 200 labelled digits of scikit-learn, λ0 by cross-validation, some seconds on a CPU."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn

from isda.integrations.skorch import ISDANeuralNetClassifier


class Network(nn.Module):
    """Logits of ten digits; skorch makes a new one for every fit."""

    def __init__(self, width=64):
        super().__init__()
        self.hidden, self.classifier = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):
        """Logits (N, 10)."""
        return self.classifier(torch.relu(self.hidden(x)))


if __name__ == "__main__":
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = (digits.data / 16).astype("float32"), digits.target
    net = ISDANeuralNetClassifier(
        Network,
        criterion__lambda_0=0.5,
        max_epochs=8,
        batch_size=20,
        lr=0.1,
        optimizer__momentum=0.9,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    )
    search = GridSearchCV(net, {"criterion__lambda_0": [0.0, 0.5, 2.0]}, cv=2).fit(images[:200], labels[:200])
    print(f"{search.best_params_}, test accuracy {search.score(images[200:], labels[200:]):.1%}")

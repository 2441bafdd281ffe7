"""ISDA in Lightning Fabric: the loop is one's own, and so is the line with the criterion. Some seconds on a CPU."""

import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDALoss

if __name__ == "__main__":
    fabric, epochs = Fabric(accelerator="cpu"), 10
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train = DataLoader(TensorDataset(images[:200], labels[:200]), batch_size=20, shuffle=True)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9))
    train = fabric.setup_dataloaders(train)
    criterion = ISDALoss.attach(model, lambda_0=0.5, epochs=epochs, loader=train)

    for _ in range(epochs):
        for x, y in train:
            optimizer.zero_grad()
            fabric.backward(criterion(model(x), y))
            optimizer.step()
        fabric.log_dict({"isda/strength": criterion.strength, "isda/margin_variance": criterion.margin_variance})
    # The statistics are saved, and loaded by fabric.load, beside the model.
    fabric.save("digits-fabric.ckpt", {"model": model, "optimizer": optimizer, "criterion": criterion})

    x, y = fabric.to_device(images[200:]), fabric.to_device(labels[200:])
    with torch.no_grad():
        accuracy = (model.eval()(x).argmax(1) == y).float().mean()
    fabric.print(f"strength {criterion.strength:g} at the end, test accuracy {accuracy:.1%}")

"""ISDA in a loop with an Accelerator: a small network on scikit-learn's digits. For `accelerate launch`, too."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDALoss
from isda.integrations.accelerate import prepare_criterion

set_seed(0)
accelerator, epochs = Accelerator(gradient_accumulation_steps=2), 10
images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
digits = TensorDataset(images.float() / 16, labels)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
    DataLoader(TensorDataset(*digits[:1400]), batch_size=32, shuffle=True),
)
criterion = prepare_criterion(accelerator, ISDALoss.attach(model, lambda_0=0.5, epochs=epochs, loader=loader))

for _ in range(epochs):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(criterion(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.log({"isda_strength": criterion.strength, "isda_margin_variance": criterion.margin_variance})
    accelerator.save_state("digits-accelerate")  # the statistics are in it; accelerator.load_state("digits-accelerate")
x, y = (tensor.to(accelerator.device) for tensor in digits[1400:])
with torch.no_grad():
    accuracy = (model.eval()(x).argmax(1) == y).float().mean()
accelerator.print(f"strength {criterion.strength:g} after {criterion.step} forwards, test accuracy {accuracy:.1%}")
accelerator.end_training()

"""ISDA in transformers.Trainer: a small vision transformer on scikit-learn's digits, from random weights."""

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from isda.integrations.huggingface import ISDATraining

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
samples = [{"pixel_values": image, "labels": int(label)} for image, label in zip(images, labels, strict=True)]

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = ViTForImageClassification(
    ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.1, **sizes)
)
isda = ISDATraining(lambda_0=0.5)
trainer = Trainer(
    model,
    TrainingArguments(
        "digits-vit",
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=1e-2,
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=samples[:1400],
    eval_dataset=samples[1400:],
    compute_metrics=lambda seen: {"accuracy": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    compute_loss_func=isda.loss,
    callbacks=[isda],
)
trainer.train()  # after an interruption: trainer.train(resume_from_checkpoint=True)
accuracy = trainer.evaluate()["eval_accuracy"]
print(f"strength {isda.criterion.strength:g} after {isda.criterion.step} forwards, test accuracy {accuracy:.1%}")

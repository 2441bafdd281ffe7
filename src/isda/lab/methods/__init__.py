"""What a task trains with: ISDA, the baselines of its paper, mixup, and semi-supervised methods."""

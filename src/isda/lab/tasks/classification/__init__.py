"""Image classification: settings, methods, training and evaluation."""

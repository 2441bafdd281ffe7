"""Classification of images: the task's settings, methods, batches, step and evaluation."""

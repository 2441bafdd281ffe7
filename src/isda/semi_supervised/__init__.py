"""Semi-supervised classification: the methods of `isda.semi` as a task, with its settings and batches."""

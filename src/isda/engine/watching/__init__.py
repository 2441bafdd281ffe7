"""Who watches a run: hooks, progress on the terminal, TensorBoard."""

"""The laboratory: networks, data, training, comparison, reports, and the experiments of the paper."""

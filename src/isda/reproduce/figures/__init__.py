"""The figures of the paper, by what draws them."""

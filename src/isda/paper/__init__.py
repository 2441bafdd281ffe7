"""The paper's own numbers as data files."""

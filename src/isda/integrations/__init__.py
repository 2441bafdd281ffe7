"""ISDA where people already train: one module per library, none of which is imported before it is asked for."""

"""Generative adversarial networks: training and evaluation."""

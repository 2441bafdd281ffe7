"""Generative adversarial networks as a task of the engine: what they are trained by, and how good their images are."""

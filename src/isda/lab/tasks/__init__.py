"""Tasks of the engine: classification, semi-supervised learning, segmentation, detection, GANs, transfer."""

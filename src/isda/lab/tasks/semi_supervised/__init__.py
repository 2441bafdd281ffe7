"""Semi-supervised image classification with the methods of `isda.lab.methods.semi`."""

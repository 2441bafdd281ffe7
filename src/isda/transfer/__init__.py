"""What a backbone is worth elsewhere: features of a finished run, probed or fine-tuned on another data set."""

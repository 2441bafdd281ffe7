"""Transfer of a trained backbone to another data set: linear probe and fine-tuning."""

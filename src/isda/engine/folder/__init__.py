"""The run folder: what is in it, how each file is written so that nothing can break it, and how it is read back."""

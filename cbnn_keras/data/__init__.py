"""Training samples by index, their labels and their weights."""

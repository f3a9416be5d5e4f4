"""Models, data and augmentation of the paper; not library code."""

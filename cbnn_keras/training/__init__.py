"""A run inside `model.fit`: when to score, vote, reweight and save."""

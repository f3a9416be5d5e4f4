"""What hypothesis draws in several tests."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def ensembles(draw, min_members=1):
    """Probabilities, votes and labels; one column where k is 2, at times."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_members = draw(st.integers(min_members, 6))
    num_samples = draw(st.integers(1, 20))
    num_classes = draw(st.integers(2, 4))
    shape = (num_members, num_samples)
    probabilities = generator.dirichlet(np.full(num_classes, 0.7), shape)
    if num_classes == 2 and draw(st.booleans()):
        probabilities = probabilities[..., 1:]
    votes = generator.uniform(0.1, 5, num_members)
    return probabilities, votes, generator.integers(0, num_classes, num_samples)

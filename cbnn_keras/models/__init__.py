"""Keras models from outside: outputs, copies, state, statistics, replicas."""

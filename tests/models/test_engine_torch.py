"""What can be said of torch's engine without its backend."""

import pytest

torch = pytest.importorskip("torch")

from cbnn_keras.models.engine_torch import TorchEngine  # noqa: E402


@pytest.mark.parametrize("num_devices", [0, 1, 2])
def test_generators_of_devices_that_are_not_there(monkeypatch, num_devices):
    """A run of two GPUs is resumed on fewer."""
    engine, found = TorchEngine(), []
    state = engine.random_state()
    drawn = torch.rand(3)
    state |= {"cuda0": state["torch"], "cuda1": state["torch"]}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda part, number: found.append(number)
    )
    engine.set_random_state(state)
    assert found == list(range(num_devices))
    assert torch.equal(torch.rand(3), drawn)

"""Types that have no shape of ours, by a name that says whose it is."""

from typing import Any

Json = dict[str, Any]  # an object of JSON, as it is read and written
Logs = dict[str, Any]  # what Keras tells the hooks of callbacks

"""Types that have no shape of ours, by a name that says whose it is."""

from typing import Any

Json = dict[str, Any]  # an object of JSON, as it is read and written
# Keyword arguments that are passed on to what checks them.
Keywords = dict[str, Any]
# Classes and functions of the user, by the names that Keras knows them by.
NamedObjects = dict[str, Any]
Logs = dict[str, Any]  # what Keras tells the hooks of callbacks

"""What every folder may lean on: arguments, console, extras, files."""

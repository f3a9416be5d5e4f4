"""The command `cbnn`: files and arguments in, one public function called."""

"""static: the model cut to its first layers, prompt included; every paper's simplest baseline."""

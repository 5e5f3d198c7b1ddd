"""How a transformer may spend its layers. Knows nothing of bench."""

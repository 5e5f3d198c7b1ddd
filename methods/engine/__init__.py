"""The transformer itself, layer by layer.

Axes, in every shape comment: B batch (rows), T new positions, S slots of the cache, D width, H
query heads, L layers, V vocabulary, K drafted tokens.
"""

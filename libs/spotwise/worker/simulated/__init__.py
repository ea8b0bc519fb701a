"""Workers without a model: real roles and real planes, iterations that only last, tokens that are drawn from a hat.

Nothing here imports torch or transformers, so that a process of fifty workers is small.
"""

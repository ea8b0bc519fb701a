"""What a prompt worker and a token worker have in common, which is all but their home pool."""

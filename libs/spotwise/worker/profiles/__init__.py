"""Cost profiles that workers measure of their own engines."""

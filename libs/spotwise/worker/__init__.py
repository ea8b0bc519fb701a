"""The code that prompt workers and token workers share: all but their home pool."""

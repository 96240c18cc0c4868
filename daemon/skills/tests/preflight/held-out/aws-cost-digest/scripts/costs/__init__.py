"""Cost digest."""
__version__ = "0.2"

"""Energy-based models trained between two bounds."""

__version__ = "0.1.0"

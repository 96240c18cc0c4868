__all__ = ["http", "text"]

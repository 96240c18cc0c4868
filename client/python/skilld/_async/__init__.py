"""Implementation for asyncio, from which the blocking one is generated."""

def render(items): return str(items)

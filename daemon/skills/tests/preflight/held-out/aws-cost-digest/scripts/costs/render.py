def render(rows, fmt):
    try:
        from tabulate import tabulate
    except ImportError:
        return "\n".join(f"{k:40} {v:+.2f} USD" for k, v in rows)
    return tabulate(rows, headers=["service", "delta/day"], tablefmt="github" if fmt == "md" else "simple")

import sys

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import yaml

try:
    import seaborn as sns
    sns.set_theme(style="whitegrid")
except ModuleNotFoundError:
    plt.style.use("ggplot")

spec = yaml.safe_load(open(sys.argv[1]))
fig, ax = plt.subplots(figsize=spec.get("size", (8, 4.5)))
for s in spec["series"]:
    y = np.asarray(s["y"], float)
    x = s.get("x", np.arange(len(y)))
    getattr(ax, {"bar": "bar", "line": "plot"}[spec["kind"]])(x, y, label=s["name"])
ax.set_title(spec.get("title", ""))
ax.legend()
fig.savefig(sys.argv[2], dpi=200, bbox_inches="tight")

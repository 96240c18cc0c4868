import sys
import geopandas
import matplotlib.pyplot as plt

geopandas.read_file("world.json").plot()
plt.savefig(sys.argv[1])

import sys
import matplotlib.pyplot as plt

plt.bar(["a", "b"], [1, 2])
plt.savefig(sys.argv[1])

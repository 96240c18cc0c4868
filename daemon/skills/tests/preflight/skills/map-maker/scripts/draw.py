import csv
import sys

import folium
from geopy.geocoders import Nominatim

if "--offline" not in sys.argv:
    coder = Nominatim(user_agent="map-maker")
rows = list(csv.DictReader(open(sys.argv[1])))
m = folium.Map(location=[0, 0])
for row in rows:
    folium.Marker([row["lat"], row["lon"]]).add_to(m)
m.save("map.html")

import argparse
import csv
import sys
from urllib.parse import urljoin

import requests
from bs4 import BeautifulSoup

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--tables", action="store_true")
args = parser.parse_args()
soup = BeautifulSoup(requests.get(args.url, timeout=20).text, "lxml")
out = csv.writer(sys.stdout)
for link in soup.select("a[href]"):
    out.writerow([urljoin(args.url, link["href"]), link.text])

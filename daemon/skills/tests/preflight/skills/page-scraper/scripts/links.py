import sys
from html.parser import HTMLParser
import lxml.html

for link in lxml.html.fromstring(sys.stdin.read()).iterlinks():
    print(link[2])

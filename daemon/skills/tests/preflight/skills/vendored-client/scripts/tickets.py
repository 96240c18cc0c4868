import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "vendor"))

import toml
import markdown_lite.render as render
from ticketlib import Ticket
from ticketlib.fields import parse

print(render.render([parse(Ticket(t)) for t in toml.load(open(sys.argv[1]))]))

import json
import sys

from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject


def fill(source, values, target):
    writer = PdfWriter(clone_from=PdfReader(source))
    for page in writer.pages:
        writer.update_page_form_field_values(page, values)
    writer.set_need_appearances_writer(True)
    with open(target, "wb") as out:
        writer.write(out)


fill(sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3])

#!/usr/bin/env python3
from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "lib"))

import feedparser
from bs4 import BeautifulSoup
from scoutlib import http

try:
    import lxml  # noqa: F401
    PARSER = "lxml"
except ImportError:
    PARSER = "html.parser"

if TYPE_CHECKING:
    import pandas as pd

API = "https://export.arxiv.org/api/query?sortBy=submittedDate&max_results=100&search_query=all:"


def to_frame(rows: list[dict]) -> pd.DataFrame:
    import_name = "pandas"
    mod = sys.modules.get(import_name)
    return mod.DataFrame(rows) if mod else rows


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("topic")
    ap.add_argument("--days", type=int, default=7)
    a = ap.parse_args()
    since = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=a.days)
    feed = feedparser.parse(http.get(API + quote_plus(a.topic)).text)
    for e in feed.entries:
        when = dt.datetime(*e.published_parsed[:6], tzinfo=dt.timezone.utc)
        if when < since:
            continue
        page = BeautifulSoup(http.get(e.link).text, PARSER)
        subj = page.select_one(".primary-subject")
        print(f"- {e.title} ({subj.text if subj else '?'}) {e.link}")


if __name__ == "__main__":
    main()

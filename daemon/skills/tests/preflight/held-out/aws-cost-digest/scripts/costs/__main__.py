import argparse
import datetime as dt
import logging

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, NoCredentialsError

from . import __version__
from .render import render
from costs.movers import movers

log = logging.getLogger(__name__)


def fetch(weeks):
    ce = boto3.client("ce", config=Config(retries={"max_attempts": 8}))
    end = dt.date.today()
    start = end - dt.timedelta(weeks=weeks)
    return ce.get_cost_and_usage(
        TimePeriod={"Start": str(start), "End": str(end)},
        Granularity="DAILY",
        Metrics=["UnblendedCost"],
        GroupBy=[{"Type": "DIMENSION", "Key": "SERVICE"}],
    )["ResultsByTime"]


def main():
    ap = argparse.ArgumentParser(prog="costs")
    ap.add_argument("--weeks", type=int, default=2)
    ap.add_argument("--format", choices=["md", "txt"], default="txt")
    ap.add_argument("--version", action="version", version=__version__)
    a = ap.parse_args()
    try:
        print(render(movers(fetch(a.weeks)), a.format))
    except (ClientError, NoCredentialsError) as e:
        log.error("aws: %s", e)
        raise SystemExit(1)


main()

import time

import requests
from tenacity import retry, stop_after_attempt, wait_exponential

_last = 0.0


@retry(stop=stop_after_attempt(4), wait=wait_exponential(min=1, max=20))
def get(url, **kw):
    global _last
    time.sleep(max(0, 3 - (time.monotonic() - _last)))
    _last = time.monotonic()
    r = requests.get(url, timeout=30, headers={"User-Agent": "paper-scout/2"}, **kw)
    r.raise_for_status()
    return r

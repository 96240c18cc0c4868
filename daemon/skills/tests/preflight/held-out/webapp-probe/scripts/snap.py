import argparse
from playwright.sync_api import sync_playwright

ap = argparse.ArgumentParser()
ap.add_argument("url")
ap.add_argument("--out", default="shot.png")
a = ap.parse_args()

with sync_playwright() as p:
    b = p.chromium.launch(headless=True)
    pg = b.new_page()
    pg.on("console", lambda m: print(f"[{m.type}] {m.text}"))
    pg.goto(a.url)
    pg.wait_for_load_state("networkidle")
    pg.screenshot(path=a.out, full_page=True)
    for el in pg.locator("button, a, input, select").all():
        print(el.evaluate("e => e.outerHTML.slice(0, 120)"))
    b.close()

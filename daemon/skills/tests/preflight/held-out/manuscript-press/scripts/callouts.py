#!/usr/bin/env python3
import panflute as pf


def action(el, doc):
    if isinstance(el, pf.Div) and "warning" in el.classes:
        if doc.format == "latex":
            return [pf.RawBlock(r"\begin{quote}", format="latex"), *el.content,
                    pf.RawBlock(r"\end{quote}", format="latex")]


if __name__ == "__main__":
    pf.run_filter(action)

"""Pages are well formed, load nothing, and lose nothing of their equations.   usage: check_page.py FILE.."""
import html.parser
import sys

VOID = {"meta", "br"}
ARITY = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "msubsup": 3}


class Page(html.parser.HTMLParser):
    def __init__(self, name):
        super().__init__()
        self.name, self.stack, self.equations = name, [], 0

    def fail(self, what):
        sys.exit(f"{self.name}:{self.getpos()[0]}: {what}")

    def handle_starttag(self, tag, attributes):
        if tag == "script" or any(key in ("src", "href") for key, _ in attributes):
            self.fail(f"<{tag}> loads something")
        if self.stack:
            self.stack[-1][1] += 1
        if tag not in VOID:
            self.stack.append([tag, 0])
        self.equations += tag == "math"

    def handle_endtag(self, tag):
        opened, children = self.stack.pop()
        if opened != tag:
            self.fail(f"<{opened}> is closed by </{tag}>")
        if ARITY.get(tag, children) != children:
            self.fail(f"<{tag}> has {children} parts")


for name in sys.argv[1:]:
    page = Page(name)
    page.feed(open(name, encoding="utf-8").read())
    page.close()
    if page.stack:
        page.fail(f"<{page.stack[-1][0]}> is left open")
    print(name, page.equations)

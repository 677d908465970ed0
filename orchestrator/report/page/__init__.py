"""HTML pages: the report (``report_page``) and one cell (``cell_page``).

Start with ``report_page.py``; ``templates/`` has the pages' Jinja templates, style and script.
"""

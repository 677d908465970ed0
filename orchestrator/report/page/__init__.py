"""HTML pages: the report (``report_page``), one cell (``cell_page``) and the paper's tables (``published_page``).

Start with ``report_page.py``; ``templates/`` has the pages' Jinja templates, style and script.
"""

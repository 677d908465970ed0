"""HTML pages: the report (``report_page``), one cell (``cell_page``) and the paper's tables (``published_page``).

``templates/`` has their Jinja templates, style and script.
"""

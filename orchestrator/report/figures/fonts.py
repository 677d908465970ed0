"""The font of the figures: a small subset of matplotlib's DejaVu Sans.

A PDF embeds the characters that it shows. Extracting them from the whole font takes longer than drawing the figure,
because its tables of ligatures and scripts have to be followed. From the subset, it takes milliseconds.
"""

from __future__ import annotations

import atexit
import tempfile
from functools import lru_cache
from pathlib import Path

WHOLE, FAMILY = "DejaVu Sans", "Figure Sans"

# Latin, Greek, and the signs in tables and captions. All other characters are drawn from the whole font.
_CHARACTERS = (*range(0x20, 0x250), *range(0x370, 0x400), *range(0x2010, 0x2030), *range(0x2190, 0x2200),
               *range(0x2200, 0x2270))  # fmt: skip


@lru_cache(maxsize=1)
def families() -> tuple[str, str]:
    """The font families to draw with: the subset, which is made once for each process, then the whole font."""
    import matplotlib
    from fontTools import subset
    from matplotlib.font_manager import fontManager

    whole = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    options = subset.Options(glyph_names=True, layout_features=[], name_IDs=["*"])
    options.drop_tables += ["GDEF", "GPOS", "GSUB", "FFTM", "MATH", "kern"]
    font = subset.load_font(str(whole), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=_CHARACTERS)
    subsetter.subset(font)
    for record in font["name"].names:
        if record.nameID in (1, 4, 6, 16):
            record.string = FAMILY.replace(" ", "") if record.nameID == 6 else FAMILY
    folder = tempfile.TemporaryDirectory(prefix="figure-font-")
    atexit.register(folder.cleanup)
    path = Path(folder.name, "FigureSans.ttf")
    font.save(path)
    font.close()
    fontManager.addfont(path)
    return FAMILY, WHOLE

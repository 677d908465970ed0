"""Every aerial scene by name."""

from functools import partial

from orchestrator.drawn_world.pictures import aerial, structures
from orchestrator.drawn_world.pictures.aerial import Painter
from orchestrator.drawn_world.words import ROOFS, SEASONS

SCENES: dict[str, Painter] = {
    painter.__name__.replace("_", " "): painter
    for painter in (
        aerial.forest, aerial.meadow, aerial.desert, aerial.snowfield, aerial.wheat_field, aerial.ploughed_field,
        aerial.vegetable_field, aerial.flower_field, aerial.orchard, aerial.irrigation_circle, aerial.sea, aerial.lake,
        aerial.island, aerial.river, aerial.beach, aerial.harbour, structures.canal, structures.swimming_pool,
        structures.bridge, structures.road, structures.crossroads, structures.roundabout, structures.railway,
        structures.runway, structures.parking_lot, structures.village, structures.warehouse, structures.tank_farm,
        structures.solar_farm, structures.stadium,
    )
}  # fmt: skip
"""Name of a scene, as in captions and class names -> its painter, the function of this name."""

SEASONAL: dict[str, Painter] = {
    f"{painter.__name__} in {season}": partial(painter, season=index)
    for painter in (aerial.forest, aerial.meadow)
    for index, season in enumerate(SEASONS)
}
"""Scenes with vegetation, in each of the four seasons."""

ROOFED: dict[str, Painter] = {
    f"{painter.__name__} with {words.format(colour)}": partial(painter, roof=index)
    for painter, words in ((structures.village, "{} roofs"), (structures.warehouse, "a {} roof"))
    for index, colour in enumerate(ROOFS)
}
"""Scenes with buildings, with each colour of roofs."""

ALL: dict[str, Painter] = SCENES | SEASONAL | ROOFED
"""All scenes, with and without seasons and roof colours, in a fixed order."""

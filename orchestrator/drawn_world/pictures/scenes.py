"""Every aerial scene by name."""

from functools import partial

from orchestrator.drawn_world.pictures import aerial, structures
from orchestrator.drawn_world.pictures.aerial import Painter
from orchestrator.drawn_world.words import ROOFS, SEASONS

SCENES: dict[str, Painter] = {
    "forest": aerial.forest,
    "meadow": aerial.meadow,
    "desert": aerial.desert,
    "snowfield": aerial.snowfield,
    "wheat field": aerial.wheat,
    "ploughed field": aerial.ploughed,
    "vegetable field": aerial.vegetables,
    "flower field": aerial.flowers,
    "orchard": aerial.orchard,
    "irrigation circle": aerial.irrigation,
    "sea": aerial.sea,
    "lake": aerial.lake,
    "island": aerial.island,
    "river": aerial.river,
    "beach": aerial.beach,
    "harbour": aerial.pier_and_boats,
    "canal": structures.canal,
    "swimming pool": structures.swimming_pools,
    "bridge": structures.bridge,
    "road": structures.road,
    "crossroads": structures.crossroads,
    "roundabout": structures.roundabout,
    "railway": structures.railway,
    "runway": structures.runway,
    "parking lot": structures.parking_lot,
    "village": structures.houses,
    "warehouse": structures.warehouse,
    "tank farm": structures.tanks,
    "solar farm": structures.solar_farm,
    "stadium": structures.stadium,
}
"""Name of a scene, as in captions and class names -> its painter."""

SEASONAL: dict[str, Painter] = {
    f"{scene} in {season}": partial(painter, season=index)
    for scene, painter in (("forest", aerial.forest), ("meadow", aerial.meadow))
    for index, season in enumerate(SEASONS)
}
"""Scenes with vegetation, in each of the four seasons."""

ROOFED: dict[str, Painter] = {
    f"{scene} with {'a ' if scene == 'warehouse' else ''}{colour} roof{'' if scene == 'warehouse' else 's'}": partial(
        painter, roof=index
    )
    for scene, painter in (("village", structures.houses), ("warehouse", structures.warehouse))
    for index, colour in enumerate(ROOFS)
}
"""Scenes with buildings, with each colour of roofs."""

ALL: dict[str, Painter] = SCENES | SEASONAL | ROOFED
"""All scenes, with and without seasons and roof colours, in a fixed order."""

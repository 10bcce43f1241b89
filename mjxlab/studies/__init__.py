"""A study per system: what ``mjxlab reproduce NAME`` runs. ``mjxlab.catalogue`` knows them by name."""

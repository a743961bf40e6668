"""FedLWS (Shi et al. 2025): all its studies."""

from __future__ import annotations

from unalike.studies.papers import fedlws_central, fedlws_figures, fedlws_tables

STUDIES = (*fedlws_central.STUDIES, *fedlws_tables.STUDIES, *fedlws_figures.STUDIES)

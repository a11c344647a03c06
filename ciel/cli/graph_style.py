"""How a drawn graph looks: the shapes of states, and colours for light and for dark pages."""

from __future__ import annotations

from typing import Final

SHAPES: Final = {
    "done": "M-5 .5L-1.5 4 5-4",
    "failed": "M-4-4 4 4M4-4-4 4",
    "assigned": "M-3-5 5 0-3 5Z",
    "runnable": "M-3-5 5 0-3 5Z",
    "waiting": "M-4-5H4L-4 5H4Z",
    "dormant": "M1-5A5 5 0 1 0 5 1 4 4 0 0 1 1-5Z",
    "cancelled": "M0-5A5 5 0 1 1-.1-5ZM-3.5 3.5 3.5-3.5",
    "given": "M-4-5.5H1.5L4-3V5.5H-4ZM-2-.5H2M-2 2.5H2",
}
"""Paths of ten by ten pixels around the origin, for states of tasks and for what was given."""

STYLE: Final = """
text{font:11px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#59636e}
.page{fill:#fff}
.heading{font-size:17px;font-weight:600;fill:#1f2328}
.title{font-size:13px;font-weight:600;fill:#1f2328}
.card{fill:#fff;stroke:#818b98;stroke-width:1.2}
.band{fill:#818b98}
.shape{fill:none;stroke:#fff;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.solid{fill:#fff}
.done .card{stroke:#2f8f4e}.done .band{fill:#2f8f4e}
.failed .card{stroke:#b42318;stroke-width:2.4}.failed .band{fill:#b42318}
.assigned .card{stroke:#0b62d0;stroke-width:1.8}.assigned .band{fill:#0b62d0}
.runnable .card{stroke:#5b9bf0}.runnable .band{fill:#5b9bf0}
.waiting .card{stroke:#c58a00;stroke-dasharray:6 3}.waiting .band{fill:#c58a00}
.dormant .card{stroke:#a3acb6;stroke-dasharray:2 3}.dormant .band{fill:#a3acb6}
.cancelled .card{stroke:#4a525b;stroke-dasharray:9 3 2 3}.cancelled .band{fill:#4a525b}
.cancelled .title{text-decoration:line-through}
.given .card{fill:#f3f5f8}
.line{fill:none;stroke:#6e7781;stroke-width:1.4}
.spawn{stroke:#8250df;stroke-dasharray:2 4}
.delegate{stroke:#8250df;stroke-width:2;stroke-dasharray:9 4}
.object-port{fill:#6e7781;stroke:#fff}
.result-port{fill:#fff;stroke:#1f2328;stroke-width:1.8}
.result-dot{fill:#1f2328}
.spawn-port{fill:#fff;stroke:#8250df;stroke-width:1.4}
.delegate-port{fill:#8250df;stroke:#8250df;stroke-width:1.4}
.tip{fill:#6e7781}.purple{fill:#8250df}
@media (prefers-color-scheme:dark){
text{fill:#9aa4af}
.page{fill:#0d1117}
.heading,.title{fill:#e6edf3}
.card{fill:#171c24;stroke:#6e7781}
.given .card{fill:#1f2630}
.shape{stroke:#0d1117}.solid{fill:#0d1117}
.band{fill:#9aa4af}
.done .card{stroke:#4cb46c}.done .band{fill:#4cb46c}
.failed .card{stroke:#ff7b6e}.failed .band{fill:#ff7b6e}
.assigned .card{stroke:#58a6ff}.assigned .band{fill:#58a6ff}
.runnable .card{stroke:#a5d0ff}.runnable .band{fill:#a5d0ff}
.waiting .card{stroke:#dfae34}.waiting .band{fill:#dfae34}
.dormant .card{stroke:#6e7781}.dormant .band{fill:#6e7781}
.cancelled .card{stroke:#b6bfc9}.cancelled .band{fill:#b6bfc9}
.line{stroke:#8b949e}
.spawn,.delegate{stroke:#bc8cff}
.object-port{fill:#8b949e;stroke:#0d1117}
.result-port{fill:#0d1117;stroke:#e6edf3}.result-dot{fill:#e6edf3}
.spawn-port{fill:#0d1117;stroke:#bc8cff}.delegate-port{fill:#bc8cff;stroke:#bc8cff}
.tip{fill:#8b949e}.purple{fill:#bc8cff}
}
"""

"""A bench report as one HTML page that needs no network: tables and charts, light and dark."""

from mtp_mlx.bench.page.render import render_page

__all__ = ["render_page"]

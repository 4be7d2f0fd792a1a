"""The report as one self-contained page, and its pictures as SVG files."""

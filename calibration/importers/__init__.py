"""Public measured tables become profiles. One module a source; nothing here measures.

presets.py         fitted configurations of aiconfigurator-core, as recorded
aiconfigurator.py  NVIDIA's composed step times: recorded grids, or the wheel itself
layers.py          per-layer kernel times: LLMServingSim and Vidur
"""

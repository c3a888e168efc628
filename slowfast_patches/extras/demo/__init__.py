"""Demo data: rendered videos whose classes differ in their motion, for multigrid-demo-data."""

FILES = (
    "tests/slowfast_patches/extras/demo",
    "tests/slowfast_patches/extras/detection_and_demo",
    "tools/demo_data.py",
)
"""Files of this extra outside of its folder."""

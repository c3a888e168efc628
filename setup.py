"""Map the folders of this repository to import names; the metadata is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=["multigrid", *find_packages(include=["slowfast_patches", "slowfast_patches.*"])],
    package_dir={"multigrid": "projects/multigrid", "slowfast_patches": "slowfast_patches"},
)
